// What tests on a GPU share: a device or the reason why there is none, and tensors in its memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

#include "cases/random_numbers.h"
#include "contract/float_types.h"

namespace fovea::gpu {

inline constexpr Device kGpu{DeviceType::cuda, 0};
inline constexpr Device kCpu{DeviceType::cpu, 0};

/// Why the device cannot be used, or empty.
inline std::string absence_of(const Device& device) {
  for (const DeviceInfo& info : devices()) {
    if (info.device != device) continue;
    return info.emulated ? "the CUDA device is emulated" : "";
  }
  if (device.index > 0) return "there is no second CUDA device";
  for (const AbsentBackend& absent : absent_backends())
    if (absent.backend == "cuda") return absent.reason;
  return "there is no CUDA device";
}

/// Skips its tests, with the reason, where there is no GPU.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = absence_of(kGpu);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

/// A contiguous [batch, heads, rows, width] in the memory of a device.
class Tensor {
 public:
  Tensor(const Device& device, DType dtype, std::int64_t batch, std::int64_t heads,
         std::int64_t rows, std::int64_t width)
      : shape_{batch, heads, rows, width},
        dtype_(dtype),
        memory_(DeviceBuffer::make(device, bytes()).value()) {}

  [[nodiscard]] std::size_t elements() const {
    return static_cast<std::size_t>(shape_[0] * shape_[1] * shape_[2] * shape_[3]);
  }
  [[nodiscard]] std::size_t bytes() const {
    return elements() * static_cast<std::size_t>(size_of(dtype_));
  }
  [[nodiscard]] MutableTensorView view() const {
    return bhsd(memory_.data(), dtype_, shape_[0], shape_[1], shape_[2], shape_[3],
                memory_.device());
  }
  /// The same without the width.
  [[nodiscard]] MutableTensorView rows() const {
    return {memory_.data(), dtype_, {shape_[0], shape_[1], shape_[2]}, memory_.device()};
  }

  void upload(const std::vector<float>& values) { fill(values); }
  /// Uploads `values` again and again until the tensor is full.
  void fill(const std::vector<float>& values) {
    std::vector<std::uint16_t> narrow;
    if (dtype_ != DType::f32)
      for (const float x : values)
        narrow.push_back(dtype_ == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits);
    const void* from = narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data();
    const std::size_t piece = values.size() * static_cast<std::size_t>(size_of(dtype_));
    for (std::size_t at = 0; at < bytes(); at += piece)
      throw_if_error(memory_.upload(from, std::min(piece, bytes() - at), at));
  }
  /// `count` elements from element `first` on.
  [[nodiscard]] std::vector<float> download(std::size_t first, std::size_t count) const {
    const auto size = static_cast<std::size_t>(size_of(dtype_));
    std::vector<float> values(count);
    if (dtype_ == DType::f32) {
      throw_if_error(memory_.download(values.data(), count * size, first * size));
      return values;
    }
    std::vector<std::uint16_t> narrow(count);
    throw_if_error(memory_.download(narrow.data(), count * size, first * size));
    for (std::size_t n = 0; n < count; ++n)
      values[n] = dtype_ == DType::bf16 ? to_f32(Bf16{narrow[n]}) : to_f32(F16{narrow[n]});
    return values;
  }
  [[nodiscard]] std::vector<float> download() const { return download(0, elements()); }
  /// The memory as it is, for comparisons of every bit.
  [[nodiscard]] std::vector<std::byte> bits() const {
    std::vector<std::byte> values(bytes());
    throw_if_error(memory_.download(values.data(), values.size()));
    return values;
  }

 private:
  std::int64_t shape_[4];
  DType dtype_;
  DeviceBuffer memory_;
};

inline std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  cases::RandomNumbers random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.normal());
  return values;
}

/// Workspace of a plan in the device's memory.
struct Workspace {
  Workspace(const Plan& plan, const Device& device)
      : memory(DeviceBuffer::make(device, plan.workspace_bytes()).value()) {
    options.workspace = memory.data();
    options.workspace_bytes = memory.bytes();
  }
  DeviceBuffer memory;
  RunOptions options;
};

/// A dense call with random inputs, and all that forward and backward write.
struct DenseCall {
  DenseCall(const Device& on, DType dtype, std::int64_t batch, std::int64_t heads,
            std::int64_t q_len, std::int64_t kv_len, std::int64_t dim)
      : device(on),
        q(on, dtype, batch, heads, q_len, dim),
        k(on, dtype, batch, heads, kv_len, dim),
        v(on, dtype, batch, heads, kv_len, dim),
        out(on, dtype, batch, heads, q_len, dim),
        lse(on, DType::f32, batch, heads, q_len, 1),
        dout(on, dtype, batch, heads, q_len, dim),
        dq(on, dtype, batch, heads, q_len, dim),
        dk(on, dtype, batch, heads, kv_len, dim),
        dv(on, dtype, batch, heads, kv_len, dim) {
    params.q = q.view();
    params.k = k.view();
    params.v = v.view();
  }
  void upload_random(std::uint64_t seed) {
    for (Tensor* x : {&q, &k, &v, &dout}) x->upload(random_values(x->elements(), seed++));
  }
  [[nodiscard]] ForwardArgs forward_args() const { return {params, out.view(), lse.rows()}; }
  [[nodiscard]] BackwardArgs backward_args() const {
    BackwardArgs args;
    args.params = params;
    args.out = out.view();
    args.lse = lse.rows();
    args.dout = dout.view();
    args.dq = dq.view();
    args.dk = dk.view();
    args.dv = dv.view();
    return args;
  }

  Device device;
  Tensor q, k, v, out, lse, dout, dq, dk, dv;
  AttentionParams params;
};

/// Largest difference of two results, in units of the larger one's greatest element.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, scale = 1e-30;
  for (std::size_t n = 0; n < a.size(); ++n) {
    const double x = static_cast<double>(a[n]), y = static_cast<double>(b[n]);
    if (!(std::abs(x - y) <= most)) most = std::abs(x - y);
    scale = std::max({scale, std::abs(x), std::abs(y)});
  }
  return most / scale;
}

}  // namespace fovea::gpu
