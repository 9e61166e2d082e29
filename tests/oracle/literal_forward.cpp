// The formulas once more, differently organised: each head is reduced to plain matrices q^, k^, v,
// a bias that holds mask, band and ALiBi (hidden = -inf), and a dropout matrix; what is left is a
// softmax of a matrix.
#include <cmath>
#include <limits>

#include "contract/philox.h"
#include "cpu/reference_elements.h"
#include "tests/oracle/random_case.h"

namespace fovea::oracle {
namespace {

using Matrix = std::vector<std::vector<double>>;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

double element(const TensorView& view, const Shape& index) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * view.strides[d];
  return is_floating(view.dtype) ? reference::load(view, offset)
                                 : static_cast<double>(reference::load_integer(view, offset));
}

/// Concatenates the segments, gathers the pages or cuts out the sequence; applies the norm.
Matrix rows_of(const RandomCase& c, const Operand& operand, bool is_q, bool normed, std::int64_t b,
               std::int64_t head) {
  const auto n = static_cast<std::size_t>(b);
  const std::int64_t rows = is_q ? c.q_lens[n] : c.kv_lens[n];
  Matrix all;
  for (int s = 0; s < operand.count; ++s) {
    const TensorView& t = operand.segments[s].tensor;
    const bool packed = is_q ? c.packed_q : c.packed_k;
    const bool paged = c.paged && !is_q;
    const std::int64_t length = packed || paged ? rows : t.shape[2];
    for (std::int64_t i = 0; i < length; ++i) {
      std::vector<double> row;
      const std::int64_t dim = t.shape[static_cast<std::size_t>(t.rank - 1)];
      for (std::int64_t d = 0; d < dim; ++d) {
        if (paged) {
          const auto page =
              static_cast<std::int64_t>(element(c.params.paged.block_table, {b, i / t.shape[1]}));
          row.push_back(element(t, {page, i % t.shape[1], head, d}));
        } else if (packed) {
          row.push_back(element(t, {(is_q ? c.q_begins : c.k_begins)[n] + i, head, d}));
        } else {
          row.push_back(element(t, {b, head, i, d}));
        }
      }
      if (normed && c.params.qk_norm.enabled) {
        double square = 0;
        for (const double x : row) square += x * x;
        const double rms = std::sqrt(square / static_cast<double>(dim) + c.params.qk_norm.eps);
        const TensorView& weight = operand.segments[s].norm_weight;
        for (std::int64_t d = 0; d < dim; ++d)
          row[static_cast<std::size_t>(d)] *= (weight.present() ? element(weight, {d}) : 1.0) / rms;
      }
      all.push_back(row);
    }
  }
  all.resize(static_cast<std::size_t>(rows));
  return all;
}

void rotate_rows(const RandomCase& c, bool is_q, std::int64_t b, Matrix& rows) {
  const Rope& rope = c.params.rope;
  if (!rope.cos.present() || !(is_q ? rope.rotate_q : rope.rotate_k)) return;
  const TensorView& offsets = is_q ? rope.q_offsets : rope.k_offsets;
  auto position = is_q ? rope.q_offset : rope.k_offset;
  if (offsets.present()) position += static_cast<std::int64_t>(element(offsets, {b}));
  for (auto& row : rows) {
    // x' = x cos + partner(x) sin over full-width tables, as frameworks write it.
    const std::vector<double> x = row;
    for (std::int64_t d = 0; d < rope.rotary_dim; ++d) {
      const std::int64_t half = rope.rotary_dim / 2;
      const bool interleaved = rope.style == RopeStyle::interleaved;
      const bool second = interleaved ? d % 2 == 1 : d >= half;
      const std::int64_t partner =
          interleaved ? (second ? d - 1 : d + 1) : (second ? d - half : d + half);
      std::int64_t entry = d;
      if (rope.table == RopeTable::half) entry = interleaved ? d / 2 : d % half;
      const auto angle = [&](const TensorView& table) {
        if (table.rank == 2) return element(table, {position, entry});
        return element(table, {table.shape[0] == 1 ? 0 : b, position, entry});
      };
      const double turned = x[static_cast<std::size_t>(partner)] * (second ? 1.0 : -1.0);
      row[static_cast<std::size_t>(d)] =
          x[static_cast<std::size_t>(d)] * angle(rope.cos) + turned * angle(rope.sin);
    }
    ++position;
  }
}

double bias_at(const RandomCase& c, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j) {
  const AttentionParams& p = c.params;
  const auto n = static_cast<std::size_t>(b);
  const auto diagonal = [&](Anchor anchor) {
    return anchor == Anchor::top_left ? i : i + c.kv_lens[n] - c.q_lens[n];
  };
  double bias = 0;
  if (p.band) {
    const std::int64_t behind = diagonal(p.band->anchor) - j;
    if (p.band->left != kUnbounded && behind > p.band->left) return kHidden;
    if (p.band->right != kUnbounded && -behind > p.band->right) return kHidden;
  }
  if (p.mask.present()) {
    const std::int64_t at[4] = {b, h, i, j};
    Shape index;
    for (int d = 0; d < p.mask.rank; ++d) {
      const bool broadcast = p.mask.shape[static_cast<std::size_t>(d)] == 1;
      index.push_back(broadcast ? 0 : at[4 - p.mask.rank + d]);
    }
    const double value = element(p.mask, index);
    if (p.mask.dtype == DType::boolean) {
      if (value == 0) return kHidden;
    } else {
      bias += value;
    }
  }
  const TensorView& slopes = p.alibi.slopes;
  if (slopes.present()) {
    const double slope = slopes.rank == 1 ? element(slopes, {h}) : element(slopes, {b, h});
    bias -= slope * static_cast<double>(std::abs(diagonal(p.alibi.anchor) - j));
  }
  return bias;
}

double drop_at(const RandomCase& c, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j) {
  const Dropout& d = c.params.dropout;
  if (d.probability == 0) return 1;
  const std::int64_t id = d.streams.present()
                              ? static_cast<std::int64_t>(element(d.streams, {b, h}))
                              : b * c.q_heads + h;
  const std::uint32_t bits =
      philox::decide({d.seed, static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(d.offset)},
                     static_cast<std::uint64_t>(d.row_origin + i),
                     static_cast<std::uint64_t>(d.column_origin + j));
  const double threshold = std::round(65536 * d.probability);
  return static_cast<double>(bits) < threshold ? 0.0 : 65536 / (65536 - threshold);
}

}  // namespace

