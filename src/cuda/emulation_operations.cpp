// What warps and copies of the emulated device do.
#include <bit>
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

// Rows of D and B are vectors, so that a few of D's stay in registers over all of k.
using Row = float __attribute__((vector_size(32)));
using WideRow = double __attribute__((vector_size(64)));
using Wholes = std::int32_t __attribute__((vector_size(32)));
using Bits = std::uint64_t __attribute__((vector_size(64)));

WideRow magnitude(WideRow x) {
  return std::bit_cast<WideRow>(std::bit_cast<Bits>(x) & ~(std::uint64_t{1} << 63));
}
WideRow greater(WideRow a, WideRow b) { return a > b ? a : b; }

/// A row of D + A B as tensor cores add it up: what lies more than kKeptBits bits below the leading
/// bit of the largest term is cut off each term, and the sum is rounded to f32, both towards zero.
template <int kDepth>
Row add_row(Row d, const float (&a)[kDepth], const Row (&b)[kDepth]) {
  constexpr std::uint64_t kKeptBits = 23 + 2, kBias = 1023, kExponent = 52;
  WideRow terms[kDepth];
  WideRow sum = __builtin_convertvector(d, WideRow), most = magnitude(sum);
  const WideRow start = sum;
  for (int k = 0; k < kDepth; ++k) {
    terms[k] = static_cast<double>(a[k]) * __builtin_convertvector(b[k], WideRow);
    sum += terms[k];
    most = greater(most, magnitude(terms[k]));
  }
  // The largest term's exponent; terms are 0 or no less than 2^-298.
  const Bits exponent = std::bit_cast<Bits>(greater(most, WideRow{} + 0x1p-300)) >> kExponent;
  const auto up = std::bit_cast<WideRow>((2 * kBias + kKeptBits - exponent) << kExponent);
  const auto down = std::bit_cast<WideRow>((exponent - kKeptBits) << kExponent);
  Wholes kept = __builtin_convertvector(start * up, Wholes);
  for (int k = 0; k < kDepth; ++k) kept += __builtin_convertvector(terms[k] * up, Wholes);
  const WideRow cut = __builtin_convertvector(kept, WideRow) * down;
  constexpr std::uint64_t kBeyondF32 = (std::uint64_t{1} << (kExponent - 23)) - 1;
  const auto rounded = std::bit_cast<WideRow>(std::bit_cast<Bits>(cut) & ~kBeyondF32);
  return __builtin_convertvector(sum - sum == 0 ? rounded : sum, Row);
}

/// D += A B.
template <int kDepth>
void multiply_add(void* const* operands, const float (&a)[16][kDepth],
                  const float (&b)[kDepth][8]) {
  Row d[16], rows[kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const float* x = static_cast<const MultiplyOperand*>(operands[lane])->d;
    const int g = lane / 4, t = lane % 4;
    d[g][2 * t] = x[0];
    d[g][2 * t + 1] = x[1];
    d[g + 8][2 * t] = x[2];
    d[g + 8][2 * t + 1] = x[3];
  }
  std::memcpy(rows, b, sizeof(rows));
  for (int i = 0; i < 16; ++i) d[i] = add_row(d[i], a[i], rows);
  for (int lane = 0; lane < 32; ++lane) {
    float* x = static_cast<const MultiplyOperand*>(operands[lane])->d;
    const int g = lane / 4, t = lane % 4;
    x[0] = d[g][2 * t];
    x[1] = d[g][2 * t + 1];
    x[2] = d[g + 8][2 * t];
    x[3] = d[g + 8][2 * t + 1];
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
  float a[16][16], b[16][8];
  const auto put = [](std::uint32_t word, float& low, float& high) {
    low = kWiden(word & 0xFFFFu);
    high = kWiden(word >> 16);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const MultiplyOperand*>(operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n) {
      float* to = &a[g + n % 2 * 8][2 * t + n / 2 * 8];
      put(x.a[n], to[0], to[1]);
    }
    for (int n = 0; n < 2; ++n) put(x.b[n], b[2 * t + n * 8][g], b[2 * t + 1 + n * 8][g]);
  }
  multiply_add(operands, a, b);
}

/// The hardware reads the upper 19 bits.
float read_tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1FFFu); }

void run_multiply_tf32(void* const* operands) {
  float a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const MultiplyOperand*>(operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n) a[g + n % 2 * 8][t + n / 2 * 4] = read_tf32(x.a[n]);
    for (int n = 0; n < 2; ++n) b[t + n * 4][g] = read_tf32(x.b[n]);
  }
  multiply_add(operands, a, b);
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
