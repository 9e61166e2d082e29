#include "cases/inputs.h"

#include <algorithm>
#include <numeric>

#include "cases/random_numbers.h"

namespace fovea::cases {
namespace {

DType dtype_of(IndexKind kind) { return kind == IndexKind::i64 ? DType::i64 : DType::i32; }

Tensor make_index(IndexKind kind, const std::vector<std::int64_t>& values) {
  Tensor tensor = make_tensor(dtype_of(kind), {static_cast<std::int64_t>(values.size())});
  tensor.fill([&](const Index& at) {
    return static_cast<double>(values[static_cast<std::size_t>(at[0])]);
  });
  return tensor;
}

/// Pages in random order. Entries behind a sequence's last page are no page numbers.
void make_block_table(Inputs& inputs, RandomNumbers& random) {
  const Case& c = inputs.c;
  const std::int64_t pages_each = (c.kv_len + c.page_size - 1) / c.page_size;
  std::vector<std::int64_t> pages(static_cast<std::size_t>(c.batch * pages_each + 2));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t n = pages.size(); n > 1; --n) {
    std::swap(pages[n - 1],
              pages[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(n) - 1))]);
  }
  inputs.block_table = make_tensor(DType::i32, {c.batch, pages_each + 1});
  std::size_t next = 0;
  inputs.block_table.fill([&](const Index& at) -> double {
    const std::int64_t used = inputs.lengths.k[static_cast<std::size_t>(at[0])];
    return at[1] * c.page_size < used ? static_cast<double>(pages[next++]) : -1.0;
  });
}

/// Fills all heads of one row.
void fill_row(const std::vector<Tensor>& segments, const RowPlace& place, double factor,
              RandomNumbers& random) {
  const Tensor& tensor = segments[place.segment];
  const auto heads = static_cast<std::size_t>(place.heads_axis);
  const auto dim = static_cast<std::size_t>(place.dim_axis);
  Index index = place.index;
  for (index[heads] = 0; index[heads] < tensor.view.shape[heads]; ++index[heads]) {
    for (index[dim] = 0; index[dim] < tensor.view.shape[dim]; ++index[dim]) {
      tensor.set(index, factor * random.normal());
    }
  }
}

/// Only what some row sees is given a value; all the rest stays NaN.
void fill_operands(Inputs& inputs, RandomNumbers& random) {
  const Case& c = inputs.c;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t i = 0; i < inputs.lengths.q[static_cast<std::size_t>(b)]; ++i) {
      fill_row(inputs.operands.q, inputs.place_of_query(inputs.operands.q, b, i), c.logits_std,
               random);
    }
    const KeyRange seen = keys_of_sequence(c, inputs.lengths, b);
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      fill_row(inputs.operands.k, inputs.place_of_key(inputs.operands.k, b, j), 1, random);
      fill_row(inputs.operands.v, inputs.place_of_key(inputs.operands.v, b, j), 1, random);
    }
  }
}

/// Puts a non-finite value where at least one row sees it.
void plant(Inputs& inputs, const std::vector<Tensor>& segments, double value) {
  for (std::int64_t b = 0; b < inputs.c.batch; ++b) {
    const KeyRange seen = keys_of_sequence(inputs.c, inputs.lengths, b);
    if (seen.size() == 0) continue;
    const RowPlace place = inputs.place_of_key(segments, b, seen.begin + seen.size() / 2);
    segments[place.segment].set(place.index, value);
    return;
  }
}

void make_upstream(Inputs& inputs, RandomNumbers& random) {
  const Case& c = inputs.c;
  const bool packed = c.varlen != IndexKind::none;
  const std::int64_t owned = inputs.lengths.q_begin.back();
  if (!c.no_dout) inputs.dout = make_like_out(c, inputs.lengths, c.out_dtype());
  for (Tensor& dout : inputs.dout) {
    if (c.expanded_dout) {
      const MutableTensorView shape = dout.view;
      dout = make_tensor(c.out_dtype(), {1});
      dout.set({}, random.normal());
      void* value = dout.view.data;
      dout.view = shape;
      dout.view.data = value;
      dout.view.strides = {};
      continue;
    }
    dout.fill(
        [&](const Index& at) { return packed && at[0] >= owned ? std::nan("") : random.normal(); });
  }
  if (c.inf_dout && !inputs.dout.empty() && inputs.dout[0].view.elements() > 0) {
    inputs.dout[0].set({}, HUGE_VAL);
  }
  if (!c.dlse) return;
  inputs.dlse = make_like_lse(c, inputs.lengths);
  inputs.dlse.fill(
      [&](const Index& at) { return packed && at[1] >= owned ? std::nan("") : random.normal(); });
}

