// Products of four warps (a warpgroup) on the tensor cores of sm_90: D [64, N] += A [64, 16] B [16,
// N] of 16-bit numbers in f32, B from shared memory, A from there or from registers.
//
// Warp w has rows 16 w to 16 w + 15 of A and D. With g = lane / 4 and t = lane % 4 a lane holds of
//   D  d[4 n], d[4 n + 1] = (g, 8 n + 2 t), (g, 8 n + 2 t + 1)      d[4 n + 2], d[4 n + 3]: row g +
//   8 A  as in matrix.h
//
// Products run asynchronously. Between products_fence() and the products_wait() that covers their
// group, registers of D and A belong to them, and so does what they read of shared memory; behind
// the wait, settle() keeps the compiler from using the registers earlier.
//
// Tiles in shared memory are swizzled rows of 128 bytes (TensorBox), 64 elements of 16 bits:
//   by rows     A [64, 16], B's transpose [N, 16]: rows of A, columns of B, one after the other
//   by columns  B [16, N]: rows of B, 64 columns each; the next 64 columns lie `panel` bytes on
#pragma once

#include "contract/float_types.h"
#include "cuda/device/platform.h"
#include "cuda/device/shared.h"

namespace fovea::cuda::FOVEA_WORLD {

/// An operand in shared memory, the lower word of what the hardware calls a matrix descriptor: bits
/// 0 to 13 the address, bits 16 to 29 the distance of panels, both by 16 bytes. The upper word is
/// the same for all: 1024 bytes between groups of 8 rows, swizzled by 128 bytes.
struct MatrixAt {
  std::uint32_t low;

