// The kernel contract: all that dispatch knows about a kernel, and all that a kernel is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include <fovea/plan.h>
#include <fovea/status.h>

#include "contract/problem.h"
#include "contract/refusal.h"

namespace fovea {

/// What a kernel may use while it runs. The workspace is in the device's memory, 64-byte aligned,
/// not initialised, and at least as large as the kernel asked for; nothing else may be allocated.
struct Launch {
  void* stream = nullptr;  ///< devices with streams: where the work is queued
  std::byte* workspace = nullptr;
  const ThreadPool* pool = nullptr;  ///< CPU kernels: never null; pool->threads as planned
  /// Devices with streams: in the device's memory, to be added to: tiles of the mask that a look at
  /// all of it found to hide nothing and add nothing, and that are not read again. Null: not
  /// counted.
  std::uint64_t* mask_tiles_skipped = nullptr;
};

/// One kernel: a row of the table that src/registry.cpp composes from each backend's kernels.def.
/// Kernels never select, allocate, read the environment or look at other kernels.
struct Kernel {
  const char* id;       ///< "cpu.avx512.forward"
  const char* backend;  ///< "cpu"
  const char* family;   ///< "flash", "unfused", "reference"
  Direction direction;
  DeviceType device;
  bool explicit_only;  ///< never chosen by priority

  /// Whether this machine can run it at all (instruction set, driver, architecture).
  Refusal (*available)(const Device& device);
  /// Whether it serves the problem, stated exactly; called only where available.
  Refusal (*supports)(const Problem& problem);
  /// Scratch bytes for `threads` workers (devices with streams: 1); must not depend on tensor
  /// contents.
  std::size_t (*workspace_bytes)(const Problem& problem, int threads);
  /// Runs it: queues all its work on the stream, without waiting, or, on the CPU, returns after
  /// completion.
  Status (*run)(const Problem& problem, const Launch& launch);

  /// Serves only a class of the calls that the kernel behind it serves, faster: one dtype, few
  /// queries. That it does not support a call is no fallback, and no line says so.
  bool specialist = false;

  /// Of a library that does the work, where one does: a measured choice is kept for it. Null: the
  /// kernel is this library's own.
  const char* (*version)() = nullptr;

  /// How many operands it copies to the workspace before it reads them. Null: none.
  std::int64_t (*staged_copies)(const Problem& problem) = nullptr;

  /// Where it can run but another kernel for the same calls is faster: why it then waits to be
  /// chosen by its name. Null: nowhere.
  Refusal (*steps_back)(const Device& device) = nullptr;
};

}  // namespace fovea
