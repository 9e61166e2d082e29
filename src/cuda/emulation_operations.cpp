// What warps and copies of the emulated device do.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/emulation_state.h"

namespace fovea::cuda::emulation {
namespace {

struct ShuffleOperand {
  void* result;
  const void* value;
  std::size_t bytes;
  int from_lane;
};

void run_shuffle(void* const* operands) {
  for (int lane = 0; lane < 32; ++lane) {
    const auto& to = *static_cast<const ShuffleOperand*>(operands[lane]);
    const auto& from = *static_cast<const ShuffleOperand*>(operands[to.from_lane]);
    std::memcpy(to.result, from.value, to.bytes);
  }
}

struct BallotOperand {
  bool value;
  std::uint32_t result;
};

void run_ballot(void* const* operands) {
  std::uint32_t result = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (static_cast<const BallotOperand*>(operands[lane])->value) result |= 1u << lane;
  for (int lane = 0; lane < 32; ++lane)
    static_cast<BallotOperand*>(operands[lane])->result = result;
}

struct LoadOperand {
  std::uint32_t* r;
  const void* row;
};

std::uint16_t element_of(void* const* operands, int matrix, int row, int column) {
  const void* data = static_cast<const LoadOperand*>(operands[8 * matrix + row])->row;
  std::uint16_t x;
  std::memcpy(&x, static_cast<const std::uint16_t*>(data) + column, sizeof(x));
  return x;
}

template <bool kTransposed>
void run_load(void* const* operands) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const std::uint32_t low =
          kTransposed ? element_of(operands, m, 2 * t, g) : element_of(operands, m, g, 2 * t);
      const std::uint32_t high = kTransposed ? element_of(operands, m, 2 * t + 1, g)
                                             : element_of(operands, m, g, 2 * t + 1);
      static_cast<const LoadOperand*>(operands[lane])->r[m] = low | high << 16;
    }
  }
}

struct MultiplyOperand {
  float* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

// Rows of D and B are vectors of their eight columns.
using Row = float __attribute__((vector_size(32)));
using Wholes = std::int32_t __attribute__((vector_size(32)));
using WideRow = double __attribute__((vector_size(64)));
using WideBits = std::uint64_t __attribute__((vector_size(64)));
using Exponents = std::int16_t __attribute__((vector_size(16)));

/// What tensor cores keep of a term below the leading bit of the largest one.
constexpr int kKeptBits = 23 + 2;

/// Exponents of 0 and of what is not finite: sums with them are beyond all others.
constexpr int kOfZero = -12000, kOfInfinity = 16000;
/// Exponents of terms that f32 has room for, scaled and not; and those that only sums with that of
/// 0 are below.
constexpr std::int16_t kHighest = 60, kLowest = -60, kAnyZero = -6000;

template <std::size_t kCount>
void find_exponents(const float (&of)[kCount], std::int16_t (&to)[kCount]) {
  for (std::size_t n = 0; n < kCount; ++n) {
    const auto magnitude = std::bit_cast<std::int32_t>(of[n]) & 0x7FFFFFFF;
    const int biased = magnitude >> 23;
    const int finite = biased == 255 ? kOfInfinity : biased - 127;
    to[n] = static_cast<std::int16_t>(magnitude == 0 ? kOfZero : finite);
  }
}

/// x rounded towards zero to the bits of an f32.
double cut_to_f32(double x) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & ~((std::uint64_t{1} << 29) - 1));
}

/// A row of D + A B as tensor cores add it up: what lies more than kKeptBits bits below the leading
/// bit of the largest term is cut off each term, and the sum is rounded to f32, both towards zero.
/// most: the exponent of the largest term.
template <int kDepth>
Row add_row(const Row& d, const float* a, const Row (&b)[kDepth], const Exponents& most) {
  const Wholes lowest = Wholes{} + int{kLowest}, exponents = __builtin_convertvector(most, Wholes);
  const Wholes exponent = exponents > lowest ? exponents : lowest;
  const auto up = std::bit_cast<Row>((127 + kKeptBits - exponent) << 23);
  const auto down = std::bit_cast<Row>((127 - kKeptBits + exponent) << 23);
  // Up to nine terms of less than 2^(kKeptBits + 2) fit a whole number.
  WideRow sum{};
  Wholes part = __builtin_convertvector(d * up, Wholes);
  for (int k = 0; k < kDepth; ++k) {
    part += __builtin_convertvector(a[k] * b[k] * up, Wholes);
    if (k % 8 != 7) continue;
    sum += __builtin_convertvector(part, WideRow);
    part = Wholes{};
  }
  const auto cut =
      std::bit_cast<WideRow>(std::bit_cast<WideBits>(sum) & ~((std::uint64_t{1} << 29) - 1));
  return __builtin_convertvector(cut, Row) * down;
}

