// serial_gemm through oneDNN, which picks its kernels by CPU feature.
#include <fmt/core.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "lm/error.h"
#include "lm/gemm.h"

namespace fovea::lm {
namespace {

// oneDNN takes its thread count from OpenMP's setting for the calling thread.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneOpenMpThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace

void serial_gemm(const GemmArgs& args) {
  const OneOpenMpThread one;
  const dnnl_status_t status = dnnl_sgemm(
      args.a_transposed ? 'T' : 'N', args.b_transposed ? 'T' : 'N', args.m, args.n, args.k, 1.0F,
      args.a, args.lda, args.b, args.ldb, args.accumulate ? 1.0F : 0.0F, args.c, args.ldc);
  if (status != dnnl_success) {
    fail_as(StatusCode::internal, "[gemm] dnnl_sgemm failed with status {}; m={}, n={}, k={}",
            static_cast<int>(status), args.m, args.n, args.k);
  }
}

std::string gemm_description() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace fovea::lm
