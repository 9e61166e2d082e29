// serial_gemm through OpenBLAS. An OpenBLAS older than the CPU may run a generic kernel several
// times slower ("Prescott"); OPENBLAS_CORETYPE=SkylakeX (or Haswell) in the environment corrects
// it.
#include <mutex>

#include <cblas.h>
#include <fmt/core.h>

#include "lm/gemm.h"

extern "C" char* openblas_get_corename(void);

namespace fovea::lm {

void serial_gemm(const GemmArgs& args) {
  // Threads come from the runtime; with a pool of its own OpenBLAS would change results with it.
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
  cblas_sgemm(CblasRowMajor, args.a_transposed ? CblasTrans : CblasNoTrans,
              args.b_transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(args.m),
              static_cast<blasint>(args.n), static_cast<blasint>(args.k), 1.0F, args.a,
              static_cast<blasint>(args.lda), args.b, static_cast<blasint>(args.ldb),
              args.accumulate ? 1.0F : 0.0F, args.c, static_cast<blasint>(args.ldc));
}

std::string gemm_description() { return fmt::format("OpenBLAS {}", openblas_get_corename()); }

}  // namespace fovea::lm
