#include "cases/sample.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fovea/plan.h>

namespace fovea::cases {
namespace {

constexpr std::int64_t kBlock = 16;

/// Rows [q_begin, q_begin + q_size) against keys [k_begin, k_begin + k_size).
struct Slice {
  std::int64_t q_begin = 0, q_size = 0, k_begin = 0, k_size = 0;
};

template <class View>
View slice_axis(View view, std::size_t axis, std::int64_t begin, std::int64_t size) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) + begin * view.strides[axis] * size_of(view.dtype);
  view.shape[axis] = size;
  return view;
}

/// Bounds of j - i in the whole call: unlimited sides are far outside.
struct Bounds {
  std::int64_t low, high;
};

Bounds bounds_of(const Case& c) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  if (!c.band) return {-kFar, kFar};
  const std::int64_t offset = c.band->anchor == Anchor::bottom_right ? c.kv_len - c.q_len : 0;
  return {offset - std::min(c.band->left, kFar), offset + std::min(c.band->right, kFar)};
}

/// Keys that a block of queries may see; empty when its first row sees none.
Slice slice_of_queries(const Case& c, std::int64_t begin) {
  const Bounds bounds = bounds_of(c);
  Slice slice;
  slice.q_begin = begin;
  slice.q_size = std::min(kBlock, c.q_len - begin);
  slice.k_begin = std::clamp<std::int64_t>(begin + bounds.low, 0, c.kv_len);
  const std::int64_t end =
      std::clamp<std::int64_t>(begin + slice.q_size + bounds.high, 0, c.kv_len);
  slice.k_size = begin + bounds.high < slice.k_begin ? 0 : end - slice.k_begin;
  return slice;
}

/// Queries that may see a block of keys; empty when none sees its first key.
Slice slice_of_keys(const Case& c, std::int64_t begin) {
  const Bounds bounds = bounds_of(c);
  Slice slice;
  slice.k_begin = begin;
  slice.k_size = std::min(kBlock, c.kv_len - begin);
  slice.q_begin = std::clamp<std::int64_t>(begin - bounds.high, 0, c.q_len);
  const std::int64_t end = std::clamp<std::int64_t>(begin + slice.k_size - bounds.low, 0, c.q_len);
  slice.q_size = begin - bounds.low < slice.q_begin ? 0 : end - slice.q_begin;
  return slice;
}

/// The call on a slice. Band, dropout and RoPE are moved so that every (i, j) keeps its meaning.
AttentionParams params_of(const Inputs& inputs, const Slice& slice) {
  const Case& c = inputs.c;
  AttentionParams p = inputs.params;
  p.q.segments[0].tensor = slice_axis(p.q.segments[0].tensor, 2, slice.q_begin, slice.q_size);
  p.k.segments[0].tensor = slice_axis(p.k.segments[0].tensor, 2, slice.k_begin, slice.k_size);
  p.v.segments[0].tensor = slice_axis(p.v.segments[0].tensor, 2, slice.k_begin, slice.k_size);
  if (c.band) {
    const Bounds bounds = bounds_of(c);
    const std::int64_t shift = slice.q_begin - slice.k_begin;
    // Slices begin where the band does, so that both sides stay >= 0.
    p.band = Band::window(Anchor::top_left, -std::min<std::int64_t>(bounds.low + shift, 0),
                          std::max<std::int64_t>(bounds.high + shift, 0));
  }
  if (p.mask.present()) {
    const auto rank = static_cast<std::size_t>(p.mask.rank);
    if (p.mask.shape[rank - 1] != 1) {
      p.mask = slice_axis(p.mask, rank - 1, slice.k_begin, slice.k_size);
    }
    if (rank > 1 && p.mask.shape[rank - 2] != 1) {
      p.mask = slice_axis(p.mask, rank - 2, slice.q_begin, slice.q_size);
    }
  }
  p.dropout.row_origin += slice.q_begin;
  p.dropout.column_origin += slice.k_begin;
  p.rope.q_offset += slice.q_begin;
  p.rope.k_offset += slice.k_begin;
  return p;
}

template <class Args>
Status run_trusted(const Args& args, const char* kernel) {
  PlanOptions options;
  options.choice.kernel = kernel;
  options.self_check = false;
  Result<Plan> plan = Plan::make(args, options);
  if (!plan) return plan.status();
  return plan->run(args);
}

Tensor like(const TensorView& view, DType dtype) {
  return make_tensor(dtype, {view.shape.begin(), view.shape.begin() + view.rank});
}

void accumulate(ErrorSums& sums, const TensorView& got, const Tensor& oracle,
                const Tensor& baseline) {
  for_each_element(got, [&](std::int64_t offset, const Index& at) {
    const double value = load(got.data, got.dtype, offset);
    const double expected = oracle.get(at);
    if (!std::isfinite(expected) || !std::isfinite(value)) {
      const bool same = value == expected || (std::isnan(expected) && !std::isfinite(value));
      if (!same && sums.violation.empty()) sums.violation = "a non-finite value differs";
      return;
    }
    const double error = value - expected, yardstick = baseline.get(at) - expected;
    sums.squared_norm += expected * expected;
    sums.squared_error += error * error;
    sums.baseline_squared_error += yardstick * yardstick;
    sums.largest_error = std::max(sums.largest_error, std::abs(error));
    sums.baseline_largest_error = std::max(sums.baseline_largest_error, std::abs(yardstick));
  });
}

