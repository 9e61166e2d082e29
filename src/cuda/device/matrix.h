// Tensor-core products of a warp, and the loads that bring their operands into place.
//
// With g = lane / 4 and t = lane % 4 a lane holds of
//   D [16, 8] f32          d[0], d[1] = (g, 2t), (g, 2t + 1)        d[2], d[3]: row g + 8
//   A [16, 16] 16 bits     a[0] = (g, 2t), (g, 2t + 1)   a[1]: row g + 8   a[2], a[3]: column + 8
//   B [16, 8] 16 bits      b[0] = (2t, g), (2t + 1, g)   b[1]: row + 8
//   A [16, 8] tf32         a[0] = (g, t)   a[1]: row g + 8   a[2], a[3]: column t + 4
//   B [8, 8] tf32          b[0] = (t, g)   b[1]: row t + 4
// with the lower column (row of B) in the lower half of a word.
#pragma once

#include "contract/float_types.h"
#include "cuda/device/platform.h"
#include "cuda/device/shared.h"

namespace fovea::cuda::FOVEA_WORLD {

#if defined(__CUDACC__)

/// Reads four 8 x 8 matrices of 16 bits at a time, at constant offsets from where it was made: lane
/// 8 m + i names row i of matrix m, from[index + offset] and on, 16-byte aligned. The compiler is
/// kept from taking the address apart, which costs it a register for every offset.
template <class T>
class MatrixReader {
 public:
  FOVEA_DEVICE MatrixReader(Shared<T> from, int index) : address_(from.address(index)) {
    asm volatile("" : "+r"(address_));
  }
  /// r[m] = (g, 2t), (g, 2t + 1) of matrix m.
  FOVEA_DEVICE void load(std::uint32_t (&r)[4], int offset) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address_ + offset * static_cast<int>(sizeof(T))));
  }
  /// The same of the transposed matrices: r[m] = (2t, g), (2t + 1, g) of matrix m.
  FOVEA_DEVICE void load_transposed(std::uint32_t (&r)[4], int offset) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address_ + offset * static_cast<int>(sizeof(T))));
  }

 private:
  std::uint32_t address_;
};

/// D += A B, T = Bf16 or F16.
template <class T>
FOVEA_DEVICE void multiply(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
FOVEA_DEVICE void multiply<Bf16>(float (&d)[4], const std::uint32_t (&a)[4],
                                 const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
FOVEA_DEVICE void multiply<F16>(float (&d)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// D += A B of f32 patterns of which the hardware reads the upper 19 bits.
FOVEA_DEVICE void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

template <class T>
class MatrixReader {
 public:
  MatrixReader(Shared<T> from, int index) : from_(from), index_(index) {}
  void load(std::uint32_t (&r)[4], int offset) const { read(r, offset, false); }
  void load_transposed(std::uint32_t (&r)[4], int offset) const { read(r, offset, true); }

 private:
  void read(std::uint32_t (&r)[4], int offset, bool transposed) const {
    T* row = from_.range(index_ + offset, static_cast<int>(16 / sizeof(T)));
    emulation::load_matrices(r, row, transposed);
  }

  Shared<T> from_;
  int index_;
};

template <class T>
void multiply(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
inline void multiply<Bf16>(float (&d)[4], const std::uint32_t (&a)[4],
                           const std::uint32_t (&b)[2]) {
  emulation::multiply_bf16(d, a, b);
}
template <>
inline void multiply<F16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulation::multiply_f16(d, a, b);
}
FOVEA_DEVICE void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[2]) {
  emulation::multiply_tf32(d, a, b);
}

#endif

}  // namespace fovea::cuda::FOVEA_WORLD
