#include "core/tuning_scratch.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "contract/elements.h"
#include "contract/format.h"
#include "core/devices.h"
#include "core/status_macros.h"
#include "core/views.h"

namespace fovea {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 30;
constexpr std::size_t kAlignment = 256;
/// Alignments that kernels tell apart.
constexpr std::uintptr_t kKeptAlignment = 64;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

std::size_t free_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.starts_with(kName))
      return std::strtoull(line.c_str() + kName.size(), nullptr, 10) * 1024;
  }
  return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Bytes from the lowest address of a view to its first element, and in all.
struct Extent {
  std::size_t before = 0, bytes = 0;
};

Extent extent_of(const TensorView& view) {
  const auto size = static_cast<std::size_t>(size_of(view.dtype));
  Extent extent{0, size};
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    const auto reach = static_cast<std::size_t>((view.shape[n] - 1) * std::abs(view.strides[n]));
    if (view.strides[n] < 0) extent.before += reach * size;
    extent.bytes += reach * size;
  }
  return extent;
}

/// What a view's memory is filled with, over and over.
std::vector<std::byte> pattern_of(const Problem& problem, const TensorView& view,
                                  std::string_view name) {
  std::vector<std::byte> pattern(kChunkBytes);
  if (view.dtype == DType::boolean) {
    std::memset(pattern.data(), 1, pattern.size());
    return pattern;
  }
  if (!is_floating(view.dtype)) return pattern;
  const auto count = static_cast<std::int64_t>(pattern.size()) / size_of(view.dtype);
  // Of random scores: p is then about 1 / kv_len, as it should be.
  const double lse = std::log(static_cast<double>(std::max<std::int64_t>(problem.kv_len, 1)));
  std::uint64_t state = 0x2545F4914F6CDD1Du;
  for (std::int64_t n = 0; n < count; ++n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double uniform = static_cast<double>(state >> 11) * 0x1p-52 - 1;
    store_element(pattern.data(), view.dtype, n, name == "lse" ? lse : uniform);
  }
  return pattern;
}

void store_integer(std::byte* at, DType dtype, std::int64_t value) {
  if (dtype == DType::i64) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const auto narrow = static_cast<std::int32_t>(value);
  std::memcpy(at, &narrow, sizeof(narrow));
}

/// Lengths and pages, written into an image of the view's memory. False: zeros will do.
bool write_integers(const Problem& p, const TensorView& view, std::string_view name,
                    std::byte* first) {
  const auto each = [&](auto&& value) {
    const std::int64_t size = size_of(view.dtype);
    const std::int64_t columns = view.rank > 1 ? view.shape[1] : 1;
    for (std::int64_t row = 0; row < view.shape[0]; ++row)
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at =
            row * view.strides[0] + (view.rank > 1 ? column * view.strides[1] : 0);
        store_integer(first + at * size, view.dtype, value(row, column));
      }
  };
  if (name == "cu_seqlens_q") {
    each([&](auto n, auto) { return std::min(n * p.q_len, p.q().shape[0]); });
  } else if (name == "cu_seqlens_k") {
    each([&](auto n, auto) { return std::min(n * p.kv_len, p.k().shape[0]); });
  } else if (name == "seqused_k") {
    each([&](auto, auto) { return p.kv_len; });
  } else if (name == "block_table") {
    const std::int64_t pages = std::max<std::int64_t>(p.k().shape[0], 1);
    each([&](auto row, auto column) { return (row * view.shape[1] + column) % pages; });
  } else {
    return false;
  }
  return true;
}

Status write(const DeviceQueue* queue, int device, std::byte* to, const std::byte* from,
             std::size_t bytes) {
  if (queue != nullptr) return queue->upload(device, to, from, bytes);
  std::memcpy(to, from, bytes);
  return {};
}

