// Which rows a sequence has, found by a warp: cu_seqlens may have thousands of entries.
#pragma once

#include "contract/plain_rows.h"
#include "cuda/device/thread.h"

namespace fovea::cuda::FOVEA_WORLD {

/// plain::largest_entry, read by the lanes of a warp.
FOVEA_DEVICE std::int64_t largest_entry_by_warp(const plain::Integers& cu, std::int64_t b) {
  std::int64_t largest = 0;
  for (std::int64_t n = lane(); n <= b; n += 32)
    largest = plain::greater(largest, plain::integer_at(cu, n * cu.stride));
  for (int mask = 16; mask > 0; mask >>= 1)
    largest = plain::greater(largest, shuffle_xor(largest, mask));
  return largest;
}

/// plain::sequence_of for all lanes of a warp, which read cu_seqlens together.
FOVEA_DEVICE plain::Sequence sequence_by_warp(const plain::Shape& shape,
                                              const plain::Lengths& lengths, std::int64_t b) {
  plain::LargestEntries largest;
  if (lengths.cu_q.data != nullptr) largest.q = largest_entry_by_warp(lengths.cu_q, b);
  if (lengths.cu_k.data != nullptr) largest.k = largest_entry_by_warp(lengths.cu_k, b);
  return plain::sequence_of(shape, lengths, b, largest);
}

}  // namespace fovea::cuda::FOVEA_WORLD
