#include "tests/oracle/random_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

namespace fovea::oracle {

std::int64_t RandomCase::draw(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
}

bool RandomCase::chance(double probability) {
  return std::uniform_real_distribution<double>()(random_) < probability;
}

Tensor& RandomCase::keep(Tensor tensor) { return storage_.emplace_back(std::move(tensor)); }

Tensor& RandomCase::normal(const Shape& shape) {
  return keep(Tensor::normal(DType::f64, shape, random_));
}

TensorView RandomCase::integers(const std::vector<std::int64_t>& values) {
  const DType dtype = chance(0.5) ? DType::i32 : DType::i64;
  return keep(Tensor(dtype, {static_cast<std::int64_t>(values.size())},
                     std::vector<double>(values.begin(), values.end())))
      .view();
}

RandomCase::RandomCase(std::uint64_t seed, bool allow_paged) : random_(seed) {
  batch = draw(1, 2);
  kv_heads = draw(1, 2);
  q_heads = kv_heads * draw(1, 3);
  head_dim = draw(1, 8);
  v_head_dim = draw(1, 5);
  description = fmt::format("seed {} b{} hq{} hkv{} d{} dv{}", seed, batch, q_heads, kv_heads,
                            head_dim, v_head_dim);
  draw_lengths(allow_paged);
  draw_operands();
  draw_norm();
  draw_rope();
  draw_scores();
  draw_mask();
  draw_dropout();
}

void RandomCase::draw_lengths(bool allow_paged) {
  packed_q = chance(0.35);
  paged = allow_paged && chance(0.25);
  packed_k = packed_q && !paged;
  const std::int64_t longest_q = draw(0, 6) + draw(0, 1), longest_k = draw(0, 7) + draw(0, 2);
  for (std::int64_t b = 0; b < batch; ++b) {
    q_lens.push_back(packed_q ? draw(0, longest_q) : longest_q);
    kv_capacities.push_back(packed_k ? draw(0, longest_k) : longest_k);
  }
  q_len = longest_q;
  kv_len = longest_k;
  kv_lens = kv_capacities;
  if (paged || chance(0.25)) {
    std::vector<std::int64_t> used;
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto n = static_cast<std::size_t>(b);
      used.push_back(draw(-1, kv_capacities[n] + 2));  // clamped to [0, capacity]
      kv_lens[n] = std::clamp(used[n], std::int64_t{0}, kv_capacities[n]);
    }
    params.seqused_k = integers(used);
    note("seqused");
  }
  if (packed_q) {
    // Rows before the first sequence and behind the last belong to nobody.
    std::vector<std::int64_t> ends{draw(0, 2)};
    for (const std::int64_t n : q_lens) {
      q_begins.push_back(ends.back());
      ends.push_back(ends.back() + n);
    }
    packed_q_rows_ = ends.back() + draw(0, 2);
    params.varlen.cu_seqlens_q = integers(ends);
    params.varlen.max_q_len = q_len;
    params.varlen.max_kv_len = kv_len;
    note("packed");
  }
  if (packed_k) {
    std::vector<std::int64_t> ends{draw(0, 2)};
    for (const std::int64_t n : kv_capacities) {
      k_begins.push_back(ends.back());
      ends.push_back(ends.back() + n);
    }
    packed_k_rows_ = ends.back() + draw(0, 2);
    params.varlen.cu_seqlens_k = integers(ends);
  }
  note(fmt::format("q[{}] kv[{}]", fmt::join(q_lens, ","), fmt::join(kv_lens, ",")));
}

Operand RandomCase::draw_dense(Input::Kind kind, std::int64_t heads, std::int64_t rows,
                               std::int64_t dim) {
  const auto count = static_cast<int>(chance(0.35) ? draw(2, kMaxSegments) : 1);
  Operand operand;
  std::int64_t left = rows;
  for (int n = 0; n < count; ++n) {
    const std::int64_t length = n + 1 == count ? left : draw(0, left);
    left -= length;
    const bool rows_first = chance(0.5);  // memory as [batch, seq, heads, dim]
    Tensor& t =
        normal(rows_first ? Shape{batch, length, heads, dim} : Shape{batch, heads, length, dim});
    operand.add(rows_first ? transposed(t.view(), 1, 2) : t.view());
    inputs.push_back({kind, n, &t});
  }
  if (count > 1) note(fmt::format("segments{}", count));
  return operand;
}

