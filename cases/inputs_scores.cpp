// Inputs that shape the scores: mask, slopes, sinks, dropout, RoPE tables.
#include <algorithm>
#include <cmath>

#include "cases/inputs.h"
#include "cases/random_numbers.h"

namespace fovea::cases::detail {
namespace {

std::uint64_t sub_seed(const Inputs& inputs, const char* what) {
  return hash_of(name_of(inputs.c)) ^ hash_of(what) ^ inputs.seed << 20;
}

/// Position of a mask element in the full [batch, q_heads, q_len, kv_len]; 0 where broadcast.
struct Position {
  std::int64_t b = 0, h = 0, i = 0, j = 0;
};

Position position_of(const std::string& dims, const Index& at) {
  Position p;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 'b') p.b = at[d];
    if (dims[d] == 'h') p.h = at[d];
    if (dims[d] == 'q') p.i = at[d];
    if (dims[d] == 'k') p.j = at[d];
  }
  return p;
}

/// Contents of a mask: whether an element hides, and what it adds otherwise.
class MaskValues {
 public:
  explicit MaskValues(const Inputs& inputs)
      : c_(inputs.c), random_(sub_seed(inputs, "mask")), bool_(c_.mask.dtype == DType::boolean) {
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      prefix_.push_back(random_.between(c_.kv_len / 2, c_.kv_len));
    }
  }

  double at(const Position& p) {
    const bool hidden = hides(p);
    if (bool_) return hidden ? 0 : 1;
    return hidden ? -HUGE_VAL : added(p);
  }

 private:
  bool hides(const Position& p) {
    if (c_.mask.fully_masked_row && p.i % 3 == 1) return true;
    const std::int64_t prefix = prefix_[static_cast<std::size_t>(p.b)];
    switch (c_.mask.contents) {
      case MaskContents::random:
        return random_.chance(0.25);
      case MaskContents::padding:
        return p.j >= prefix;
      case MaskContents::gap:
        return p.j >= prefix || (p.j >= prefix / 4 && p.j < prefix / 2);
      case MaskContents::document:
        return p.i * 3 / std::max<std::int64_t>(c_.q_len, 1) !=
               p.j * 3 / std::max<std::int64_t>(c_.kv_len, 1);
      default:
        return false;
    }
  }

  double added(const Position& p) {
    switch (c_.mask.contents) {
      case MaskContents::ones:
        return 0;
      case MaskContents::binary:
        return random_.chance(0.5) ? 1 : 0;
      case MaskContents::lowest:
        return p.i == 0 || random_.chance(0.3) ? -largest_finite(c_.mask.dtype) : random_.normal();
      default:
        return random_.normal();
    }
  }

  const Case& c_;
  RandomNumbers random_;
  bool bool_;
  std::vector<std::int64_t> prefix_;
};

std::int64_t full_size(const Case& c, char letter) {
  switch (letter) {
    case 'b':
      return c.batch;
    case 'h':
      return c.q_heads;
    case 'q':
      return c.q_len;
    default:
      return c.kv_len;
  }
}

/// Memory for the mask in its layout.
Tensor allocate_mask(const Case& c) {
  const std::string& dims = c.mask.dims;
  std::vector<std::int64_t> shape;
  for (const char letter : dims) shape.push_back(letter == '1' ? 1 : full_size(c, letter));
  const std::size_t last = shape.size() - 1;
  std::vector<std::int64_t> sizes = shape;
  if (c.mask.layout == MaskLayout::odd) sizes[last] = (sizes[last] | 1) + 2;
  if (c.mask.layout == MaskLayout::step2) sizes[last] *= 2;
  if (c.mask.layout == MaskLayout::transposed) std::swap(sizes[last], sizes[last - 1]);
  Tensor tensor = make_tensor(c.mask.dtype, sizes, kPlain, Layout::bhsd, c.unaligned);
  MutableTensorView& view = tensor.view;
  if (c.mask.layout == MaskLayout::transposed) {
    std::swap(view.strides[last], view.strides[last - 1]);
  }
  if (c.mask.layout == MaskLayout::step2) view.strides[last] = 2;
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  if (view.elements() == 0) view.data = nullptr;
  return tensor;
}

}  // namespace

void make_mask(Inputs& inputs) {
  const Case& c = inputs.c;
  if (c.mask.dtype == DType::none) return;
  inputs.mask = allocate_mask(c);
  MaskValues values(inputs);
  if (c.batch > 0) {
    inputs.mask.fill([&](const Index& at) { return values.at(position_of(c.mask.dims, at)); });
  }
  if (c.mask.layout == MaskLayout::expanded) {
    constexpr std::string_view kFull = "bhqk";
    for (std::size_t d = 0; d < c.mask.dims.size(); ++d) {
      if (c.mask.dims[d] != '1') continue;
      inputs.mask.view.shape[d] = full_size(c, kFull[kFull.size() - c.mask.dims.size() + d]);
      inputs.mask.view.strides[d] = 0;
    }
  }
  inputs.params.mask = inputs.mask.view;
}

