// Sets of up to 64 elements of a tile's row or column, as the bits of a word: what a mask shows,
// and what dropout keeps.
#pragma once

#include "cpu/simd_elements.h"
#include "cpu/tile_pack.h"

namespace fovea::cpu {
namespace {

FOVEA_INLINE std::uint64_t first_bits(std::int64_t n) {
  return n >= 64 ? ~std::uint64_t{0} : n <= 0 ? 0 : (std::uint64_t{1} << n) - 1;
}
/// Bits [begin, end) of a word.
FOVEA_INLINE std::uint64_t bits_between(std::int64_t begin, std::int64_t end) {
  return first_bits(end) & ~first_bits(begin);
}

/// Word n's bit x <-> word x's bit n.
inline void transpose_bits(std::uint64_t* words) {
  std::uint64_t mask = 0x00000000ffffffffu;
  for (int width = 32; width != 0; width /= 2, mask ^= mask << width)
    for (int n = 0; n < 64; n = (n + width + 1) & ~width) {
      const std::uint64_t swap = ((words[n] >> width) ^ words[n + width]) & mask;
      words[n] ^= swap << width;
      words[n + width] ^= swap;
    }
}

/// Which of `n` <= 64 bytes, `step` apart, are not 0.
FOVEA_INLINE std::uint64_t bits_of_bytes(const unsigned char* bytes, std::int64_t step,
                                         std::int64_t n) {
#if defined(__AVX512BW__)
  if (step == 1) {
    const __m512i some = _mm512_maskz_loadu_epi8(first_bits(n), bytes);
    return _mm512_test_epi8_mask(some, some);
  }
#elif defined(__AVX2__)
  if (step == 1 && n == 64) {
    const auto* at = reinterpret_cast<const __m256i*>(bytes);
    const auto zeros = [](__m256i x) {
      return static_cast<std::uint32_t>(
          _mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256())));
    };
    const std::uint64_t high = zeros(_mm256_loadu_si256(at + 1));
    return ~(high << 32 | zeros(_mm256_loadu_si256(at)));
  }
#endif
  std::uint64_t bits = 0;
  for (std::int64_t x = 0; x < n; ++x) bits |= std::uint64_t{bytes[x * step] != 0} << x;
  return bits;
}

/// Which of 64 floats are not -infinity.
FOVEA_INLINE std::uint64_t bits_of_bias(const float* bias) {
  std::uint64_t bits = 0;
  for (int x = 0; x < 64; x += kLanes)
    bits |= bits_of(equal(load(bias + x), splat(-kInfinity))) << x;
  return ~bits;
}

// Dropout: contract/philox.h for 16 neighbouring column blocks at a time.

constexpr int kBlocks = 16;

/// Words w[n][x] of Philox4x32-10 for the counters (row_block, column_block + x, stream, offset).
inline void philox_blocks(std::uint64_t key, std::uint32_t row_block, std::uint32_t column_block,
                          std::uint32_t stream, std::uint32_t offset, std::uint32_t w[4][kBlocks]) {
  constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#if defined(__AVX512F__)
  const auto set = [](std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); };
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i c0 = set(row_block), c1 = _mm512_add_epi32(set(column_block), lanes);
  __m512i c2 = set(stream), c3 = set(offset);
  const auto multiply = [](__m512i x, __m512i by, __m512i& high) {
    constexpr Mask kOdd = 0xaaaa;
    const __m512i even = _mm512_maskz_mul_epu32(0xff, x, by);
    const __m512i odd = _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, x, 32), by);
    high = _mm512_mask_blend_epi32(kOdd, _mm512_maskz_srli_epi64(0xff, even, 32), odd);
    return _mm512_mask_blend_epi32(kOdd, even, _mm512_maskz_slli_epi64(0xff, odd, 32));
  };
  for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) {
    __m512i high0, high1;
    const __m512i low0 = multiply(c0, set(kMul0), high0), low1 = multiply(c2, set(kMul1), high1);
    c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), set(k0));
    c1 = low1;
    c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), set(k1));
    c3 = low0;
  }
  _mm512_storeu_si512(w[0], c0);
  _mm512_storeu_si512(w[1], c1);
  _mm512_storeu_si512(w[2], c2);
  _mm512_storeu_si512(w[3], c3);