  FOVEA_DEVICE static MatrixAt by_rows(std::uint32_t address) {
    return {(address & 0x3FFFFu) >> 4 | 1u << 16};
  }
  FOVEA_DEVICE static MatrixAt by_columns(std::uint32_t address, int panel) {
    return {(address & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(panel >> 4) << 16};
  }
  FOVEA_DEVICE MatrixAt operator+(int bytes) const {
    return {low + static_cast<std::uint32_t>(bytes >> 4)};
  }
};
inline constexpr std::uint32_t kMatrixHigh = 1u << 30 | 1024u >> 4;

/// Which way B lies.
enum class Lies { by_rows, by_columns };

#if defined(__CUDACC__)

FOVEA_DEVICE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// What was issued since the last call is a group.
FOVEA_DEVICE void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups but the latest kPending.
template <int kPending>
FOVEA_DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
FOVEA_DEVICE void settle(float (&x)[kCount]) {
  FOVEA_UNROLL
  for (int n = 0; n < kCount; ++n) asm volatile("" : "+f"(x[n])::"memory");
}
template <int kCount>
FOVEA_DEVICE void settle(std::uint32_t (&x)[kCount]) {
  FOVEA_UNROLL
  for (int n = 0; n < kCount; ++n) asm volatile("" : "+r"(x[n])::"memory");
}

// The instruction names each register of D, so for each N there is a list of N / 2 of them: made of
// tens and eights.
#define FOVEA_TEN(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define FOVEA_NAMES_10 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"
#define FOVEA_NAMES_30 FOVEA_NAMES_10 "," FOVEA_TEN(1) "," FOVEA_TEN(2)
#define FOVEA_NAMES_60 FOVEA_NAMES_30 "," FOVEA_TEN(3) "," FOVEA_TEN(4) "," FOVEA_TEN(5)
#define FOVEA_NAMES_90 FOVEA_NAMES_60 "," FOVEA_TEN(6) "," FOVEA_TEN(7) "," FOVEA_TEN(8)
#define FOVEA_NAMES_120 FOVEA_NAMES_90 "," FOVEA_TEN(9) "," FOVEA_TEN(10) "," FOVEA_TEN(11)
#define FOVEA_NAMES_32 FOVEA_NAMES_30 ",%30,%31"
#define FOVEA_NAMES_40 FOVEA_NAMES_30 "," FOVEA_TEN(3)
#define FOVEA_NAMES_48 FOVEA_NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FOVEA_NAMES_64 FOVEA_NAMES_60 ",%60,%61,%62,%63"
#define FOVEA_NAMES_96 FOVEA_NAMES_90 ",%90,%91,%92,%93,%94,%95"
#define FOVEA_NAMES_128 FOVEA_NAMES_120 ",%120,%121,%122,%123,%124,%125,%126,%127"

#define FOVEA_EIGHT(c, n) \
  c(d[n]), c(d[n + 1]), c(d[n + 2]), c(d[n + 3]), c(d[n + 4]), c(d[n + 5]), c(d[n + 6]), c(d[n + 7])
#define FOVEA_PLACES_32(c) \
  FOVEA_EIGHT(c, 0), FOVEA_EIGHT(c, 8), FOVEA_EIGHT(c, 16), FOVEA_EIGHT(c, 24)
#define FOVEA_PLACES_40(c) FOVEA_PLACES_32(c), FOVEA_EIGHT(c, 32)
#define FOVEA_PLACES_48(c) FOVEA_PLACES_40(c), FOVEA_EIGHT(c, 40)
#define FOVEA_PLACES_64(c) FOVEA_PLACES_48(c), FOVEA_EIGHT(c, 48), FOVEA_EIGHT(c, 56)
#define FOVEA_PLACES_96(c) \
  FOVEA_PLACES_64(c), FOVEA_EIGHT(c, 64), FOVEA_EIGHT(c, 72), FOVEA_EIGHT(c, 80), FOVEA_EIGHT(c, 88)
#define FOVEA_PLACES_128(c)                                                         \
  FOVEA_PLACES_96(c), FOVEA_EIGHT(c, 96), FOVEA_EIGHT(c, 104), FOVEA_EIGHT(c, 112), \
      FOVEA_EIGHT(c, 120)

/// The products of one N. kFirst: D = A B; what D held before does not matter. Else D = A B where
/// `add` is false. The matrix descriptors are put together inside: the compiler would otherwise
/// keep one for each step of a loop.
template <int kColumns>
struct Wgmma;

// clang-format off
#define FOVEA_WGMMA_REGISTERS(type, N, names, places, p0, p1, p2, p3, p4, p5, p6)                   \
  asm volatile("{\n.reg .pred p;\n.reg .b32 l;\n.reg .b64 b;\nsetp.ne.b32 p, %" #p6 ", 0;\n"         \
               "mov.b64 b, {%" #p4 ", 0x40000040};\n"                                                \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names "}, "       \
               "{%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, b, p, 1, 1, %" #p5 ";\n}\n"                 \
               : places                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "n"(kLies == Lies::by_columns), \
                 "r"(static_cast<int>(add)))
#define FOVEA_WGMMA_SHARED(type, N, names, places, p0, p1, p2, p3)                                   \
  asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #p3 ", 0;\n"                     \
               "mov.b64 a, {%" #p0 ", 0x40000040};\nmov.b64 b, {%" #p1 ", 0x40000040};\n"             \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names "}, "       \
               "a, b, p, 1, 1, 0, %" #p2 ";\n}\n"                                                    \
               : places                                                                              \
               : "r"(a.low), "r"(b.low), "n"(kLies == Lies::by_columns), "r"(static_cast<int>(add)))
// p0 to p6: the numbers N / 2 and on.
#define FOVEA_WGMMA(N, count, p0, p1, p2, p3, p4, p5, p6)                                            \
  template <>                                                                                        \
  struct Wgmma<N> {                                                                                  \
    template <class T, Lies kLies>                                                                   \
    FOVEA_DEVICE static void registers(float (&d)[count], const std::uint32_t* a, MatrixAt b, bool add) { \
      if constexpr (std::is_same_v<T, Bf16>)                                                         \
        FOVEA_WGMMA_REGISTERS("bf16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("+f"), p0, p1, p2, p3, p4, p5, p6); \
      else                                                                                           \
        FOVEA_WGMMA_REGISTERS("f16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("+f"), p0, p1, p2, p3, p4, p5, p6); \
    }                                                                                                \
    template <class T, Lies kLies>                                                                   \
    FOVEA_DEVICE static void registers_first(float (&d)[count], const std::uint32_t* a, MatrixAt b) { \
      constexpr bool add = false;                                                                    \
      if constexpr (std::is_same_v<T, Bf16>)                                                         \
        FOVEA_WGMMA_REGISTERS("bf16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("=f"), p0, p1, p2, p3, p4, p5, p6); \
      else                                                                                           \
        FOVEA_WGMMA_REGISTERS("f16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("=f"), p0, p1, p2, p3, p4, p5, p6); \
    }                                                                                                \
    template <class T, Lies kLies>                                                                   \
    FOVEA_DEVICE static void shared(float (&d)[count], MatrixAt a, MatrixAt b, bool add) {           \
      if constexpr (std::is_same_v<T, Bf16>)                                                         \
        FOVEA_WGMMA_SHARED("bf16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("+f"), p0, p1, p2, p3); \
      else                                                                                           \
        FOVEA_WGMMA_SHARED("f16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("+f"), p0, p1, p2, p3); \
    }                                                                                                \
    template <class T, Lies kLies>                                                                   \
    FOVEA_DEVICE static void shared_first(float (&d)[count], MatrixAt a, MatrixAt b) {               \
      constexpr bool add = false;                                                                    \
      if constexpr (std::is_same_v<T, Bf16>)                                                         \
        FOVEA_WGMMA_SHARED("bf16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("=f"), p0, p1, p2, p3); \
      else                                                                                           \
        FOVEA_WGMMA_SHARED("f16", N, FOVEA_NAMES_##count, FOVEA_PLACES_##count("=f"), p0, p1, p2, p3); \
    }                                                                                                \
  }
FOVEA_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38);
FOVEA_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46);
FOVEA_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54);
FOVEA_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70);
FOVEA_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102);
FOVEA_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134);
// clang-format on

