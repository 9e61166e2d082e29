// Tensors that own their memory, and calls of the reference kernels, for the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

namespace fovea::oracle {

using Shape = std::vector<std::int64_t>;

/// A contiguous tensor. Elements are read and written as double, whatever the dtype.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape, const std::vector<double>& values = {});

  static Tensor filled(DType dtype, const Shape& shape, double value);
  /// Values of the standard normal distribution, rounded to the dtype.
  static Tensor normal(DType dtype, const Shape& shape, std::mt19937_64& random);

  [[nodiscard]] bool present() const { return dtype_ != DType::none; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] double get(std::int64_t index) const;
  [[nodiscard]] double at(const Shape& index) const { return get(flat(index)); }
  [[nodiscard]] std::vector<double> values() const;
  void set(std::int64_t index, double value);
  void put(const Shape& index, double value) { set(flat(index), value); }

  [[nodiscard]] TensorView view() const { return const_cast<Tensor*>(this)->mutable_view(); }
  MutableTensorView mutable_view();

 private:
  [[nodiscard]] std::int64_t flat(const Shape& index) const;
  DType dtype_ = DType::none;
  Shape shape_;
  std::vector<std::uint64_t> memory_;
};

/// The view with two dimensions exchanged.
TensorView transposed(TensorView view, int a, int b);

/// Runs a kernel by name and expects it to serve.
void run(const ForwardArgs& args, const std::string& kernel = "cpu.reference.forward");
void run(const BackwardArgs& args, const std::string& kernel = "cpu.reference.backward");

struct Outputs {
  Tensor out, lse;
};
/// Forward of the reference with results in the compute dtype (f64: LSE in f64 too).
Outputs forward_of(const AttentionParams& params,
                   const std::string& kernel = "cpu.reference.forward");

/// Largest |a - b|; infinite where one is not finite and the other differs.
double max_difference(const Tensor& a, const Tensor& b);

}  // namespace fovea::oracle
