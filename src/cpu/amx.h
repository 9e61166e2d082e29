// AMX: tile registers of 16 rows x 16 words, and the product of two of them, bf16 pairs to f32.
//
// TDPBF16PS takes 16 cycles and 52 until its result is there: four sums side by side keep it busy,
// and a block of 2 x 2 of them needs one load, of 8 cycles, for each product.
#pragma once

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

/// C [16 kDown, 16 kAcross] = [C +] A B. depth: words, whole tiles of them. A [rows, depth] has
/// rows of adjoining words, B [depth, columns] pairs of rows.
template <int kDown, int kAcross, bool kAdd>
FOVEA_INLINE void multiply_block(const float* a, std::int64_t a_row, const float* b,
                                 std::int64_t b_row, std::int64_t depth, float* c,
                                 std::int64_t c_row) {
  if constexpr (kAdd) {
    load_tile<0>(c, c_row);
    if constexpr (kAcross > 1) load_tile<1>(c + kAmxRows, c_row);
    if constexpr (kDown > 1) load_tile<2>(c + kAmxRows * c_row, c_row);
    if constexpr (kDown > 1 && kAcross > 1) load_tile<3>(c + kAmxRows * c_row + kAmxRows, c_row);
  } else {
    clear_tile<0>();
    if constexpr (kAcross > 1) clear_tile<1>();
    if constexpr (kDown > 1) clear_tile<2>();
    if constexpr (kDown > 1 && kAcross > 1) clear_tile<3>();
  }
  for (; depth > 0; depth -= kAmxRows, a += kAmxRows, b += kAmxRows * b_row) {
    load_tile<4>(a, a_row);
    load_tile<6>(b, b_row);
    multiply_tiles<0, 4, 6>();
    if constexpr (kAcross > 1) {
      load_tile<7>(b + kAmxRows, b_row);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (kDown > 1) {
      load_tile<5>(a + kAmxRows * a_row, a_row);
      multiply_tiles<2, 5, 6>();
      if constexpr (kAcross > 1) multiply_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(c, c_row);
  if constexpr (kAcross > 1) store_tile<1>(c + kAmxRows, c_row);
  if constexpr (kDown > 1) store_tile<2>(c + kAmxRows * c_row, c_row);
  if constexpr (kDown > 1 && kAcross > 1) store_tile<3>(c + kAmxRows * c_row + kAmxRows, c_row);
}

/// The same for up to 2 x 2 tiles: those that hold the first `rows` and `columns` of C.
template <bool kAdd>
FOVEA_INLINE void multiply_block(std::int64_t rows, std::int64_t columns, const float* a,
                                 std::int64_t a_row, const float* b, std::int64_t b_row,
                                 std::int64_t depth, float* c, std::int64_t c_row) {
  if (rows > kAmxRows && columns > kAmxRows)
    multiply_block<2, 2, kAdd>(a, a_row, b, b_row, depth, c, c_row);
  else if (rows > kAmxRows)
    multiply_block<2, 1, kAdd>(a, a_row, b, b_row, depth, c, c_row);
  else if (columns > kAmxRows)
    multiply_block<1, 2, kAdd>(a, a_row, b, b_row, depth, c, c_row);
  else
    multiply_block<1, 1, kAdd>(a, a_row, b, b_row, depth, c, c_row);
}

}  // namespace
}  // namespace fovea::cpu
