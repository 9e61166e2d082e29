// f32 matrix products on all threads of the runtime, independent of their number.
#pragma once

#include <cstdint>
#include <string>

namespace fovea::lm {

/// c [m, n] = op(a) op(b) (+ c, with accumulate; + bias [n] on every row, where not null),
/// row-major with leading dimensions in elements. op(a) is [m, k], op(b) is [k, n]; `a_transposed`
/// means that a is stored [k, m]. Cut into blocks by the shape alone; each block is one
/// single-threaded product of the library behind. bias and accumulate exclude each other.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;
  bool a_transposed = false;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  bool b_transposed = false;
  float* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
  const float* bias = nullptr;
};
void gemm(const GemmArgs& args);

/// The same in the calling thread, with `accumulate` but without `bias`: oneDNN or OpenBLAS, chosen
/// at build time (FOVEA_LM_GEMM).
void serial_gemm(const GemmArgs& args);

/// The library behind and what it runs on this machine, e.g. "oneDNN 2.6.3", "OpenBLAS SkylakeX".
std::string gemm_description();

}  // namespace fovea::lm