Status fill(const DeviceQueue* queue, const Problem& problem, const TensorView& view,
            std::string_view name, std::byte* to, const Extent& extent) {
  const int device = problem.device.index;
  if (view.dtype == DType::i32 || view.dtype == DType::i64) {
    std::vector<std::byte> image(extent.bytes);
    write_integers(problem, view, name, image.data() + extent.before);
    return write(queue, device, to, image.data(), image.size());
  }
  const std::vector<std::byte> pattern = pattern_of(problem, view, name);
  for (std::size_t done = 0; done < extent.bytes; done += pattern.size())
    FOVEA_RETURN_IF_ERROR(write(queue, device, to + done, pattern.data(),
                                std::min(pattern.size(), extent.bytes - done)));
  return {};
}

}  // namespace

Result<std::unique_ptr<TuningScratch>> TuningScratch::make(const Problem& like,
                                                           std::size_t workspace_bytes) {
  std::unique_ptr<TuningScratch> made(new TuningScratch(like));
  Problem& problem = made->problem_;
  const DeviceQueue* queue = queue_of(like.device);
  made->queue_ = queue;

  // Count.
  const auto rounded = [](std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::size_t bytes = rounded(workspace_bytes);
  bool too_many = workspace_bytes > kMostBytes;
  visit_problem(problem, [&](const TensorView& view, const char*, Role) {
    if (view.elements() == 0) return;
    const Extent extent = extent_of(view);
    too_many = too_many || extent.bytes > kMostBytes || bytes > kMostBytes;
    if (!too_many) bytes += rounded(extent.bytes + kKeptAlignment);
  });
  std::size_t available = free_host_bytes();
  if (queue != nullptr) {
    available = SIZE_MAX;
    if (queue->free_bytes != nullptr) {
      const Result<std::size_t> free_bytes = queue->free_bytes(like.device.index);
      if (!free_bytes.ok()) return free_bytes.status();
      available = *free_bytes;
    }
  }
  const std::size_t limit = std::min(kMostBytes, available / 4);
  if (too_many || bytes > limit)
    return Status(
        StatusCode::out_of_memory,
        formatted("a trial needs {} MiB of memory; at most {} MiB are used for one",
                  too_many ? "more than 4096" : formatted("{}", bytes >> 20), limit >> 20));

  // Allocate.
  if (queue != nullptr) {
    const Result<void*> memory = queue->allocate(like.device.index, std::max(bytes, kAlignment));
    if (!memory.ok()) return memory.status();
    made->memory_ = *memory;
  } else {
    made->memory_ = std::aligned_alloc(kAlignment, std::max(bytes, kAlignment));
    if (made->memory_ == nullptr)
      return Status(StatusCode::out_of_memory, formatted("no {} bytes for a trial", bytes));
  }

  // Move the tensors there.
  auto* next = static_cast<std::byte*>(made->memory_);
  made->workspace_ = next;
  next += rounded(workspace_bytes);
  Status status;
  visit_problem(problem, [&](auto& view, const char* name, Role role) {
    if (view.elements() == 0 || !status.ok()) return;
    const Extent extent = extent_of(view);
    const auto lowest = reinterpret_cast<std::uintptr_t>(view.data) - extent.before;
    std::byte* begin = next + lowest % kKeptAlignment;
    view.data = begin + extent.before;
    next += rounded(extent.bytes + kKeptAlignment);
    if (role == Role::input) status = fill(queue, problem, view, name, begin, extent);
  });
  FOVEA_RETURN_IF_ERROR(status);
  problem.out.data = problem.out_segments.segments[0].tensor.data;
  problem.saved_out.data = problem.saved_out_segments.segments[0].tensor.data;
  problem.dout.data = problem.dout_segments.segments[0].tensor.data;
  problem.mask4.data = problem.params.mask.data;
  problem.dmask4.data = problem.dmask.data;
  return made;
}

TuningScratch::~TuningScratch() {
  if (memory_ == nullptr) return;
  if (queue_ != nullptr)
    queue_->free(problem_.device.index, memory_);
  else
    std::free(memory_);
}

}  // namespace fovea
