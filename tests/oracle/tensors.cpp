#include "tests/oracle/tensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/reference_elements.h"

namespace fovea::oracle {

Tensor::Tensor(DType dtype, Shape shape, const std::vector<double>& values)
    : dtype_(dtype), shape_(std::move(shape)) {
  memory_.resize(static_cast<std::size_t>(size() * size_of(dtype) + 7) / 8);
  EXPECT_TRUE(values.empty() || static_cast<std::int64_t>(values.size()) == size());
  std::int64_t index = 0;
  for (const double value : values) set(index++, value);
}

Tensor Tensor::filled(DType dtype, const Shape& shape, double value) {
  Tensor tensor(dtype, shape);
  for (std::int64_t n = 0; n < tensor.size(); ++n) tensor.set(n, value);
  return tensor;
}

Tensor Tensor::normal(DType dtype, const Shape& shape, std::mt19937_64& random) {
  Tensor tensor(dtype, shape);
  std::normal_distribution<double> distribution;
  for (std::int64_t n = 0; n < tensor.size(); ++n) tensor.set(n, distribution(random));
  return tensor;
}

std::int64_t Tensor::size() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape_) n *= d;
  return n;
}

double Tensor::get(std::int64_t index) const {
  if (is_floating(dtype_)) return reference::load(view(), index);
  return static_cast<double>(reference::load_integer(view(), index));
}

std::vector<double> Tensor::values() const {
  std::vector<double> all;
  for (std::int64_t n = 0; n < size(); ++n) all.push_back(get(n));
  return all;
}

void Tensor::set(std::int64_t index, double value) {
  auto* bytes = reinterpret_cast<std::byte*>(memory_.data()) + index * size_of(dtype_);
  if (is_floating(dtype_)) {
    reference::store(mutable_view(), index, value);
  } else if (dtype_ == DType::i64) {
    const auto integer = static_cast<std::int64_t>(value);
    std::memcpy(bytes, &integer, sizeof integer);
  } else if (dtype_ == DType::i32) {
    const auto integer = static_cast<std::int32_t>(value);
    std::memcpy(bytes, &integer, sizeof integer);
  } else {
    *bytes = value != 0 ? std::byte{1} : std::byte{0};
  }
}

MutableTensorView Tensor::mutable_view() {
  MutableTensorView view;
  if (!present()) return view;
  view.data = memory_.data();
  view.dtype = dtype_;
  view.rank = static_cast<std::int32_t>(shape_.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    view.shape[d] = shape_[d];
    view.strides[d] = stride;
    stride *= shape_[d];
  }
  return view;
}

std::int64_t Tensor::flat(const Shape& index) const {
  EXPECT_EQ(index.size(), shape_.size());
  std::int64_t n = 0;
  for (std::size_t d = 0; d < shape_.size(); ++d) n = n * shape_[d] + index[d];
  return n;
}

TensorView transposed(TensorView view, int a, int b) {
  std::swap(view.shape[static_cast<std::size_t>(a)], view.shape[static_cast<std::size_t>(b)]);
  std::swap(view.strides[static_cast<std::size_t>(a)], view.strides[static_cast<std::size_t>(b)]);
  return view;
}

namespace {

template <class Args>
CallOptions options_for(const std::string& kernel) {
  CallOptions options;
  options.plan.choice.kernel = kernel;
  options.plan.choice.strict = true;
  options.plan.self_check = false;
  return options;
}

}  // namespace

void run(const ForwardArgs& args, const std::string& kernel) {
  const Status status = forward(args, options_for<ForwardArgs>(kernel));
  ASSERT_TRUE(status.ok()) << status.message();
}

void run(const BackwardArgs& args, const std::string& kernel) {
  const Status status = backward(args, options_for<BackwardArgs>(kernel));
  ASSERT_TRUE(status.ok()) << status.message();
}

Outputs forward_of(const AttentionParams& params, const std::string& kernel) {
  const TensorView& q = params.q.segments[0].tensor;
  const TensorView& v = params.v.segments[0].tensor;
  const DType compute =
      params.dtype_policy.compute == DType::none ? q.dtype : params.dtype_policy.compute;
  const DType lse_dtype = compute == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t dim = v.shape[static_cast<std::size_t>(v.rank - 1)];
  Outputs result;
  if (params.varlen.cu_seqlens_q.present()) {
    result.out = Tensor(compute, {q.shape[0], q.shape[1], dim});
    result.lse = Tensor(lse_dtype, {q.shape[1], q.shape[0]});
  } else {
    std::int64_t q_len = 0;
    for (int n = 0; n < params.q.count; ++n) q_len += params.q.segments[n].tensor.shape[2];
    result.out = Tensor(compute, {q.shape[0], q.shape[1], q_len, dim});
    result.lse = Tensor(lse_dtype, {q.shape[0], q.shape[1], q_len});
  }
  // Poison: whatever is not written shows.
  for (Tensor* tensor : {&result.out, &result.lse})
    for (std::int64_t n = 0; n < tensor->size(); ++n) tensor->set(n, std::nan(""));
  run(ForwardArgs{params, result.out.mutable_view(), result.lse.mutable_view()}, kernel);
  return result;
}

double max_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::int64_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    const double x = a.get(n), y = b.get(n);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double difference = std::abs(x - y);
    largest = std::max(
        largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
  }
  return largest;
}

}  // namespace fovea::oracle