ErrorSums& sums_of(std::vector<ErrorSums>& all, const std::string& name) {
  for (ErrorSums& sums : all) {
    if (sums.tensor == name) return sums;
  }
  ErrorSums& sums = all.emplace_back();
  sums.tensor = name;
  sums.absolute = name == "lse";
  return sums;
}

Status sample_forward(const Inputs& inputs, const Outputs& results, const Slice& slice,
                      std::vector<ErrorSums>& all) {
  ForwardArgs args;
  args.params = params_of(inputs, slice);
  const auto part = [&](const Output& output) {
    return slice_axis(output.tensor.view, 2, slice.q_begin, slice.q_size);
  };
  struct Results {
    Tensor out, lse;
  };
  const auto run = [&](const char* kernel, DType dtype, Results& made) {
    made.out = like(part(results.list[0]), dtype);
    made.lse = make_tensor(DType::f32, {inputs.c.batch, inputs.c.q_heads, slice.q_size});
    args.out = made.out.view;
    args.lse = made.lse.view;
    return run_trusted(args, kernel);
  };
  Results oracle, baseline;
  if (Status s = run("cpu.reference.forward", DType::f32, oracle); !s.ok()) return s;
  if (Status s = run("cpu.baseline.forward", inputs.c.out_dtype(), baseline); !s.ok()) return s;
  accumulate(sums_of(all, "out"), part(results.list[0]), oracle.out, baseline.out);
  if (const Output* lse = results.find("lse"); lse != nullptr) {
    accumulate(sums_of(all, "lse"), part(*lse), oracle.lse, baseline.lse);
  }
  return {};
}

Status sample_backward(const Inputs& inputs, const Outputs& results, const Saved& saved,
                       const Slice& slice, const std::set<std::string>& names,
                       std::vector<ErrorSums>& all) {
  BackwardArgs args;
  args.params = params_of(inputs, slice);
  const auto queries = [&](const TensorView& view) {
    return slice_axis(view, 2, slice.q_begin, slice.q_size);
  };
  args.out = queries(saved.out[0].view);
  args.lse = queries(saved.lse.view);
  if (!inputs.dout.empty()) args.dout = queries(inputs.dout[0].view);
  if (inputs.c.dlse) args.dlse = queries(inputs.dlse.view);
  for (const std::string& name : names) {
    const Output* result = results.find(name);
    if (result == nullptr) continue;
    const bool of_q = name == "dq";
    const MutableTensorView got =
        slice_axis(result->tensor.view, 2, of_q ? slice.q_begin : slice.k_begin,
                   of_q ? slice.q_size : slice.k_size);
    const Tensor oracle = like(got, DType::f32), baseline = like(got, got.dtype);
    MutableOperand& wanted = of_q ? args.dq : name == "dk" ? args.dk : args.dv;
    wanted = oracle.view;
    if (Status s = run_trusted(args, "cpu.reference.backward"); !s.ok()) return s;
    wanted = baseline.view;
    if (Status s = run_trusted(args, "cpu.baseline.backward"); !s.ok()) return s;
    wanted = MutableOperand{};
    accumulate(sums_of(all, name), got, oracle, baseline);
  }
  return {};
}

std::set<std::int64_t> block_starts(std::int64_t length) {
  return {0, std::max<std::int64_t>(length / 2 - kBlock / 2, 0),
          std::max<std::int64_t>(length - kBlock, 0)};
}

}  // namespace

bool can_be_sampled(const Case& c) {
  return c.varlen == IndexKind::none && c.seqused == IndexKind::none && c.page_size == 0 &&
         c.q_segments == 1 && c.k_segments == 1 && c.v_segments == 1 && c.out_segments == 1 &&
         c.alibi == SlopeKind::none && !c.dmask && !c.dsinks && !c.dnorm &&
         c.compute() != DType::f64 && !c.expanded_dout;
}

Result<std::vector<ErrorSums>> measure_samples(const Inputs& inputs, const Outputs& results,
                                               const Saved* saved, Direction direction) {
  std::vector<ErrorSums> all;
  const Case& c = inputs.c;
  for (const std::int64_t begin : block_starts(c.q_len)) {
    const Slice slice = slice_of_queries(c, begin);
    if (slice.q_size == 0 || slice.k_size == 0) continue;
    const Status status = direction == Direction::forward
                              ? sample_forward(inputs, results, slice, all)
                              : sample_backward(inputs, results, *saved, slice, {"dq"}, all);
    if (!status.ok()) return status;
  }
  if (direction == Direction::forward) return all;
  for (const std::int64_t begin : block_starts(c.kv_len)) {
    const Slice slice = slice_of_keys(c, begin);
    if (slice.q_size == 0 || slice.k_size == 0) continue;
    const Status status = sample_backward(inputs, results, *saved, slice, {"dk", "dv"}, all);
    if (!status.ok()) return status;
  }
  return all;
}

}  // namespace fovea::cases