/// The same where exponents are extreme, or something is not finite.
template <int kDepth>
Row add_row_widely(const Row& d, const float* a, const Row (&b)[kDepth], const Exponents& most) {
  Row result{};
  for (int j = 0; j < 8; ++j) {
    const int unit = most[j] - kKeptBits;
    double sum = static_cast<double>(d[j]), kept = std::trunc(std::ldexp(sum, -unit));
    for (int k = 0; k < kDepth; ++k) {
      const double term = static_cast<double>(a[k]) * static_cast<double>(b[k][j]);
      sum += term;
      kept += std::trunc(std::ldexp(term, -unit));
    }
    result[j] = static_cast<float>(std::isfinite(sum) ? cut_to_f32(std::ldexp(kept, unit)) : sum);
  }
  return result;
}

/// d [16, 8] += a b.
template <int kDepth>
void add_product(float (&d)[16 * 8], const float (&a)[16 * kDepth], const float (&b)[kDepth * 8]) {
  std::int16_t of_a[16 * kDepth], of_b[kDepth * 8], of_d[16 * 8];
  find_exponents(a, of_a);
  find_exponents(b, of_b);
  find_exponents(d, of_d);
  Row rows[kDepth], sums[16];
  Exponents row_exponents[kDepth], most[16];
  std::memcpy(rows, b, sizeof(rows));
  std::memcpy(sums, d, sizeof(sums));
  std::memcpy(row_exponents, of_b, sizeof(of_b));
  std::memcpy(most, of_d, sizeof(of_d));
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      const Exponents term = row_exponents[k] + of_a[i * kDepth + k];
      most[i] = most[i] > term ? most[i] : term;
    }
    const Exponents extreme = (most[i] > kHighest) | ((most[i] < kLowest) & (most[i] > kAnyZero));
    std::uint64_t any[2];
    std::memcpy(any, &extreme, sizeof(any));
    sums[i] = (any[0] | any[1]) == 0 ? add_row(sums[i], a + i * kDepth, rows, most[i])
                                     : add_row_widely(sums[i], a + i * kDepth, rows, most[i]);
  }
  std::memcpy(d, sums, sizeof(d));
}

/// D += A B, D in the registers of a warp.
template <int kDepth>
void multiply_add(void* const* operands, const float (&a)[16 * kDepth],
                  const float (&b)[kDepth * 8]) {
  float d[16 * 8];
  for (int lane = 0; lane < 32; ++lane) {
    const float* x = static_cast<const MultiplyOperand*>(operands[lane])->d;
    float* to = d + lane / 4 * 8 + lane % 4 * 2;
    to[0] = x[0];
    to[1] = x[1];
    to[64] = x[2];
    to[65] = x[3];
  }
  add_product<kDepth>(d, a, b);
  for (int lane = 0; lane < 32; ++lane) {
    float* x = static_cast<const MultiplyOperand*>(operands[lane])->d;
    const float* from = d + lane / 4 * 8 + lane % 4 * 2;
    x[0] = from[0];
    x[1] = from[1];
    x[2] = from[64];
    x[3] = from[65];
  }
}

float widen_bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// to_f32 without branches: the exponent's bias is put right by a product, which also normalises.
float widen_f16(std::uint32_t bits) {
  const float scaled = std::bit_cast<float>((bits & 0x7FFFu) << 13) * 0x1p112f;
  const std::uint32_t special = (bits & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special |
                              (bits & 0x8000u) << 16);
}

