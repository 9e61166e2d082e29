// Buffers for CPU calls whose caller brings no workspace: kept for reuse, so that a steady state
// allocates nothing.
#pragma once

#include <cstddef>

namespace fovea {

/// Holds a 64-byte aligned buffer for one run and gives it back at the end.
class BorrowedWorkspace {
 public:
  /// Null data() when memory is exhausted.
  explicit BorrowedWorkspace(std::size_t bytes);
  ~BorrowedWorkspace();
  BorrowedWorkspace(const BorrowedWorkspace&) = delete;
  BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// Frees the buffers that nobody holds.
void free_idle_workspaces();

}  // namespace fovea
