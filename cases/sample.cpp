#include "cases/sample.h"

#include <algorithm>
#include <set>

namespace fovea::cases {
namespace {

constexpr std::int64_t kBlock = 16;

/// Rows [q_begin, q_begin + q_size) against keys [k_begin, k_begin + k_size), of all heads or one.
struct Slice {
  std::int64_t q_begin = 0, q_size = 0, k_begin = 0, k_size = 0;
  bool one_head = false;
  std::int64_t batch = 0, kv_head = 0;
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

/// One KV head with its group of query heads, of one sequence. With dropout the first, whose
/// streams have the same numbers in the smaller call.
Slice slice_of_head(const Case& c) {
  Slice slice;
  slice.q_size = c.q_len;
  slice.k_size = c.kv_len;
  slice.one_head = true;
  const bool first = c.dropout.probability > 0;
  slice.batch = first ? 0 : c.batch - 1;
  slice.kv_head = first ? 0 : c.kv_heads - 1;
  return slice;
}

/// Heads and sequences of the slice of a [batch, heads, ...] tensor.
template <class View>
View slice_heads(const Slice& slice, View view, std::int64_t group) {
  if (!slice.one_head) return view;
  if (view.shape[0] != 1) view = slice_axis(view, 0, slice.batch, 1);
  return slice_axis(view, 1, slice.kv_head * group, group);
}

void slice_mask(const Slice& slice, std::int64_t group, TensorView& mask) {
  const auto cut = [&](int from_end, std::int64_t begin, std::int64_t size) {
    if (mask.rank < from_end) return;
    const auto axis = static_cast<std::size_t>(mask.rank - from_end);
    if (mask.shape[axis] != 1) mask = slice_axis(mask, axis, begin, size);
  };
  cut(1, slice.k_begin, slice.k_size);
  cut(2, slice.q_begin, slice.q_size);
  if (!slice.one_head) return;
  cut(3, slice.kv_head * group, group);
  cut(4, slice.batch, 1);
}

/// The call on a slice. Band, dropout and RoPE are moved so that every (i, j) keeps its meaning.
AttentionParams params_of(const Inputs& inputs, const Slice& slice) {
  const Case& c = inputs.c;
  const std::int64_t group = c.q_heads / c.kv_heads;
  AttentionParams p = inputs.params;
  TensorView& q = p.q.segments[0].tensor;
  TensorView& k = p.k.segments[0].tensor;
  TensorView& v = p.v.segments[0].tensor;
  q = slice_heads(slice, slice_axis(q, 2, slice.q_begin, slice.q_size), group);
  k = slice_heads(slice, slice_axis(k, 2, slice.k_begin, slice.k_size), 1);
  v = slice_heads(slice, slice_axis(v, 2, slice.k_begin, slice.k_size), 1);
  if (c.band) {
    const Bounds bounds = bounds_of(c);
    const std::int64_t shift = slice.q_begin - slice.k_begin;
    // Blocks of queries begin where the band does, so that both sides stay >= 0.
    if (!slice.one_head) {
      p.band = Band::window(Anchor::top_left, -std::min<std::int64_t>(bounds.low + shift, 0),
                            std::max<std::int64_t>(bounds.high + shift, 0));
    }
  }
  if (p.mask.present()) slice_mask(slice, group, p.mask);
  if (slice.one_head) {
    if (p.sinks.present()) p.sinks = slice_axis(p.sinks, 0, slice.kv_head * group, group);
    TensorView& streams = p.dropout.streams;
    if (streams.present()) streams = slice_heads(slice, streams, group);
    for (TensorView* table : {&p.rope.cos, &p.rope.sin}) {
      if (table->rank == 3 && table->shape[0] != 1) {
        *table = slice_axis(*table, 0, slice.batch, 1);
      }
    }
    for (TensorView* offsets : {&p.rope.q_offsets, &p.rope.k_offsets}) {
      if (offsets->present()) *offsets = slice_axis(*offsets, 0, slice.batch, 1);
    }
  }
  p.dropout.row_origin += slice.q_begin;
  p.dropout.column_origin += slice.k_begin;
  p.rope.q_offset += slice.q_begin;
  p.rope.k_offset += slice.k_begin;
  return p;
}

Tensor like(const TensorView& view, DType dtype) {
  return make_tensor(dtype, {view.shape.begin(), view.shape.begin() + view.rank});
}

void accumulate(ErrorSums& sums, const TensorView& got, const Tensor& oracle,
                const Tensor& baseline) {
  for_each_element(got, [&](std::int64_t offset, const Index& at) {
    sums.add({at, got.rank}, load(got.data, got.dtype, offset), oracle.get(at), baseline.get(at));
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
  const auto run = [&](const char* kernel, DType dtype, DType lse, Results& made) {
    made.out = like(part(results.list[0]), dtype);
    made.lse = make_tensor(lse, {inputs.c.batch, inputs.c.q_heads, slice.q_size});
    args.out = made.out.view;
    args.lse = made.lse.view;
    return run_trusted(args, kernel);
  };
  Results oracle, baseline;
  if (Status s = run("cpu.reference.forward", DType::f32, DType::f64, oracle); !s.ok()) return s;
  if (Status s = run("cpu.baseline.forward", inputs.c.out_dtype(), DType::f32, baseline); !s.ok())
    return s;
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
  const std::int64_t group = inputs.c.q_heads / inputs.c.kv_heads;
  const auto queries = [&](const auto& view) {
    return slice_heads(slice, slice_axis(view, 2, slice.q_begin, slice.q_size), group);
  };
  args.out = TensorView(queries(saved.out[0].view));
  args.lse = queries(saved.lse.view);
  if (!inputs.dout.empty()) args.dout = TensorView(queries(inputs.dout[0].view));
  if (inputs.c.dlse) args.dlse = queries(inputs.dlse.view);
  struct Pair {
    MutableTensorView got;
    Tensor oracle, baseline;
  };
  std::vector<Pair> pairs;
  BackwardArgs yardstick = args;
  for (const std::string& name : names) {
    const Output* result = results.find(name);
    if (result == nullptr) continue;
    const MutableTensorView got =
        name == "dq" ? queries(result->tensor.view) : slice_heads(slice, result->tensor.view, 1);
    pairs.push_back({got, like(got, DType::f32), like(got, got.dtype)});
    const auto want = [&](BackwardArgs& of, const Tensor& tensor) {
      (name == "dq" ? of.dq : name == "dk" ? of.dk : of.dv) = tensor.view;
    };
    want(args, pairs.back().oracle);
    want(yardstick, pairs.back().baseline);
  }
  if (pairs.empty()) return {};
  if (Status s = run_trusted(args, "cpu.reference.backward"); !s.ok()) return s;
  if (Status s = run_trusted(yardstick, "cpu.baseline.backward"); !s.ok()) return s;
  std::size_t next = 0;
  for (const std::string& name : names) {
    if (results.find(name) == nullptr) continue;
    accumulate(sums_of(all, name), pairs[next].got, pairs[next].oracle, pairs[next].baseline);
    ++next;
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
         c.compute() != DType::f64 && !c.expanded_dout && c.batch > 0;
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
  const Slice head = slice_of_head(c);
  if (Status s = sample_backward(inputs, results, *saved, head, {"dk", "dv"}, all); !s.ok()) {
    return s;
  }
  return all;
}

}  // namespace fovea::cases