TensorView RandomCase::draw_packed(Input::Kind kind, std::int64_t rows, std::int64_t heads,
                                   std::int64_t dim) {
  Tensor& t = normal({rows, heads, dim});
  inputs.push_back({kind, 0, &t});
  return t.view();
}

void RandomCase::draw_paged() {
  const std::int64_t page_size = draw(1, 3);
  const std::int64_t max_pages = (kv_len + page_size - 1) / page_size;
  const std::int64_t pages = batch * max_pages + 1;
  std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  order.pop_back();
  params.k = normal({pages, page_size, kv_heads, head_dim}).view();
  params.v = normal({pages, page_size, kv_heads, v_head_dim}).view();
  params.paged.block_table =
      keep(Tensor(DType::i32, {batch, max_pages}, std::vector<double>(order.begin(), order.end())))
          .view();
  params.paged.max_kv_len = kv_len;
  note("paged");
}

void RandomCase::draw_operands() {
  using Kind = Input::Kind;
  if (packed_q)
    params.q = draw_packed(Kind::q, packed_q_rows_, q_heads, head_dim);
  else
    params.q = draw_dense(Kind::q, q_heads, q_len, head_dim);
  if (paged) {
    draw_paged();
  } else if (packed_k) {
    params.k = draw_packed(Kind::k, packed_k_rows_, kv_heads, head_dim);
    params.v = draw_packed(Kind::v, packed_k_rows_, kv_heads, v_head_dim);
  } else {
    params.k = draw_dense(Kind::k, kv_heads, kv_len, head_dim);
    params.v = draw_dense(Kind::v, kv_heads, kv_len, v_head_dim);
  }
}

void RandomCase::draw_norm() {
  if (!chance(0.35)) return;
  note("norm");
  params.qk_norm = {true, 0.2};
  for (Operand* operand : {&params.q, &params.k}) {
    for (int n = 0; n < operand->count; ++n) {
      if (chance(0.3)) continue;
      Tensor& weight = normal({head_dim});
      operand->segments[n].norm_weight = weight.view();
      inputs.push_back(
          {operand == &params.q ? Input::Kind::q_weight : Input::Kind::k_weight, n, &weight});
    }
  }
}

void RandomCase::draw_rope() {
  if (head_dim < 2 || !chance(0.4)) return;
  Rope& rope = params.rope;
  rope.style = chance(0.5) ? RopeStyle::interleaved : RopeStyle::half;
  rope.table = chance(0.5) ? RopeTable::half : RopeTable::duplicated;
  rope.rotary_dim = 2 * draw(1, head_dim / 2);
  rope.q_offset = draw(0, 3);
  rope.k_offset = draw(0, 3);
  rope.rotate_q = chance(0.8);
  rope.rotate_k = !rope.rotate_q || chance(0.7);
  std::int64_t extra = 0;
  if (chance(0.4)) {
    std::vector<std::int64_t> q_offsets, k_offsets;
    for (std::int64_t b = 0; b < batch; ++b) {
      q_offsets.push_back(draw(0, 3));
      k_offsets.push_back(draw(0, 3));
    }
    rope.q_offsets = integers(q_offsets);
    if (chance(0.5)) rope.k_offsets = integers(k_offsets);
    extra = 3;
  }
  const std::int64_t rows = std::max<std::int64_t>(1, std::max(q_len, kv_len) + 3 + extra);
  const std::int64_t pairs = rope.rotary_dim / 2;
  const std::int64_t tables = chance(0.5) ? batch : 1;
  const bool ranked = tables > 1 || chance(0.5);
  const DType dtype = chance(0.5) ? DType::f64 : DType::f32;
  for (TensorView* view : {&rope.cos, &rope.sin}) {
    // Values that are no cosine of anything: tables may carry a scale.
    const Tensor values = Tensor::normal(dtype, {tables, rows, pairs}, random_);
    const bool duplicated = rope.table == RopeTable::duplicated;
    Tensor& table = keep(Tensor(dtype, {tables, rows, duplicated ? 2 * pairs : pairs}));
    for (std::int64_t t = 0; t < tables; ++t)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
          const double x = values.at({t, r, pair});
          const bool interleaved = rope.style == RopeStyle::interleaved;
          table.put({t, r, duplicated && interleaved ? 2 * pair : pair}, x);
          if (duplicated) table.put({t, r, interleaved ? 2 * pair + 1 : pair + pairs}, x);
        }
    *view = table.view();
    if (!ranked) {
      view->rank = 2;
      std::copy(view->shape.begin() + 1, view->shape.begin() + 3, view->shape.begin());
      std::copy(view->strides.begin() + 1, view->strides.begin() + 3, view->strides.begin());
    }
  }
  note(fmt::format("rope{}{}r{}{}{}", rope.style == RopeStyle::half ? "H" : "I",
                   rope.table == RopeTable::half ? "h" : "d", rope.rotary_dim,
                   rope.rotate_q ? "q" : "", rope.rotate_k ? "k" : ""));
}

