#include "fake_device.h"

#include <cstdlib>
#include <cstring>

namespace fovea::test {

FakeDevice& fake_device() {
  static FakeDevice instance;
  return instance;
}

void FakeDevice::queue(void* stream, Work work) {
  Stream& s = streams_[stream];
  s.waiting.push_back(std::move(work));
  ++s.queued;
}

void FakeDevice::work(void* stream) {
  Stream& s = streams_[stream];
  while (!s.waiting.empty()) {
    const Work next = std::move(s.waiting.front());
    s.waiting.pop_front();
    ++s.done;
    if (s.error.ok()) s.error = next();
  }
}

void FakeDevice::reset() {
  for (auto& [handle, stream] : streams_) work(handle);
  static_cast<void>(flush());  // the library lets go of its marks
  streams_.clear();
  capturing.clear();
  devices = 1;
  allocations = 0;
}

Result<void*> FakeDevice::allocate(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30, kAlignment = 256;
  if (bytes > kMost) return Status(StatusCode::out_of_memory, "[fake] no room");
  ++allocations;
  void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  blocks.insert(data);
  return data;
}

void FakeDevice::free(void* data) {
  for (auto& [handle, stream] : streams_) work(handle);
  blocks.erase(data);
  std::free(data);
}

Status FakeDevice::synchronize(void* stream) {
  work(stream);
  return streams_[stream].error;
}

void* FakeDevice::record(void* stream, void* mark) {
  const std::uintptr_t id = mark == nullptr ? next_mark_++ : reinterpret_cast<std::uintptr_t>(mark);
  marks_[id] = {stream, streams_[stream].queued};
  return reinterpret_cast<void*>(id);
}

Result<bool> FakeDevice::finished(void* mark) {
  const auto id = reinterpret_cast<std::uintptr_t>(mark);
  const Mark& m = marks_.at(id);
  const Stream& s = streams_[m.stream];
  if (s.done < m.after) return false;
  marks_.erase(id);
  if (!s.error.ok()) return s.error;
  return true;
}

namespace {

char own_stream_handle;

const DeviceQueue kQueue = {
    [](int, std::size_t bytes) { return fake_device().allocate(bytes); },
    [](int, void* data) { fake_device().free(data); },
    [](int, void* to, const void* from, std::size_t bytes) -> Status {
      std::memcpy(to, from, bytes);
      return {};
    },
    [](int, void* to, const void* from, std::size_t bytes) -> Status {
      std::memcpy(to, from, bytes);
      return {};
    },
    [](int, void* stream) { return fake_device().synchronize(stream); },
    [](int) -> Result<void*> { return static_cast<void*>(&own_stream_handle); },
    [](int, void* stream) -> Result<bool> { return fake_device().capturing.count(stream) > 0; },
    [](int, void* stream) {
      return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream));
    },
    [](int, void* stream, void* mark) -> Result<void*> {
      return fake_device().record(stream, mark);
    },
    [](int, void* mark) { return fake_device().finished(mark); },
    nullptr,
    nullptr,
    [](int, void* stream, std::uint64_t* count) -> Status {
      fake_device().queue(stream, [count] {
        ++*count;
        return Status{};
      });
      return {};
    },
};

std::vector<DeviceInfo> fake_devices() {
  std::vector<DeviceInfo> list;
  for (int n = 0; n < fake_device().devices; ++n)
    list.push_back({{DeviceType::cuda, n}, "a fake device", "none", 1, true});
  return list;
}

Status fake_merge(const MergeProblem& problem) {
  fake_device().merged_on = problem.stream;
  return {};
}

}  // namespace

const Backend fake_backend = {
    DeviceType::cuda, fake_devices, nullptr,
    nullptr,          fake_merge,   [] { return std::string("no fake device is plugged in"); },
    &kQueue};

}  // namespace fovea::test