void make_norm_weights(Inputs& inputs, RandomNumbers& random) {
  const Case& c = inputs.c;
  if (c.qk_norm != NormKind::weights) return;
  const auto make = [&](const std::vector<Tensor>& segments, std::vector<Tensor>& weights) {
    for (const Tensor& segment : segments) {
      weights.push_back(make_tensor(segment.view.dtype, {c.head_dim}));
      weights.back().fill([&](const Index&) { return 1 + 0.3 * random.normal(); });
    }
  };
  make(inputs.operands.q, inputs.q_weights);
  make(inputs.operands.k, inputs.k_weights);
}

Operand operand_of(const std::vector<Tensor>& segments, const std::vector<Tensor>& weights) {
  Operand operand;
  for (std::size_t n = 0; n < segments.size(); ++n) {
    operand.add(segments[n].view, n < weights.size() ? TensorView(weights[n].view) : TensorView{});
  }
  return operand;
}

void bind(Inputs& inputs) {
  const Case& c = inputs.c;
  AttentionParams& p = inputs.params;
  p.q = operand_of(inputs.operands.q, inputs.q_weights);
  p.k = operand_of(inputs.operands.k, inputs.k_weights);
  p.v = operand_of(inputs.operands.v, {});
  p.scale = c.scale;
  p.band = c.band;
  p.softcap = c.softcap;
  p.qk_norm.enabled = c.qk_norm != NormKind::none;
  if (c.varlen != IndexKind::none) {
    p.varlen.cu_seqlens_q = inputs.cu_seqlens_q.view;
    p.varlen.cu_seqlens_k = inputs.cu_seqlens_k.view;
    p.varlen.max_q_len = c.q_len;
    p.varlen.max_kv_len = c.kv_len;
  }
  p.seqused_k = inputs.seqused.view;
  if (c.page_size != 0) {
    p.paged.block_table = inputs.block_table.view;
    p.paged.max_kv_len = c.kv_len;
  }
  if (c.cast != DType::none) p.dtype_policy = DTypePolicy::cast(c.cast);
  if (c.tf32) p.f32_precision = F32Precision::tf32;
  p.quantization = c.quantization;
}

}  // namespace

std::uint64_t default_seed(const Case& c) { return hash_of(name_of(c)) & 0xFFFF; }

std::unique_ptr<Inputs> make_inputs(const Case& c, std::uint64_t seed) {
  auto made = std::make_unique<Inputs>();
  Inputs& inputs = *made;
  inputs.c = c;
  inputs.seed = seed;
  inputs.lengths = lengths_of(c);
  RandomNumbers random(hash_of(name_of(c)) ^ (seed * 0x9E3779B97F4A7C15u + 1));

  if (c.varlen != IndexKind::none) {
    inputs.cu_seqlens_q = make_index(c.varlen, inputs.lengths.q_begin);
    if (c.page_size == 0) inputs.cu_seqlens_k = make_index(c.varlen, inputs.lengths.k_begin);
  }
  if (c.seqused != IndexKind::none) inputs.seqused = make_index(c.seqused, inputs.lengths.seqused);
  if (c.page_size != 0) make_block_table(inputs, random);
  inputs.operands = make_operands(c, inputs.lengths, {c.q_dtype, c.k_dtype, c.v_dtype}, false);
  fill_operands(inputs, random);
  if (c.nan_v) plant(inputs, inputs.operands.v, std::nan(""));
  if (c.inf_k) plant(inputs, inputs.operands.k, HUGE_VAL);
  make_norm_weights(inputs, random);
  make_upstream(inputs, random);
  bind(inputs);
  detail::make_mask(inputs);
  detail::make_slopes_and_sinks(inputs);
  detail::make_dropout(inputs);
  detail::make_rope(inputs);
  for (const Tensor* tensor : inputs.tensors()) inputs.hash ^= tensor->buffer->hash();
  return made;
}

std::vector<const Tensor*> Inputs::tensors() const {
  std::vector<const Tensor*> all;
  const auto add = [&](const Tensor& tensor) {
    if (tensor.buffer != nullptr) all.push_back(&tensor);
  };
  // Tensors of a packed projection share one buffer; each buffer counts once.
  const bool shared = c.layout == Layout::packed_qkv;
  for (const Tensor& t : operands.q) add(t);
  for (const Tensor& t : operands.k) {
    if (!shared) add(t);
  }
  for (const Tensor& t : operands.v) {
    if (!shared) add(t);
  }
  for (const Tensor& t : dout) add(t);
  for (const Tensor& t : q_weights) add(t);
  for (const Tensor& t : k_weights) add(t);
  for (const Tensor* t :
       {&mask, &slopes, &sinks, &drop_seed, &drop_offset, &drop_streams, &cu_seqlens_q,
        &cu_seqlens_k, &seqused, &block_table, &cos, &sin, &q_offsets, &k_offsets, &dlse}) {
    add(*t);
  }
  return all;
}

bool Inputs::intact() const {
  std::uint64_t now = 0;
  for (const Tensor* tensor : tensors()) {
    if (!tensor->buffer->guards_intact()) return false;
    now ^= tensor->buffer->hash();
  }
  return now == hash;
}

}  // namespace fovea::cases