#else
  for (int x = 0; x < kBlocks; ++x) {
    w[0][x] = row_block;
    w[1][x] = column_block + static_cast<std::uint32_t>(x);
    w[2][x] = stream;
    w[3][x] = offset;
  }
  for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1)
    for (int x = 0; x < kBlocks; ++x) {
      const std::uint64_t p0 = std::uint64_t{kMul0} * w[0][x], p1 = std::uint64_t{kMul1} * w[2][x];
      const std::uint32_t c0 = static_cast<std::uint32_t>(p1 >> 32) ^ w[1][x] ^ k0;
      const std::uint32_t c2 = static_cast<std::uint32_t>(p0 >> 32) ^ w[3][x] ^ k1;
      w[0][x] = c0;
      w[1][x] = static_cast<std::uint32_t>(p1);
      w[2][x] = c2;
      w[3][x] = static_cast<std::uint32_t>(p0);
    }
#endif
}

/// Which of the 32 halves of 16 words are at least `threshold`, the low half first.
FOVEA_INLINE std::uint64_t kept_halves(const std::uint32_t* w, std::uint32_t threshold) {
#if defined(__AVX512BW__)
  return _mm512_cmpge_epu16_mask(_mm512_loadu_si512(w),
                                 _mm512_set1_epi16(static_cast<short>(threshold)));
#else
  std::uint64_t bits = 0;
  for (int x = 0; x < kBlocks; ++x) {
    bits |= std::uint64_t{(w[x] & 0xffffu) >= threshold} << (2 * x);
    bits |= std::uint64_t{(w[x] >> 16) >= threshold} << (2 * x + 1);
  }
  return bits;
#endif
}

/// Bytes of two halves in turn: what the two words of a row keep, by columns.
FOVEA_INLINE std::uint64_t interleave_bytes(std::uint64_t even, std::uint64_t odd) {
  const auto spread = [](std::uint64_t x) {
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    return (x | x << 8) & 0x00ff00ff00ff00ffu;
  };
  return spread(even) | spread(odd) << 8;
}

/// What dropout keeps of one (batch, head).
class Keep {
 public:
  Keep() = default;
  Keep(const DropoutArgs& args, std::int64_t batch, std::int64_t head, std::int64_t q_heads)
      : args_(&args), stream_(stream_of(args, batch, head, q_heads)) {}

  /// bits[n]: which of the 64 keys from `key` on row `row` + n keeps.
  void along(std::int64_t row, std::int64_t rows, std::int64_t key, std::uint64_t* bits) const {
    const std::int64_t first = row + args_->row_origin, end = first + rows;
    const std::int64_t column = key + args_->column_origin;
    for (std::int64_t block = first / 16 * 16; block < end; block += 16)
      for (std::int64_t r = block; r < block + 8; ++r) {
        const bool upper = first <= r && r < end, lower = first <= r + 8 && r + 8 < end;
        if (!upper && !lower) continue;
        std::uint64_t pair[2];
        row_pair(r, column, pair);
        if (upper) bits[r - first] = pair[0];
        if (lower) bits[r + 8 - first] = pair[1];
      }
  }

 private:
  /// Rows r and r + 8, 64 columns from `column` on.
  void row_pair(std::int64_t r, std::int64_t column, std::uint64_t* pair) const {
    aligned_pair(r, column / 16, pair);
    const std::int64_t within = column % 16;
    if (within == 0) return;
    std::uint64_t more[2];
    aligned_pair(r, column / 16 + 4, more);
    for (int n = 0; n < 2; ++n) pair[n] = pair[n] >> within | more[n] << (64 - within);
  }
  void aligned_pair(std::int64_t r, std::int64_t cell, std::uint64_t* pair) const {
    pair[0] = pair[1] = 0;
    if (args_->threshold > 0xffff) return;
    std::uint32_t w[4][kBlocks];
    const auto row_block = static_cast<std::uint32_t>((r >> 4) << 3 | (r & 7));
    philox_blocks(stream_.seed, row_block, static_cast<std::uint32_t>(cell * 4), stream_.stream,
                  stream_.offset, w);
    for (int n = 0; n < 2; ++n)
      pair[n] = interleave_bytes(kept_halves(w[2 * n], args_->threshold),
                                 kept_halves(w[2 * n + 1], args_->threshold));
  }

  const DropoutArgs* args_ = nullptr;
  philox::Stream stream_{};
};

}  // namespace
}  // namespace fovea::cpu
