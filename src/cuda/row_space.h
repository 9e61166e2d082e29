// The rows of an operand as kernels walk over them: by queries or by keys, and where a row lies in
// an array of the workspace.
#pragma once

#include "contract/plain_rows.h"

namespace fovea::cuda {

/// Arrays of the workspace are [batch, heads, rows, ..], or, for packed operands, [heads, total,
/// ..], where a sequence has the place it has in the operand.
struct RowSpace {
  plain::Shape shape{};
  plain::Lengths lengths{};
  bool keys = false;    ///< rows go by keys, not by queries
  bool packed = false;  ///< as cu_seqlens of that side

  FOVEA_HD std::int64_t heads() const { return keys ? shape.kv_heads : shape.q_heads; }
  /// Of the longest sequence.
  FOVEA_HD std::int64_t rows() const { return keys ? shape.kv_len : shape.q_len; }
  FOVEA_HD std::int64_t total() const { return keys ? lengths.total_k : lengths.total_q; }
  /// Rows of an array.
  FOVEA_HD std::int64_t array_rows() const {
    return packed ? heads() * total() : shape.batch * heads() * rows();
  }
  /// A row's place among them.
  FOVEA_HD std::int64_t place(const plain::Place& at, std::int64_t row) const {
    return packed ? at.head * total() + at.first_row + row
                  : (at.batch * heads() + at.head) * rows() + row;
  }

  FOVEA_HD std::int64_t first_row(const plain::Sequence& s) const {
    return keys ? s.k_begin : s.q_begin;
  }
  /// Rows that the sequence has, and those of them that count.
  FOVEA_HD std::int64_t capacity(const plain::Sequence& s) const {
    return keys ? s.kv_capacity : s.q_len;
  }
  FOVEA_HD std::int64_t length(const plain::Sequence& s) const { return keys ? s.kv_len : s.q_len; }
};

FOVEA_HD inline RowSpace rows_by_queries(const plain::Call& call) {
  return {call.shape, call.lengths, false, call.lengths.cu_q.data != nullptr};
}
FOVEA_HD inline RowSpace rows_by_keys(const plain::Call& call) {
  return {call.shape, call.lengths, true, call.lengths.cu_k.data != nullptr};
}

/// Blocks for a number of tasks, over which a kernel loops: enough to fill any device a few times.
inline std::int64_t blocks_for(std::int64_t tasks) {
  constexpr std::int64_t kMost = 4096;
  return tasks < kMost ? tasks : kMost;
}

FOVEA_HD inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Tiles of rows of several heads, each a task of one block.
inline constexpr int kTileRows = 16;
inline constexpr int kTileHeads = 8;
FOVEA_HD inline std::int64_t row_tile_tasks(const RowSpace& space) {
  return space.shape.batch * ceil_div(space.rows(), kTileRows) *
         ceil_div(space.heads(), kTileHeads);
}

}  // namespace fovea::cuda
