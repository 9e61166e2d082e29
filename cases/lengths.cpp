// Lengths of a case's sequences and what each row sees of them.
#include <algorithm>

#include "cases/inputs.h"
#include "cases/random_numbers.h"

namespace fovea::cases {
namespace {

/// Rows behind the last sequence of packed tensors, which nobody may touch.
constexpr std::int64_t kUnownedRows = 3;

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return a > 0 ? kUnbounded : -kUnbounded;
  return sum;
}

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t size : sizes) starts.push_back(starts.back() + size);
  return starts;
}

}  // namespace

Lengths lengths_of(const Case& c) {
  RandomNumbers random(hash_of(name_of(c)));
  // The first sequence has the full length; others any, none among them.
  const auto ragged = [&](std::int64_t b, std::int64_t maximum) {
    if (b == 0) return maximum;
    return random.chance(0.2) ? 0 : random.between(0, maximum);
  };
  Lengths lengths;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const bool packed = c.varlen != IndexKind::none;
    lengths.q.push_back(packed ? ragged(b, c.q_len) : c.q_len);
    lengths.capacity.push_back(packed && c.page_size == 0 ? ragged(b, c.kv_len) : c.kv_len);
    const std::int64_t capacity = lengths.capacity.back();
    std::int64_t used = capacity;
    if (c.seqused != IndexKind::none) {
      // The second one claims more than there is, which is clamped.
      used = b == 1 && c.page_size == 0 ? capacity + 5
             : random.chance(0.2)       ? 0
                                        : random.between((capacity + 1) / 2, capacity);
    }
    lengths.seqused.push_back(used);
    lengths.k.push_back(std::min(used, capacity));
  }
  lengths.q_begin = starts_of(lengths.q);
  lengths.k_begin = starts_of(lengths.capacity);
  lengths.total_q = lengths.q_begin.back() + kUnownedRows;
  lengths.total_k = lengths.k_begin.back() + kUnownedRows;
  return lengths;
}

KeyRange keys_of_row(const Case& c, const Lengths& lengths, std::int64_t b, std::int64_t i) {
  const auto n = static_cast<std::size_t>(b);
  const std::int64_t kv_len = lengths.k[n];
  KeyRange range{0, kv_len};
  if (!c.band) return range;
  const std::int64_t diagonal =
      i + (c.band->anchor == Anchor::bottom_right ? kv_len - lengths.q[n] : 0);
  if (c.band->left != kUnbounded) {
    range.begin = std::clamp(saturating_add(diagonal, -c.band->left), std::int64_t{0}, kv_len);
  }
  if (c.band->right != kUnbounded) {
    range.end = std::clamp(saturating_add(saturating_add(diagonal, c.band->right), 1),
                           std::int64_t{0}, kv_len);
  }
  range.end = std::max(range.begin, range.end);
  return range;
}

KeyRange keys_of_sequence(const Case& c, const Lengths& lengths, std::int64_t b) {
  KeyRange all;
  for (std::int64_t i = 0; i < lengths.q[static_cast<std::size_t>(b)]; ++i) {
    const KeyRange row = keys_of_row(c, lengths, b, i);
    if (row.size() == 0) continue;
    if (all.size() == 0) {
      all = row;
    } else {
      all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
    }
  }
  return all;
}

}  // namespace fovea::cases
