// The composition root: the only file that knows both dispatch and the backends.
#include <array>

#include "core/build_config.h"
#include "core/kernel_table.h"

#if FOVEA_CPU_HAS_AVX512
#define FOVEA_ROW_avx512(...) __VA_ARGS__
#define FOVEA_ROW_avx512bf16(...) __VA_ARGS__
#define FOVEA_ROW_amxbf16(...) __VA_ARGS__
#else
#define FOVEA_ROW_avx512(...)
#define FOVEA_ROW_avx512bf16(...)
#define FOVEA_ROW_amxbf16(...)
#endif
#if FOVEA_CPU_HAS_AVX2
#define FOVEA_ROW_avx2(...) __VA_ARGS__
#else
#define FOVEA_ROW_avx2(...)
#endif
#define FOVEA_ROW_baseline(...) __VA_ARGS__

namespace fovea {

// Declare every kernel of the lists. CUDA's and cuDNN's rows name no instruction set.
#define FOVEA_KERNEL(symbol, source, instruction_set) \
  FOVEA_ROW_##instruction_set(extern const Kernel symbol;)
#include "cpu/kernels.def"
#undef FOVEA_KERNEL
#if FOVEA_HAS_CUDA
#define FOVEA_KERNEL(symbol, source) extern const Kernel symbol;
#include "cuda/kernels.def"
#undef FOVEA_KERNEL
#endif
#if FOVEA_HAS_CUDNN
#define FOVEA_KERNEL(symbol, source) extern const Kernel symbol;
#include "cudnn/kernels.def"
#undef FOVEA_KERNEL
#endif

extern const Backend cpu_backend, cuda_backend;

namespace {

// List them.
#define FOVEA_KERNEL(symbol, source, instruction_set) FOVEA_ROW_##instruction_set(&symbol, )
constexpr std::array kKernels = std::to_array<const Kernel*>({
#include "cpu/kernels.def"
#undef FOVEA_KERNEL
#if FOVEA_HAS_CUDA
#define FOVEA_KERNEL(symbol, source) &symbol,
#include "cuda/kernels.def"
#undef FOVEA_KERNEL
#endif
#if FOVEA_HAS_CUDNN
#define FOVEA_KERNEL(symbol, source) &symbol,
#include "cudnn/kernels.def"
#undef FOVEA_KERNEL
#endif
});

static_assert(kKernels.size() <= kMaxKernels);

#if FOVEA_HAS_CUDA
constexpr std::array kBackends = {&cpu_backend, &cuda_backend};
#else
constexpr std::array kBackends = {&cpu_backend};
#endif

}  // namespace

std::span<const Kernel* const> kernel_table() { return kKernels; }
std::span<const Backend* const> backend_table() { return kBackends; }

std::span<const build::Absent> absent_backend_table() { return build::kAbsentBackends; }

}  // namespace fovea
