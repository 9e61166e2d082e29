// Random prologues in device memory, and what they do to a row, forth and back, in f64.
#pragma once

#include <cmath>

#include "tests/cuda/operands.h"

namespace fovea::cuda::test {

/// A table of cos or sin with its values [batches, rows, pairs].
struct Table {
  Buffer buffer;
  plain::Angles angles;
  std::vector<double> values;
};

struct RandomPrologue {
  plain::Prologue plain;
  std::vector<Vector> weights;  ///< by segment; empty values: ones
  Table cos, sin;
  std::vector<std::int64_t> offsets;
  Buffer offsets_memory;

  [[nodiscard]] double weight(int segment, std::size_t d) const {
    const auto& values = weights[static_cast<std::size_t>(segment)].values;
    return values.empty() ? 1 : values[d];
  }
  [[nodiscard]] double angle(const Table& table, std::int64_t b, std::int64_t row,
                             std::int64_t pair) const {
    std::int64_t at = row + plain.offset;
    if (!offsets.empty()) at += offsets[static_cast<std::size_t>(b)];
    at = std::clamp(at, std::int64_t{0}, table.angles.rows - 1);
    const std::int64_t batch = table.angles.batch != 0 ? b : 0;
    return table.values[static_cast<std::size_t>(
        (batch * table.angles.rows + at) * (plain.rotary_dim / 2) + pair)];
  }
  void rotate(std::vector<double>& x, std::int64_t b, std::int64_t row, double sign) const {
    if (!plain.rotate) return;
    for (std::int64_t pair = 0; pair < plain.rotary_dim / 2; ++pair) {
      const auto first = static_cast<std::size_t>(plain.interleaved ? 2 * pair : pair);
      const std::size_t second =
          plain.interleaved ? first + 1 : first + static_cast<std::size_t>(plain.rotary_dim / 2);
      const double c = angle(cos, b, row, pair), s = sign * angle(sin, b, row, pair);
      const double a = x[first], other = x[second];
      x[first] = a * c - other * s;
      x[second] = a * s + other * c;
    }
  }
  [[nodiscard]] double inverse_rms(const std::vector<double>& x) const {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return 1 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(plain.eps));
  }
  void apply(std::vector<double>& x, int segment, std::int64_t b, std::int64_t row) const {
    if (plain.norm) {
      const double r = inverse_rms(x);
      for (std::size_t d = 0; d < x.size(); ++d) x[d] *= r * weight(segment, d);
    }
    rotate(x, b, row, 1);
  }
  /// g becomes the gradient of x, the row as it came in; adds to dweights.
  void reverse(const std::vector<double>& x, std::vector<double>& g, int segment, std::int64_t b,
               std::int64_t row, std::vector<double>& dweights) const {
    if (std::all_of(g.begin(), g.end(), [](double y) { return y == 0; })) return;
    rotate(g, b, row, -1);
    if (!plain.norm) return;
    const double r = inverse_rms(x);
    double along = 0;
    for (std::size_t d = 0; d < x.size(); ++d) {
      dweights[static_cast<std::size_t>(segment) * x.size() + d] += r * x[d] * g[d];
      g[d] *= weight(segment, d);
      along += x[d] * g[d];
    }
    along *= r * r / static_cast<double>(x.size());
    for (std::size_t d = 0; d < x.size(); ++d) g[d] = r * (g[d] - x[d] * along);
  }
};

inline Table random_table(Random& random, std::int64_t batches, std::int64_t rows,
                          std::int64_t rotary_dim, bool interleaved, bool duplicated) {
  Table t;
  const std::int64_t pairs = rotary_dim / 2, columns = duplicated ? rotary_dim : pairs;
  const bool aligned = chance(random, 50);
  plain::Angles& a = t.angles;
  a.element = random_element(random);
  a.column = aligned ? 1 : draw(random, 1, 2);
  a.row = aligned ? (columns + 7) / 8 * 8 : columns * a.column + draw(random, 0, 2);
  a.batch = batches > 1 ? rows * a.row : 0;
  a.rows = rows;
  t.buffer = Buffer(static_cast<std::size_t>(batches * rows * a.row * plain::size_of(a.element)));
  a.data = t.buffer.at<void>();
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t pair = 0; pair < pairs; ++pair) {
        const double x = rounded(a.element, normal(random));
        t.values.push_back(x);
        const std::int64_t at = b * a.batch + row * a.row;
        if (!duplicated) {
          t.buffer.set(a.element, at + pair * a.column, x);
          continue;
        }
        const std::int64_t first = interleaved ? 2 * pair : pair;
        t.buffer.set(a.element, at + first * a.column, x);
        t.buffer.set(a.element, at + (interleaved ? first + 1 : first + pairs) * a.column, x);
      }
  t.buffer.send();
  return t;
}

inline RandomPrologue random_prologue(Random& random, const Operand& x, std::int64_t batch,
                                      bool norm, bool rotate) {
  RandomPrologue p;
  p.plain.norm = norm;
  p.plain.eps = 0.01f;
  p.weights.resize(plain::kMostSegments);
  for (int n = 0; norm && n < x.source.segments.count; ++n) {
    if (chance(random, 30)) continue;
    p.weights[static_cast<std::size_t>(n)] = random_vector(random, x.width);
    p.plain.weights[n] = p.weights[static_cast<std::size_t>(n)].floats;
  }
  p.plain.rotate = rotate && x.width > 1;
  if (!p.plain.rotate) return p;
  p.plain.interleaved = chance(random, 50);
  p.plain.duplicated = chance(random, 50);
  p.plain.rotary_dim = chance(random, 50) ? x.width / 2 * 2 : 2 * draw(random, 1, x.width / 2);
  p.plain.offset = draw(random, 0, 5);
  if (chance(random, 40)) {
    for (std::int64_t b = 0; b < batch; ++b) p.offsets.push_back(draw(random, -3, 9));
    p.plain.offsets = integers(random, p.offsets, p.offsets_memory);
  }
  const std::int64_t batches = chance(random, 40) ? batch : 1;
  // Some positions lie beyond the tables.
  const std::int64_t rows = std::max<std::int64_t>(1, x.rows + draw(random, -1, 9));
  for (Table* table : {&p.cos, &p.sin})
    *table = random_table(random, batches, rows, p.plain.rotary_dim, p.plain.interleaved,
                          p.plain.duplicated);
  p.plain.cos = p.cos.angles;
  p.plain.sin = p.sin.angles;
  return p;
}

/// Sizes that a random case draws from: tiles are 16 rows of 8 heads, pieces 8 elements.
struct Sizes {
  std::int64_t batch, heads, rows, width, padded;
};
inline Sizes random_sizes(Random& random) {
  constexpr std::int64_t kWidths[] = {1, 3, 7, 8, 16, 20, 33, 64, 72, 96, 128, 130, 256, 264, 512};
  Sizes s{};
  s.batch = draw(random, 1, 3);
  s.heads = chance(random, 20) ? draw(random, 7, 10) : draw(random, 1, 4);
  s.rows = chance(random, 10) ? 0 : draw(random, 1, 36);
  s.width = kWidths[draw(random, 0, std::size(kWidths) - 1)];
  if (s.width > 128) s.rows = std::min<std::int64_t>(s.rows, 17);
  s.padded = (s.width + 7) / 8 * 8 + 8 * draw(random, 0, 1);
  if (s.padded > 512) s.padded = 512;
  return s;
}

}  // namespace fovea::cuda::test
