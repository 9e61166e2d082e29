#include "lm/attention.h"

#include <array>
#include <utility>

#include "lm/error.h"
#include "lm/parallel.h"

namespace fovea::lm {
namespace {

PlanOptions plan_options(const AttentionOptions& options) {
  PlanOptions plan;
  if (options.backend != "auto") plan.choice.backend = options.backend;
  plan.deterministic = true;
  plan.pool = &attention_thread_pool();
  return plan;
}

// Asks the library whether and how it serves the call, then runs it in a workspace of ours, so that
// the workspace is counted among the tensors.
template <class Args>
void plan_and_run(const Args& args, const AttentionOptions& options, const char* direction) {
  const Result<Plan> plan = Plan::make(args, plan_options(options));
  if (!plan.ok()) {
    fail_as(plan.status().code(), "[attention] no {} by attention backend '{}': {}", direction,
            options.backend, plan.status().message());
  }
  RunOptions run;
  run.job = options.job;
  run.workspace_bytes = plan->workspace_bytes();
  Tensor workspace;
  if (run.workspace_bytes > 0) {
    workspace = Tensor::empty({static_cast<std::int64_t>(run.workspace_bytes)}, DType::i8);
    run.workspace = workspace.raw();
  }
  const Status status = plan->run(args, run);
  if (!status.ok()) {
    fail_as(status.code(), "[attention] {} by {} failed: {}", direction, plan->report().kernel,
            status.message());
  }
}

AttentionParams make_params(const Tensor& q, const Tensor& k, const Tensor& v,
                            std::optional<double> scale, const AttentionOptions& options) {
  AttentionParams params;
  params.q = q.input_view();
  params.k = k.input_view();
  params.v = v.input_view();
  params.scale = scale;
  params.band = options.band;
  return params;
}

// [batch, heads, seq, dim] over the memory order [batch, seq, heads, dim]
Tensor empty_bshd(std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t dim) {
  return Tensor::empty({batch, seq, heads, dim})
      .strided(0, {batch, heads, seq, dim}, {seq * heads * dim, dim, heads * dim, 1});
}

}  // namespace

void check_attention_backend(const std::string& name) {
  if (name != "auto" && name != "flash" && name != "unfused") {
    fail("[attention] the backend must be unfused, flash or auto; got '{}'", name);
  }
}

Var scaled_dot_product_attention(Tape& tape, const Var& q, const Var& k, const Var& v,
                                 std::optional<double> scale, const AttentionOptions& options) {
  check_attention_backend(options.backend);
  const std::array inputs = {q, k, v};
  for (std::size_t i = 0; i < 3; ++i) {
    if (inputs[i].value().defined() && inputs[i].value().rank() == 4) continue;
    fail("[attention] {} must be [batch, heads, seq, head_dim]; got {}", "qkv"[i],
         to_string(inputs[i].shape()));
  }
  const Tensor out =
      empty_bshd(q.value().dim(0), q.value().dim(1), q.value().dim(2), v.value().dim(3));
  const bool records = tape.records(q, k, v);
  Tensor lse;

  ForwardArgs args;
  args.params = make_params(q.value(), k.value(), v.value(), scale, options);
  args.out = out.output_view();
  if (records) {
    lse = Tensor::empty({out.dim(0), out.dim(1), out.dim(2)});
    args.lse = lse.output_view();
  }
  plan_and_run(args, options, "forward");
  if (!records) return out;

  return tape.record(out, [=](const Tensor& dout) {
    BackwardArgs back;
    back.params = make_params(q.value(), k.value(), v.value(), scale, options);
    back.out = out.input_view();
    back.lse = lse.input_view();
    back.dout = dout.input_view();
    // The first gradient of a slot is written in place, any other added from a tensor of its own.
    std::array<Tensor, 3> grads;
    std::array<bool, 3> in_place{};
    const std::array<MutableOperand*, 3> wanted = {&back.dq, &back.dk, &back.dv};
    for (std::size_t i = 0; i < 3; ++i) {
      const std::shared_ptr<GradSlot>& slot = inputs[i].slot();
      if (!slot) continue;
      in_place[i] = !slot->grad.defined();
      grads[i] = in_place[i] ? grad_target(slot).tensor : Tensor::empty(slot->shape);
      *wanted[i] = grads[i].output_view();
    }
    plan_and_run(back, options, "backward");
    for (std::size_t i = 0; i < 3; ++i) {
      if (in_place[i]) grads[i] = Tensor();
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (grads[i].defined()) accumulate_grad(inputs[i].slot(), grads[i]);
    }
  });
}

}  // namespace fovea::lm