void RandomCase::draw_scores() {
  if (chance(0.5)) params.scale = chance(0.1) ? 0.0 : 0.1 * static_cast<double>(draw(-10, 10));
  const Anchor anchor = chance(0.5) ? Anchor::top_left : Anchor::bottom_right;
  const auto side = [&] { return chance(0.3) ? kUnbounded : draw(0, 4); };
  if (chance(0.5)) {
    params.band = chance(0.5) ? Band::causal(anchor) : Band::window(anchor, side(), side());
    note(fmt::format("band{}", static_cast<int>(anchor)));
  }
  if (chance(0.25)) {
    params.alibi = {normal(chance(0.5) ? Shape{q_heads} : Shape{batch, q_heads}).view(), anchor};
    note("alibi");
  }
  if (chance(0.25)) {
    params.softcap = 0.5 + 0.25 * static_cast<double>(draw(0, 8));
    note("softcap");
  }
  if (chance(0.3)) {
    Tensor& sinks = normal({q_heads});
    for (std::int64_t h = 0; h < q_heads; ++h)
      if (chance(0.2)) sinks.set(h, -std::numeric_limits<double>::infinity());
    params.sinks = sinks.view();
    inputs.push_back({Input::Kind::sinks, 0, &sinks});
    note("sinks");
  }
}

void RandomCase::draw_mask() {
  const bool boolean = chance(0.2);
  if (!boolean && !chance(0.4)) return;
  const std::int64_t full[4] = {batch, q_heads, q_len, kv_len};
  Shape shape;
  for (std::int64_t d = 4 - draw(1, 4); d < 4; ++d) shape.push_back(chance(0.6) ? full[d] : 1);
  Tensor& mask = boolean ? keep(Tensor(DType::boolean, shape)) : normal(shape);
  for (std::int64_t n = 0; n < mask.size(); ++n) {
    if (boolean)
      mask.set(n, chance(0.7) ? 1 : 0);
    else if (chance(0.2))
      mask.set(n, -std::numeric_limits<double>::infinity());
  }
  params.mask = mask.view();
  if (!boolean) inputs.push_back({Input::Kind::mask, 0, &mask});
  note(fmt::format("{}[{}]", boolean ? "bool" : "mask", fmt::join(shape, ",")));
}

void RandomCase::draw_dropout() {
  if (!chance(0.25)) return;
  Dropout& dropout = params.dropout;
  dropout.probability = 0.125 * static_cast<double>(draw(1, 6));
  dropout.seed = random_();
  dropout.offset = static_cast<std::uint64_t>(draw(0, 1000));
  dropout.row_origin = draw(0, 40);
  dropout.column_origin = draw(0, 40);
  if (chance(0.4)) {
    std::vector<double> streams;
    for (std::int64_t n = 0; n < batch * q_heads; ++n)
      streams.push_back(static_cast<double>(draw(0, 0x7FFFFFFF)));
    dropout.streams =
        keep(Tensor(chance(0.5) ? DType::i32 : DType::i64, {batch, q_heads}, streams)).view();
  }
  note("dropout");
}

Shape RandomCase::out_shape() const {
  return packed_q ? Shape{packed_q_rows_, q_heads, v_head_dim}
                  : Shape{batch, q_heads, q_len, v_head_dim};
}
Shape RandomCase::lse_shape() const {
  return packed_q ? Shape{q_heads, packed_q_rows_} : Shape{batch, q_heads, q_len};
}
Shape RandomCase::out_index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
  return packed_q ? Shape{q_row(b, i), h, d} : Shape{b, h, i, d};
}
Shape RandomCase::lse_index(std::int64_t b, std::int64_t h, std::int64_t i) const {
  return packed_q ? Shape{h, q_row(b, i)} : Shape{b, h, i};
}

}  // namespace fovea::oracle