template <float (*kWiden)(std::uint32_t)>
void run_multiply_16(void* const* operands) {
  float a[16 * 16], b[16 * 8];
  const auto put = [](std::uint32_t word, float& low, float& high) {
    low = kWiden(word & 0xFFFFu);
    high = kWiden(word >> 16);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const MultiplyOperand*>(operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n) {
      float* to = a + (g + n % 2 * 8) * 16 + 2 * t + n / 2 * 8;
      put(x.a[n], to[0], to[1]);
    }
    for (int n = 0; n < 2; ++n)
      put(x.b[n], b[(2 * t + n * 8) * 8 + g], b[(2 * t + 1 + n * 8) * 8 + g]);
  }
  multiply_add<16>(operands, a, b);
}

/// The hardware reads the upper 19 bits.
float read_tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1FFFu); }

void run_multiply_tf32(void* const* operands) {
  float a[16 * 8], b[8 * 8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const MultiplyOperand*>(operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n) a[(g + n % 2 * 8) * 8 + t + n / 2 * 4] = read_tf32(x.a[n]);
    for (int n = 0; n < 2; ++n) b[(t + n * 4) * 8 + g] = read_tf32(x.b[n]);
  }
  multiply_add<8>(operands, a, b);
}

constexpr Operation kWarpBarrier = {"a warp barrier", [](void* const*) {}};
constexpr Operation kShuffle = {"a shuffle", run_shuffle};
constexpr Operation kBallot = {"a vote", run_ballot};
constexpr Operation kLoad = {"a load of matrices", run_load<false>};
constexpr Operation kLoadTransposed = {"a load of transposed matrices", run_load<true>};
constexpr Operation kMultiplyBf16 = {"a bf16 product", run_multiply_16<widen_bf16>};
constexpr Operation kMultiplyF16 = {"an f16 product", run_multiply_16<widen_f16>};
constexpr Operation kMultiplyTf32 = {"a tf32 product", run_multiply_tf32};

void arrive(const Copy& copy) { std::memcpy(copy.to, copy.data, sizeof(copy.data)); }

}  // namespace

void warp_barrier() { meet(kWarpBarrier, nullptr); }

void multiply_tile(float (&d)[128], const float (&a)[256], const float (&b)[128]) {
  add_product<16>(d, a, b);
}
float widen_16(std::uint32_t bits, bool is_f16) {
  return is_f16 ? widen_f16(bits) : widen_bf16(bits);
}

void shuffle(void* result, const void* value, std::size_t bytes, int from_lane) {
  ShuffleOperand operand = {result, value, bytes, from_lane};
  meet(kShuffle, &operand);
}

std::uint32_t ballot(bool value) {
  BallotOperand operand = {value, 0};
  meet(kBallot, &operand);
  return operand.result;
}

void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed) {
  check_aligned(row, 16, "a row of a matrix");
  LoadOperand operand = {r, row};
  meet(transposed ? kLoadTransposed : kLoad, &operand);
}

void multiply_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  MultiplyOperand operand = {d, a, b};
  meet(kMultiplyBf16, &operand);
}
void multiply_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  MultiplyOperand operand = {d, a, b};
  meet(kMultiplyF16, &operand);
}
void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  MultiplyOperand operand = {d, a, b};
  meet(kMultiplyTf32, &operand);
}

// Most copies arrive at the wait that covers them, some at once, some at an earlier wait.
void copy_issue(void* to, const void* from, bool valid) {
  check_aligned(to, 16, "the target of a copy");
  if (valid) check_aligned(from, 16, "the source of a copy");
  Copy copy = {static_cast<std::byte*>(to), {}, self().groups};
  if (valid) std::memcpy(copy.data, from, sizeof(copy.data));
  if (draw(8) == 0) {
    arrive(copy);
    return;
  }
  std::memset(to, 0xFF, sizeof(copy.data));
  self().copies.push_back(copy);
}

void copy_commit() { ++self().groups; }

void copy_wait(int pending) {
  Lane& lane = self();
  std::erase_if(lane.copies, [&](const Copy& copy) {
    if (copy.group >= lane.groups - pending && draw(16) != 0) return false;
    arrive(copy);
    return true;
  });
  give_way();
}

}  // namespace fovea::cuda::emulation