void make_slopes_and_sinks(Inputs& inputs) {
  const Case& c = inputs.c;
  RandomNumbers random(sub_seed(inputs, "sinks"));
  if (c.alibi != SlopeKind::none) {
    const bool per_batch = c.alibi == SlopeKind::per_batch;
    inputs.slopes = per_batch ? make_tensor(DType::f32, {c.batch, c.q_heads})
                              : make_tensor(DType::f32, {c.q_heads});
    inputs.slopes.fill([&](const Index& at) {
      const std::int64_t h = per_batch ? at[1] + at[0] : at[0];
      return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(c.q_heads));
    });
    inputs.params.alibi = {inputs.slopes.view, c.alibi_anchor};
  }
  if (c.sinks != SinkKind::none) {
    inputs.sinks = make_tensor(DType::f32, {c.q_heads});
    inputs.sinks.fill([&](const Index& at) {
      return c.sinks == SinkKind::some && at[0] % 2 == 1 ? -HUGE_VAL : 2 * random.normal();
    });
    inputs.params.sinks = inputs.sinks.view;
  }
}

void make_dropout(Inputs& inputs) {
  const Case& c = inputs.c;
  if (c.dropout.probability == 0) return;
  RandomNumbers random(sub_seed(inputs, "dropout"));
  Dropout& dropout = inputs.params.dropout;
  dropout.probability = c.dropout.probability;
  dropout.seed = random.next() >> 12;  // exact as f64, through which tensors are filled
  dropout.offset = random.next() & 0xFFFFFFFFu;
  dropout.row_origin = c.dropout.row_origin;
  dropout.column_origin = c.dropout.column_origin;
  if (c.dropout.device_seed) {
    inputs.drop_seed = make_tensor(DType::i64, {1});
    inputs.drop_offset = make_tensor(DType::i64, {1});
    inputs.drop_seed.set({}, static_cast<double>(dropout.seed));
    inputs.drop_offset.set({}, static_cast<double>(dropout.offset));
    dropout.seed_tensor = inputs.drop_seed.view;
    dropout.offset_tensor = inputs.drop_offset.view;
    dropout.seed = 1;  // a kernel that ignores the tensors is found out
    dropout.offset = 1;
  }
  if (c.dropout.streams) {
    inputs.drop_streams = make_tensor(DType::i64, {c.batch, c.q_heads});
    inputs.drop_streams.fill(
        [&](const Index&) { return static_cast<double>(random.next() & 0xFFFFFFFFu); });
    dropout.streams = inputs.drop_streams.view;
  }
}

void make_rope(Inputs& inputs) {
  const Case& c = inputs.c;
  if (!c.rope.enabled) return;
  RandomNumbers random(sub_seed(inputs, "rope"));
  constexpr std::int64_t kMaxBatchOffset = 7;
  Rope& rope = inputs.params.rope;
  const std::int64_t rotary_dim = c.rope.rotary_dim == 0 ? c.head_dim : c.rope.rotary_dim;
  const std::int64_t pairs = rotary_dim / 2;
  const std::int64_t rows = std::max(c.q_len + c.rope.q_offset, c.kv_len + c.rope.k_offset) +
                            (c.rope.offsets_per_batch ? kMaxBatchOffset : 0);
  const bool duplicated = c.rope.table == RopeTable::duplicated;
  const std::int64_t columns = duplicated ? rotary_dim : pairs;
  const auto make = [&](double (*function)(double)) {
    std::vector<std::int64_t> shape{rows, columns};
    if (c.rope.batch != TableBatch::none) {
      shape.insert(shape.begin(), c.rope.batch == TableBatch::each ? c.batch : 1);
    }
    Tensor table = make_tensor(c.rope.dtype, shape);
    table.fill([&](const Index& at) {
      const bool batched = c.rope.batch != TableBatch::none;
      const std::int64_t row = batched ? at[1] + 3 * at[0] : at[0];
      const std::int64_t column = batched ? at[2] : at[1];
      const std::int64_t pair = !duplicated                              ? column
                                : c.rope.style == RopeStyle::interleaved ? column / 2
                                                                         : column % pairs;
      const double frequency =
          std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
      return function(static_cast<double>(row) * frequency);
    });
    return table;
  };
  inputs.cos = make([](double x) { return std::cos(x); });
  inputs.sin = make([](double x) { return std::sin(x); });
  rope.cos = inputs.cos.view;
  rope.sin = inputs.sin.view;
  rope.style = c.rope.style;
  rope.table = c.rope.table;
  rope.rotary_dim = c.rope.rotary_dim;
  rope.q_offset = c.rope.q_offset;
  rope.k_offset = c.rope.k_offset;
  rope.rotate_q = !c.rope.k_only;
  rope.rotate_k = !c.rope.q_only;
  if (c.rope.offsets_per_batch) {
    inputs.q_offsets = make_tensor(DType::i32, {c.batch});
    inputs.k_offsets = make_tensor(DType::i64, {c.batch});
    for (const Tensor* offsets : {&inputs.q_offsets, &inputs.k_offsets}) {
      offsets->fill(
          [&](const Index&) { return static_cast<double>(random.between(0, kMaxBatchOffset)); });
    }
    rope.q_offsets = inputs.q_offsets.view;
    rope.k_offsets = inputs.k_offsets.view;
  }
}

}  // namespace fovea::cases::detail
