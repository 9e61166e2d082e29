// Dropout decisions: Philox4x32-10 with a fixed layout, shared by host and device.
//
// Source of the generator: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011.
//
// One call decides eight elements of one 16 x 16 lattice cell, each by 16 bits:
//   rows i, i + 8 and columns j, j + 1, j + 8, j + 9   (i mod 16 < 8, j mod 16 even and < 8)
// which is what one thread of a 16-bit mma tile owns of S; for the transposed tile two neighbouring
// threads own one call's elements and exchange halves.
//
//   key     = seed + high half of the offset * 0x9E3779B97F4A7C15 (64 bits)
//   counter = (row block, column block, stream, low half of the offset), 32 bits each
//   row block    = i with bit 3 removed            i < 2^33
//   column block = j with bits 3 and 0 removed     j < 2^34
//   decision     = bit 3 of i * 4 + bit 3 of j * 2 + bit 0 of j, the index of 16 bits in the result
#pragma once

#include <cstdint>

#include "contract/host_device.h"

namespace fovea::philox {

struct Words {
  std::uint32_t w[4];
};

FOVEA_HD inline Words philox4x32_10(std::uint64_t key, Words counter) {
  constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMul0) * counter.w[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMul1) * counter.w[2];
    counter = {
        {static_cast<std::uint32_t>(p1 >> 32) ^ counter.w[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ counter.w[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return counter;
}

FOVEA_HD inline std::uint32_t row_block(std::uint64_t i) {
  return static_cast<std::uint32_t>(((i >> 4) << 3) | (i & 7));
}
FOVEA_HD inline std::uint32_t column_block(std::uint64_t j) {
  return static_cast<std::uint32_t>(((j >> 4) << 2) | ((j & 7) >> 1));
}
FOVEA_HD inline int decision_index(std::uint64_t i, std::uint64_t j) {
  return static_cast<int>(((i >> 3) & 1) * 4 + ((j >> 3) & 1) * 2 + (j & 1));
}

/// First rows and columns that the counter cannot hold.
inline constexpr std::uint64_t kRowLimit = std::uint64_t{1} << 33;
inline constexpr std::uint64_t kColumnLimit = std::uint64_t{1} << 34;

/// What is the same for all elements of one (batch, head).
struct Stream {
  std::uint64_t seed;
  std::uint32_t stream;
  std::uint32_t offset;
};

/// What the high half of the offset is multiplied by on its way into the key.
inline constexpr std::uint64_t kOffsetFactor = 0x9E3779B97F4A7C15u;

FOVEA_HD inline Stream make_stream(std::uint64_t seed, std::uint64_t offset, std::uint32_t stream) {
  return {seed + (offset >> 32) * kOffsetFactor, stream, static_cast<std::uint32_t>(offset)};
}

/// The eight 16-bit decisions of the cell that (i, j) belongs to.
FOVEA_HD inline Words decide_cell(const Stream& s, std::uint64_t i, std::uint64_t j) {
  return philox4x32_10(s.seed, {{row_block(i), column_block(j), s.stream, s.offset}});
}

/// The 16 bits that decide global element (i, j); the element is dropped when they are < threshold.
FOVEA_HD inline std::uint32_t decide(const Stream& s, std::uint64_t i, std::uint64_t j) {
  const Words words = decide_cell(s, i, j);
  const int index = decision_index(i, j);
  return (words.w[index >> 1] >> (16 * (index & 1))) & 0xFFFFu;
}

/// round(65536 * p): elements whose 16 bits are below it are dropped.
FOVEA_HD inline std::uint32_t threshold(double probability) {
  return static_cast<std::uint32_t>(65536.0 * probability + 0.5);
}

/// Factor of the elements that stay: 65536 / (65536 - t); 0 when all are dropped.
FOVEA_HD inline double keep_scale(std::uint32_t t) {
  return t >= 65536 ? 0.0 : 65536.0 / static_cast<double>(65536 - t);
}

}  // namespace fovea::philox
