// A small valid f32 call that a test then spoils in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

namespace fovea::test {

/// Owns the memory of a forward and a backward call: batch 2, heads 4/2, q_len 5, kv_len 7, dim 8.
struct Call {
  static constexpr std::int64_t kBatch = 2, kQHeads = 4, kKvHeads = 2, kQLen = 5, kKvLen = 7,
                                kDim = 8;
  std::vector<float> q = values(kBatch * kQHeads * kQLen * kDim, 1);
  std::vector<float> k = values(kBatch * kKvHeads * kKvLen * kDim, 2);
  std::vector<float> v = values(kBatch * kKvHeads * kKvLen * kDim, 3);
  std::vector<float> dout = values(kBatch * kQHeads * kQLen * kDim, 4);
  std::vector<float> out = std::vector<float>(q.size());
  std::vector<float> lse = std::vector<float>(kBatch * kQHeads * kQLen);
  std::vector<float> dq = std::vector<float>(q.size());
  std::vector<float> dk = std::vector<float>(k.size());
  std::vector<float> dv = std::vector<float>(v.size());

  static std::vector<float> values(std::int64_t count, std::uint32_t seed) {
    std::vector<float> list(static_cast<std::size_t>(count));
    for (float& value : list) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return list;
  }

  AttentionParams params() const {
    AttentionParams p;
    p.q = bhsd(q.data(), DType::f32, kBatch, kQHeads, kQLen, kDim);
    p.k = bhsd(k.data(), DType::f32, kBatch, kKvHeads, kKvLen, kDim);
    p.v = bhsd(v.data(), DType::f32, kBatch, kKvHeads, kKvLen, kDim);
    return p;
  }

  ForwardArgs forward_args() {
    ForwardArgs args;
    args.params = params();
    args.out = bhsd(out.data(), DType::f32, kBatch, kQHeads, kQLen, kDim);
    args.lse = MutableTensorView(lse.data(), DType::f32, {kBatch, kQHeads, kQLen});
    return args;
  }

  BackwardArgs backward_args() {
    BackwardArgs args;
    args.params = params();
    args.out = bhsd(out.data(), DType::f32, kBatch, kQHeads, kQLen, kDim);
    args.lse = TensorView(lse.data(), DType::f32, {kBatch, kQHeads, kQLen});
    args.dout = bhsd(dout.data(), DType::f32, kBatch, kQHeads, kQLen, kDim);
    args.dq = bhsd(dq.data(), DType::f32, kBatch, kQHeads, kQLen, kDim);
    args.dk = bhsd(dk.data(), DType::f32, kBatch, kKvHeads, kKvLen, kDim);
    args.dv = bhsd(dv.data(), DType::f32, kBatch, kKvHeads, kKvLen, kDim);
    return args;
  }
};

inline CallOptions choose(const std::string& kernel) {
  CallOptions options;
  options.plan.choice.kernel = kernel;
  return options;
}

/// Expects a refusal of this kind whose message is exactly `message`.
inline void expect_error(const Status& status, StatusCode code, const std::string& message) {
  EXPECT_EQ(name_of(status.code()), std::string(name_of(code)));
  EXPECT_EQ(status.message(), message);
}

}  // namespace fovea::test
