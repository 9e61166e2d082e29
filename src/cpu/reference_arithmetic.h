// The two arithmetics in which the reference kernels evaluate the formulas.
//
//   Exact    f64 throughout. The only rounding is that of the operands to the compute dtype, which
//            the contract defines. This is the oracle.
//   Unfused  what an ordinary framework does that materialises S and P: f32 accumulation, and every
//            tensor between two products (S, P, dP, dS) rounded to the compute dtype. This is the
//            yardstick: a kernel may err at most twice as much (design of the numerics tests).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "contract/problem.h"
#include "cpu/reference_elements.h"

namespace fovea::reference {

struct Exact {
  using Real = double;
  static constexpr int kLanes = 1;
  static constexpr bool kReadsSavedLse = false;

  explicit Exact(const Problem&) {}
  /// x as a tensor between two products holds it.
  [[nodiscard]] Real stored(Real x) const { return x; }
  /// x as a product reads it.
  [[nodiscard]] Real operand(Real x) const { return x; }
};

struct Unfused {
  using Real = float;
  /// Partial sums of each f32 accumulation, as in a vectorised matrix product.
  static constexpr int kLanes = 16;
  static constexpr bool kReadsSavedLse = true;

  explicit Unfused(const Problem& problem)
      : compute(problem.compute), tf32(problem.params.f32_precision == F32Precision::tf32) {}
  [[nodiscard]] Real stored(Real x) const {
    return static_cast<float>(round_to(compute, static_cast<double>(x)));
  }
  [[nodiscard]] Real operand(Real x) const { return tf32 ? round_to_tf32(stored(x)) : stored(x); }

  DType compute;
  bool tf32;
};

/// Hands out 64-byte aligned arrays of one block of memory; over a null block it only measures. A
/// size that does not fit 64 bits saturates, so that the allocation fails and nothing else does.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t rows, std::int64_t width = 1) {
    const std::size_t at = used_;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(rows), static_cast<std::size_t>(width),
                               &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(T), &bytes) || bytes > kMaxBytes - used_)
      used_ = kMaxBytes;
    else
      used_ += (bytes + 63) / 64 * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 62;
  std::byte* base_;
  std::size_t used_ = 0;
};

/// A matrix [rows, width] of sums, each kept as kLanes partial sums that take the terms in turn.
template <class Arithmetic>
class Accumulator {
 public:
  using Real = typename Arithmetic::Real;
  Accumulator(Arena& arena, std::int64_t rows, std::int64_t width)
      : rows_(rows), width_(width), sums_(arena.take<Real>(rows, Arithmetic::kLanes * width)) {}

  void clear() { std::fill_n(sums_, Arithmetic::kLanes * rows_ * width_, Real{0}); }
  /// sums[row, :] += factor * x[:]; `term` counts the terms of this sum.
  void add(std::int64_t row, std::int64_t term, Real factor, const Real* x) {
    Real* to = sums_ + (term % Arithmetic::kLanes * rows_ + row) * width_;
    for (std::int64_t d = 0; d < width_; ++d) to[d] += factor * x[d];
  }
  [[nodiscard]] Real total(std::int64_t row, std::int64_t d) const {
    Real sum = 0;
    for (std::int64_t lane = 0; lane < Arithmetic::kLanes; ++lane)
      sum += sums_[(lane * rows_ + row) * width_ + d];
    return sum;
  }

 private:
  std::int64_t rows_, width_;
  Real* sums_;
};

}  // namespace fovea::reference
