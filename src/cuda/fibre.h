// Fibre: a place to continue, with a stack of its own. Fibres take turns by asking. One thread at a
// time may use them.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fovea::cuda {

class Fibre {
 public:
  /// The calling thread, as a fibre to switch from and back to.
  Fibre();
  /// Begins with `body`, which never returns, at the first switch. Throws std::bad_alloc.
  explicit Fibre(void (*body)());
  Fibre(Fibre&& other) noexcept;
  Fibre& operator=(Fibre&&) = delete;
  /// What is on the stack is dropped, not unwound.
  ~Fibre();

  /// Leaves this fibre, which must be the running one, for another. Returns when some fibre
  /// switches back.
  void switch_to(Fibre& other);

 private:
  static void begin();

  void* mapping_ = nullptr;  ///< guard page and stack; null for a thread's own
  void (*body_)() = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t* context_ = nullptr;
#endif
  // What the sanitizers want to know.
  const void* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* handle_ = nullptr;
};

}  // namespace fovea::cuda