Outputs literal_forward(const RandomCase& c) {
  Outputs result{Tensor::filled(DType::f64, c.out_shape(), std::nan("")),
                 Tensor::filled(DType::f64, c.lse_shape(), std::nan(""))};
  const AttentionParams& p = c.params;
  const double scale = p.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      const std::int64_t kv_head = h / (c.q_heads / c.kv_heads);
      Matrix q = rows_of(c, p.q, true, true, b, h), k = rows_of(c, p.k, false, true, b, kv_head);
      const Matrix v = rows_of(c, p.v, false, false, b, kv_head);
      rotate_rows(c, true, b, q);
      rotate_rows(c, false, b, k);
      for (std::size_t i = 0; i < q.size(); ++i) {
        std::vector<double> weights;
        double total = p.sinks.present() ? std::exp(element(p.sinks, {h})) : 0;
        for (std::size_t j = 0; j < k.size(); ++j) {
          double s = 0;
          for (std::size_t d = 0; d < q[i].size(); ++d) s += q[i][d] * k[j][d];
          s *= scale;
          if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
          s += bias_at(c, b, h, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
          weights.push_back(std::exp(s));
          total += weights.back();
        }
        result.lse.put(c.lse_index(b, h, static_cast<std::int64_t>(i)), std::log(total));
        for (std::int64_t d = 0; d < c.v_head_dim; ++d) {
          double sum = 0;
          for (std::size_t j = 0; j < k.size(); ++j)
            sum += weights[j] *
                   drop_at(c, b, h, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)) *
                   v[j][static_cast<std::size_t>(d)];
          result.out.put(c.out_index(b, h, static_cast<std::int64_t>(i), d),
                         total == 0 ? 0 : sum / total);
        }
      }
    }
  return result;
}

}  // namespace fovea::oracle
