#include "cases/outputs.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace fovea::cases {
namespace {

DType widened(const Inputs& inputs, Width width, DType asked) {
  if (width == Width::as_asked) return asked;
  return inputs.c.compute() == DType::f64 ? DType::f64 : DType::f32;
}

void add(Outputs& outputs, std::string name, Tensor tensor, int owned_axis = -1,
         std::int64_t owned = 0) {
  MutableTensorView written = tensor.view;
  if (owned_axis >= 0) written.shape[static_cast<std::size_t>(owned_axis)] = owned;
  outputs.list.push_back({std::move(name), std::move(tensor), written});
}

std::string segment_name(const char* name, std::size_t n, std::size_t count) {
  return count == 1 ? name : fmt::format("{}[{}]", name, n);
}

}  // namespace

const Output* Outputs::find(const std::string& name) const {
  for (const Output& output : list) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

std::string Outputs::stray_writes() const {
  for (const Output& output : list) {
    if (!output.tensor.buffer->guards_intact()) {
      return fmt::format("the bytes around {} were overwritten", output.name);
    }
    // Gradients of a packed projection cover their shared memory together.
    const bool shared = output.tensor.buffer.use_count() > 1;
    if (!shared && !rest_is_poison(output.tensor, output.written)) {
      return fmt::format("gaps or unowned rows of {} were overwritten", output.name);
    }
  }
  return {};
}

std::uint64_t Outputs::hash() const {
  std::uint64_t hash = 0;
  for (const Output& output : list) {
    for_each_element(output.written, [&](std::int64_t offset, const Index&) {
      const auto size = static_cast<std::int64_t>(size_of(output.written.dtype));
      const auto* bytes = static_cast<const unsigned char*>(output.written.data) + offset * size;
      for (std::int64_t n = 0; n < size; ++n) hash = (hash ^ bytes[n]) * 0x100000001B3u;
    });
  }
  return hash;
}

Outputs make_forward_outputs(const Inputs& inputs, Width width) {
  const Case& c = inputs.c;
  const bool packed = c.varlen != IndexKind::none;
  const std::int64_t owned = inputs.lengths.q_begin.back();
  Outputs outputs;
  const std::vector<Tensor> out =
      make_like_out(c, inputs.lengths, widened(inputs, width, c.out_dtype()));
  for (std::size_t n = 0; n < out.size(); ++n) {
    add(outputs, segment_name("out", n, out.size()), out[n], packed ? 0 : -1, owned);
  }
  if (width == Width::widest || !c.no_lse) {
    add(outputs, "lse",
        width == Width::widest ? make_like_lse(c, inputs.lengths, DType::f64)
                               : make_like_lse(c, inputs.lengths),
        packed ? 1 : -1, owned);
  }
  return outputs;
}

ForwardArgs forward_args(const Inputs& inputs, const Outputs& outputs) {
  ForwardArgs args;
  args.params = inputs.params;
  for (const Output& output : outputs.list) {
    if (output.name == "lse") {
      args.lse = output.tensor.view;
    } else {
      args.out.add(output.tensor.view);
    }
  }
  return args;
}

Outputs make_backward_outputs(const Inputs& inputs, Width width) {
  const Case& c = inputs.c;
  const bool packed = c.varlen != IndexKind::none;
  const auto grad_dtype = [&](DType own) {
    if (width == Width::as_asked) return c.f32_grads ? DType::f32 : own;
    return own == DType::f64 ? DType::f64 : DType::f32;
  };
  Outputs outputs;
  const Operands gradients =
      make_operands(c, inputs.lengths,
                    {grad_dtype(c.q_dtype), grad_dtype(c.k_dtype), grad_dtype(c.v_dtype)}, true);
  const auto add_segments = [&](const char* name, bool wanted, const std::vector<Tensor>& tensors,
                                std::int64_t owned) {
    for (std::size_t n = 0; wanted && n < tensors.size(); ++n) {
      add(outputs, segment_name(name, n, tensors.size()), tensors[n], packed ? 0 : -1, owned);
    }
  };
  add_segments("dq", !c.no_dq, gradients.q, inputs.lengths.q_begin.back());
  add_segments("dk", !c.no_dk, gradients.k, inputs.lengths.k_begin.back());
  add_segments("dv", !c.no_dv, gradients.v, inputs.lengths.k_begin.back());
  const auto add_like = [&](std::string name, const Tensor& input) {
    const auto& shape = input.view.shape;
    add(outputs, std::move(name),
        make_tensor(grad_dtype(input.view.dtype),
                    {shape.begin(), shape.begin() + input.view.rank}));
  };
  for (std::size_t n = 0; c.dnorm && n < inputs.q_weights.size(); ++n) {
    add_like(fmt::format("dq weight[{}]", n), inputs.q_weights[n]);
  }
  for (std::size_t n = 0; c.dnorm && n < inputs.k_weights.size(); ++n) {
    add_like(fmt::format("dk weight[{}]", n), inputs.k_weights[n]);
  }
  if (c.dmask) add_like("dmask", inputs.mask);
  if (c.dsinks) add_like("dsinks", inputs.sinks);
  return outputs;
}

BackwardArgs backward_args(const Inputs& inputs, const Saved& saved, const Outputs& outputs) {
  BackwardArgs args;
  args.params = inputs.params;
  for (const Tensor& out : saved.out) args.out.add(out.view);
  args.lse = saved.lse.view;
  for (const Tensor& dout : inputs.dout) args.dout.add(dout.view);
  if (inputs.c.dlse) args.dlse = inputs.dlse.view;
  const auto view_of = [&](const std::string& name) {
    const Output* output = outputs.find(name);
    return output == nullptr ? MutableTensorView{} : output->tensor.view;
  };
  const auto gradient_of = [&](const char* name, const std::vector<Tensor>& segments) {
    MutableOperand gradient;
    bool any = false;
    for (std::size_t n = 0; n < segments.size(); ++n) {
      const MutableTensorView tensor = view_of(segment_name(name, n, segments.size()));
      const MutableTensorView weight = view_of(fmt::format("{} weight[{}]", name, n));
      any = any || tensor.present() || weight.present();
      gradient.add(tensor, weight);
    }
    return any ? gradient : MutableOperand{};
  };
  args.dq = gradient_of("dq", inputs.operands.q);
  args.dk = gradient_of("dk", inputs.operands.k);
  args.dv = gradient_of("dv", inputs.operands.v);
  args.dmask = view_of("dmask");
  args.dsinks = view_of("dsinks");
  return args;
}

}  // namespace fovea::cases
