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

}  // namespace fovea::cases