#undef FOVEA_WGMMA
#undef FOVEA_WGMMA_SHARED
#undef FOVEA_WGMMA_REGISTERS
#undef FOVEA_PLACES_128
#undef FOVEA_PLACES_96
#undef FOVEA_PLACES_64
#undef FOVEA_PLACES_48
#undef FOVEA_PLACES_40
#undef FOVEA_PLACES_32
#undef FOVEA_EIGHT
#undef FOVEA_NAMES_128
#undef FOVEA_NAMES_96
#undef FOVEA_NAMES_64
#undef FOVEA_NAMES_48
#undef FOVEA_NAMES_40
#undef FOVEA_NAMES_32
#undef FOVEA_NAMES_120
#undef FOVEA_NAMES_90
#undef FOVEA_NAMES_60
#undef FOVEA_NAMES_30
#undef FOVEA_NAMES_10
#undef FOVEA_TEN

#else

FOVEA_DEVICE void products_fence() { emulation::products_fence(); }
FOVEA_DEVICE void products_commit() { emulation::products_commit(); }
template <int kPending>
void products_wait() {
  emulation::products_wait(kPending);
}
template <class T, int kCount>
void settle(T (&)[kCount]) {}

template <int kColumns>
struct Wgmma {
  template <class T, Lies kLies>
  static void registers(float (&d)[kColumns / 2], const std::uint32_t* a, MatrixAt b, bool add) {
    issue<T, kLies>(d, a, {}, b, add);
  }
  template <class T, Lies kLies>
  static void registers_first(float (&d)[kColumns / 2], const std::uint32_t* a, MatrixAt b) {
    issue<T, kLies>(d, a, {}, b, false);
  }
  template <class T, Lies kLies>
  static void shared(float (&d)[kColumns / 2], MatrixAt a, MatrixAt b, bool add) {
    issue<T, kLies>(d, nullptr, a, b, add);
  }
  template <class T, Lies kLies>
  static void shared_first(float (&d)[kColumns / 2], MatrixAt a, MatrixAt b) {
    issue<T, kLies>(d, nullptr, a, b, false);
  }

 private:
  template <class T, Lies kLies>
  static void issue(float* d, const std::uint32_t* a, MatrixAt a_at, MatrixAt b, bool add) {
    static_assert(kColumns % 8 == 0 && kColumns <= 256);
    emulation::AsyncProduct product;
    product.d = d;
    product.a = a;
    product.a_at = a_at.low;
    product.b_at = b.low;
    product.columns = kColumns;
    product.is_f16 = std::is_same_v<T, F16>;
    product.b_by_columns = kLies == Lies::by_columns;
    product.add = add;
    emulation::products_issue(product);
  }
};

#endif

}  // namespace fovea::cuda::FOVEA_WORLD
