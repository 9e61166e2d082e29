// AMX: tile registers of 16 rows x 16 words, and the product of two of them, bf16 pairs to f32.
//
// TDPBF16PS takes 16 cycles and 52 until its result is there: four sums side by side keep it busy,
// and a block of 2 x 2 of them needs one load, of 8 cycles, for each product.
#pragma once

#include <type_traits>

#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

/// Rows of a tile register, and words of its rows.
constexpr int kAmxRows = 16;

/// Tile registers, all of them whole, while it lives. None are left to the thread's owner, whose
/// context switches they would make longer.
class MatrixUnit {
 public:
  MatrixUnit() {
    struct alignas(64) {
      unsigned char palette = 1, first_row = 0, reserved[14] = {};
      unsigned short row_bytes[16] = {};
      unsigned char rows[16] = {};
    } config;
    for (int n = 0; n < 8; ++n) {
      config.row_bytes[n] = kAmxRows * 4;
      config.rows[n] = kAmxRows;
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~MatrixUnit() { asm volatile("tilerelease" ::); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

// GCC 12's own loads do not tell the compiler that they read memory.
template <int kTile>
FOVEA_INLINE void load_tile(const float* p, std::int64_t row) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row * 4), "i"(kTile) : "memory");
}
template <int kTile>
FOVEA_INLINE void store_tile(float* p, std::int64_t row) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row * 4), "i"(kTile) : "memory");
}
template <int kTile>
FOVEA_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kSums, int kA, int kB>
FOVEA_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

/// Operands and result of a product of blocks: C = [C +] A B. depth: words, whole tiles of them.
/// A [rows, depth] has rows of adjoining words, B [depth, columns] pairs of rows.
struct BlockArgs {
  const float* a;
  std::int64_t a_row;
  const float* b;
  std::int64_t b_row;
  std::int64_t depth;
  float* c;
  std::int64_t c_row;
};

/// Products of blocks of up to 2 x 2 tiles, one after the other. The sums of a block are stored
/// among the first products of the next one, each before its tile register is needed again: a store
/// waits for its last product, and others can run meanwhile. C is complete after finish().
template <bool kAdd>
class Blocks {
 public:
  /// Of C, the tiles that hold its first `rows` and `columns`.
  FOVEA_INLINE void multiply(std::int64_t rows, std::int64_t columns, const BlockArgs& block) {
    if (rows > kAmxRows && columns > kAmxRows) {
      if (c_ == nullptr)
        multiply_tiles_of<2, 2, false>(block);
      else
        multiply_tiles_of<2, 2, true>(block);
      c_ = block.c;
      c_row_ = block.c_row;
      return;
    }
    finish();
    if (rows > kAmxRows)
      multiply_and_store<2, 1>(block);
    else if (columns > kAmxRows)
      multiply_and_store<1, 2>(block);
    else
      multiply_and_store<1, 1>(block);
  }

  FOVEA_INLINE void finish() {
    if (c_ == nullptr) return;
    store_sums<0>(c_, c_row_);
    store_sums<1>(c_, c_row_);
    store_sums<2>(c_, c_row_);
    store_sums<3>(c_, c_row_);
    c_ = nullptr;
  }

 private:
  // Tile register n = 2 i + x holds tile (i, x) of C.
  template <int kTile>
  FOVEA_INLINE static float* tile_of(float* c, std::int64_t row) {
    return c + kTile / 2 * kAmxRows * row + kTile % 2 * kAmxRows;
  }
  template <int kTile>
  FOVEA_INLINE static void store_sums(float* c, std::int64_t row) {
    store_tile<kTile>(tile_of<kTile>(c, row), row);
  }
  template <int kTile, bool kStores>
  FOVEA_INLINE void begin_sums(const BlockArgs& block) {
    if constexpr (kStores) store_sums<kTile>(c_, c_row_);
    if constexpr (kAdd)
      load_tile<kTile>(tile_of<kTile>(block.c, block.c_row), block.c_row);
    else
      clear_tile<kTile>();
  }

  template <int kDown, int kAcross, bool kStores>
  FOVEA_INLINE void multiply_tiles_of(const BlockArgs& block) {
    const float* a = block.a;
    const float* b = block.b;
    const auto step = [&](auto first) __attribute__((always_inline)) {
      constexpr bool kFirst = decltype(first)::value;
      load_tile<4>(a, block.a_row);
      load_tile<6>(b, block.b_row);
      if constexpr (kFirst) begin_sums<0, kStores>(block);
      multiply_tiles<0, 4, 6>();
      if constexpr (kAcross > 1) {
        load_tile<7>(b + kAmxRows, block.b_row);
        if constexpr (kFirst) begin_sums<1, kStores>(block);
        multiply_tiles<1, 4, 7>();
      }
      if constexpr (kDown > 1) {
        load_tile<5>(a + kAmxRows * block.a_row, block.a_row);
        if constexpr (kFirst) begin_sums<2, kStores>(block);
        multiply_tiles<2, 5, 6>();
        if constexpr (kAcross > 1) {
          if constexpr (kFirst) begin_sums<3, kStores>(block);
          multiply_tiles<3, 5, 7>();
        }
      }
      a += kAmxRows;
      b += kAmxRows * block.b_row;
    };
    step(std::true_type{});
    for (std::int64_t depth = block.depth - kAmxRows; depth > 0; depth -= kAmxRows)
      step(std::false_type{});
  }

  template <int kDown, int kAcross>
  FOVEA_INLINE void multiply_and_store(const BlockArgs& block) {
    multiply_tiles_of<kDown, kAcross, false>(block);
    store_sums<0>(block.c, block.c_row);
    if constexpr (kAcross > 1) store_sums<1>(block.c, block.c_row);
    if constexpr (kDown > 1) store_sums<2>(block.c, block.c_row);
  }

  float* c_ = nullptr;  ///< the block whose sums are still in tile registers
  std::int64_t c_row_ = 0;
};

}  // namespace
}  // namespace fovea::cpu
