// One dense f32 call whose values a test chooses, on a kernel that it names.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

namespace fovea::test {

/// Kernels of the family that this machine can run: "cpu.avx512.forward", ...; or its specialists,
/// which serve other calls.
inline std::vector<std::string> kernels_of(const std::string& family, const std::string& direction,
                                           bool specialists = false) {
  std::vector<std::string> ids;
  for (const KernelInfo& kernel : kernels())
    if (kernel.available && kernel.specialist == specialists && kernel.family == family &&
        kernel.direction == direction)
      ids.push_back(kernel.id);
  return ids;
}

struct DenseResults {
  std::vector<float> out, lse, dq, dk, dv;
};

struct DenseCall {
  std::int64_t heads = 1, q_len = 1, kv_len = 1, dim = 1, v_dim = 1;
  std::optional<Band> band;
  std::optional<double> scale;
  DTypePolicy dtype_policy;
  std::vector<float> q, k, v, dout;

  DenseCall(std::int64_t heads_, std::int64_t q_len_, std::int64_t kv_len_, std::int64_t dim_,
            std::int64_t v_dim_)
      : heads(heads_), q_len(q_len_), kv_len(kv_len_), dim(dim_), v_dim(v_dim_) {
    q = noise(heads * q_len * dim, 1);
    k = noise(heads * kv_len * dim, 2);
    v = noise(heads * kv_len * v_dim, 3);
    dout = noise(heads * q_len * v_dim, 4);
  }

  /// Uniform in [-1, 1).
  static std::vector<float> noise(std::int64_t count, std::uint32_t seed) {
    std::vector<float> list(static_cast<std::size_t>(count));
    for (float& value : list) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return list;
  }

  [[nodiscard]] AttentionParams params() const {
    AttentionParams p;
    p.q = bhsd(q.data(), DType::f32, 1, heads, q_len, dim);
    p.k = bhsd(k.data(), DType::f32, 1, heads, kv_len, dim);
    p.v = bhsd(v.data(), DType::f32, 1, heads, kv_len, v_dim);
    p.band = band;
    p.scale = scale;
    p.dtype_policy = dtype_policy;
    return p;
  }
  [[nodiscard]] ForwardArgs forward_args(DenseResults& r) const {
    r.out.assign(static_cast<std::size_t>(heads * q_len * v_dim), NAN);
    r.lse.assign(static_cast<std::size_t>(heads * q_len), NAN);
    return {params(), bhsd(r.out.data(), DType::f32, 1, heads, q_len, v_dim),
            MutableTensorView(r.lse.data(), DType::f32, {1, heads, q_len})};
  }
  [[nodiscard]] BackwardArgs backward_args(DenseResults& r) const {
    r.dq.assign(q.size(), NAN);
    r.dk.assign(k.size(), NAN);
    r.dv.assign(v.size(), NAN);
    BackwardArgs args;
    args.params = params();
    args.out = bhsd(r.out.data(), DType::f32, 1, heads, q_len, v_dim);
    args.lse = TensorView(r.lse.data(), DType::f32, {1, heads, q_len});
    args.dout = bhsd(dout.data(), DType::f32, 1, heads, q_len, v_dim);
    args.dq = bhsd(r.dq.data(), DType::f32, 1, heads, q_len, dim);
    args.dk = bhsd(r.dk.data(), DType::f32, 1, heads, kv_len, dim);
    args.dv = bhsd(r.dv.data(), DType::f32, 1, heads, kv_len, v_dim);
    return args;
  }

  /// Forward and backward on the kernels "<prefix>.forward" and "<prefix>.backward".
  [[nodiscard]] DenseResults run(const std::string& prefix, int threads = 0) const {
    DenseResults r;
    CallOptions options;
    options.plan.num_threads = threads;
    options.plan.choice.kernel = prefix + ".forward";
    throw_if_error(forward(forward_args(r), options));
    options.plan.choice.kernel = prefix + ".backward";
    throw_if_error(backward(backward_args(r), options));
    return r;
  }
};

/// Relative L2 error; infinite where one has a value that is not finite and the other has not.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (std::size_t n = 0; n < want.size(); ++n) {
    const double g = static_cast<double>(got[n]), w = static_cast<double>(want[n]);
    if (std::isnan(w) ? std::isnan(g) : g == w) continue;
    if (!std::isfinite(g) || !std::isfinite(w)) return HUGE_VAL;
    difference += (g - w) * (g - w);
    norm += w * w;
  }
  return difference == 0 ? 0 : std::sqrt(difference / (norm == 0 ? 1 : norm));
}

inline void expect_near(const DenseResults& got, const DenseResults& want, double tolerance) {
  EXPECT_LE(relative_error(got.out, want.out), tolerance) << "out";
  EXPECT_LE(relative_error(got.lse, want.lse), tolerance) << "lse";
  EXPECT_LE(relative_error(got.dq, want.dq), tolerance) << "dq";
  EXPECT_LE(relative_error(got.dk, want.dk), tolerance) << "dk";
  EXPECT_LE(relative_error(got.dv, want.dv), tolerance) << "dv";
}

/// f("cpu.avx512") for each pair of kernels, forward and backward, that is judged here.
template <class F>
void for_each_prefix(F&& f) {
  for (const char* family : {"flash", "unfused"})
    for (const std::string& id : kernels_of(family, "backward")) {
      const std::string prefix = id.substr(0, id.rfind('.'));
      SCOPED_TRACE(prefix);
      f(prefix);
    }
}

/// The same for those that compute in bf16 alone: "cpu.amxbf16", ... None on some machines.
template <class F>
void for_each_pairs_prefix(F&& f) {
  for (const std::string& id : kernels_of("flash", "backward", true)) {
    const std::string prefix = id.substr(0, id.rfind('.'));
    SCOPED_TRACE(prefix);
    f(prefix);
  }
}

}  // namespace fovea::test
