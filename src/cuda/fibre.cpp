#include "cuda/fibre.h"

#include <cstdint>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Keeps what the calling convention wants kept; unlike swapcontext, no system call for signals.
extern "C" __attribute__((visibility("hidden"))) void fovea_switch_stack(void** from, void* to);
asm(R"(
  .text
  .type fovea_switch_stack, @function
  .hidden fovea_switch_stack
  .globl fovea_switch_stack
fovea_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size fovea_switch_stack, .-fovea_switch_stack
)");
#endif

namespace fovea::cuda {
namespace {

// Sanitizers make frames several times as large.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = std::size_t{256} * 1024;
#else
constexpr std::size_t kStackBytes = std::size_t{64} * 1024;
#endif

// Stacks begin at different places within their pages, since the frames of many fibres at one place
// would fall on the same few lines of the processor's cache.
std::size_t top_of_next_stack() {
  static std::size_t count = 0;
  return kStackBytes - count++ * 320 % 4096;
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// The fibre that runs, and the one before it.
Fibre* running = nullptr;
Fibre* before = nullptr;

}  // namespace

Fibre::Fibre() {
#if !defined(__x86_64__)
  context_ = new ucontext_t;
#endif
#if defined(__SANITIZE_THREAD__)
  handle_ = __tsan_get_current_fiber();
#endif
}

Fibre::Fibre(void (*body)()) : body_(body), stack_bytes_(kStackBytes) {
  mapping_ = mmap(nullptr, page_bytes() + kStackBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(mapping_, page_bytes(), PROT_NONE);
  char* stack = static_cast<char*>(mapping_) + page_bytes();
  stack_ = stack;
#if defined(__x86_64__)
  // As if begin() had been called and had then switched away: six registers, where to go on, and a
  // return address that ends a debugger's walk.
  void** top = reinterpret_cast<void**>(stack + top_of_next_stack());
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&Fibre::begin);
  for (int n = 3; n <= 8; ++n) top[-n] = nullptr;
  stack_pointer_ = top - 8;
#else
  context_ = new ucontext_t;
  getcontext(context_);
  context_->uc_stack.ss_sp = stack;
  context_->uc_stack.ss_size = top_of_next_stack();
  makecontext(context_, &Fibre::begin, 0);
#endif
#if defined(__SANITIZE_THREAD__)
  handle_ = __tsan_create_fiber(0);
#endif
}

Fibre::Fibre(Fibre&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      body_(other.body_),
#if defined(__x86_64__)
      stack_pointer_(other.stack_pointer_),
#else
      context_(std::exchange(other.context_, nullptr)),
#endif
      stack_(other.stack_),
      stack_bytes_(other.stack_bytes_),
      handle_(std::exchange(other.handle_, nullptr)) {
}

Fibre::~Fibre() {
#if !defined(__x86_64__)
  delete context_;
#endif
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  if (handle_ != nullptr) __tsan_destroy_fiber(handle_);
#endif
  munmap(mapping_, page_bytes() + kStackBytes);
}

void Fibre::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &before->stack_, &before->stack_bytes_);
#endif
  running->body_();
}

void Fibre::switch_to(Fibre& other) {
  before = this;
  running = &other;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&handle_, other.stack_, other.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(other.handle_, 0);
#endif
#if defined(__x86_64__)
  fovea_switch_stack(&stack_pointer_, other.stack_pointer_);
#else
  swapcontext(context_, other.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(handle_, &before->stack_, &before->stack_bytes_);
#endif
}

}  // namespace fovea::cuda
