#include "cases/work.h"

#include "cases/inputs.h"

namespace fovea::cases {

double visible_pairs(const Case& c) {
  const Lengths lengths = lengths_of(c);
  double pairs = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t i = 0; i < lengths.q[static_cast<std::size_t>(b)]; ++i) {
      pairs += static_cast<double>(keys_of_row(c, lengths, b, i).size());
    }
  }
  return pairs * static_cast<double>(c.q_heads);
}

double flops_of(const Case& c, Direction direction) {
  const double forward = 2.0 * static_cast<double>(c.head_dim + c.v_head_dim) * visible_pairs(c);
  return direction == Direction::forward ? forward : 2.5 * forward;
}

double tiled_flops_of(const Case& c) {
  const auto whole = [](std::int64_t n) { return static_cast<double>((n + 63) / 64 * 64); };
  return 2 * (whole(c.head_dim) + whole(c.v_head_dim)) * whole(c.q_len) * whole(c.kv_len) *
         static_cast<double>(c.batch * c.q_heads);
}

double read_bytes_of(const Case& c, Direction direction) {
  const Lengths lengths = lengths_of(c);
  double queries = 0, keys = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    queries += static_cast<double>(lengths.q[static_cast<std::size_t>(b)] * c.q_heads);
    keys += static_cast<double>(keys_of_sequence(c, lengths, b).size() * c.kv_heads);
  }
  const auto row_bytes = [](DType dtype, std::int64_t width) {
    return static_cast<double>(size_of(dtype) * width);
  };
  const double out =
      direction == Direction::forward ? 0 : 2 * queries * row_bytes(c.out_dtype(), c.v_head_dim);
  return queries * row_bytes(c.q_dtype, c.head_dim) + out +
         keys * (row_bytes(c.k_dtype, c.head_dim) + row_bytes(c.v_dtype, c.v_head_dim));
}

}  // namespace fovea::cases
