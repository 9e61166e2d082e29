#include "lm/tensor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/ranges.h>

#include "lm/error.h"
#include "lm/parallel.h"

namespace fovea::lm {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallest = 256;

std::atomic<std::int64_t> current_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

// Keeps freed buffers by size: training frees and allocates the same sizes every step, and fresh
// pages from the system cost more than many of the operators.
class BufferCache {
 public:
  void* take(std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(size);
      if (found != free_.end()) {
        void* buffer = found->second;
        free_.erase(found);
        cached_ -= static_cast<std::int64_t>(size);
        return buffer;
      }
    }
    void* buffer = std::aligned_alloc(kAlignment, size);
    if (buffer == nullptr) {
      release();
      buffer = std::aligned_alloc(kAlignment, size);
    }
    return buffer;
  }

  void give(void* buffer, std::size_t size) {
    const std::lock_guard lock(mutex_);
    free_.emplace(size, buffer);
    cached_ += static_cast<std::int64_t>(size);
  }

  void release() {
    const std::lock_guard lock(mutex_);
    for (const auto& [size, buffer] : free_) std::free(buffer);
    free_.clear();
    cached_ = 0;
  }

  std::int64_t cached() {
    const std::lock_guard lock(mutex_);
    return cached_;
  }

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::int64_t cached_ = 0;
};

// Never destroyed: tensors with static storage may outlive any static object.
BufferCache& cache() {
  static auto* instance = new BufferCache;
  return *instance;
}

Shape row_major(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace

struct Tensor::Storage {
  explicit Storage(std::size_t bytes)
      : size((std::max(bytes, kSmallest) + kAlignment - 1) / kAlignment * kAlignment),
        memory(cache().take(size)) {
    if (memory == nullptr) {
      fail_as(StatusCode::out_of_memory,
              "[tensor] cannot allocate {} bytes; {} are in live tensors", size,
              current_bytes.load());
    }
    const std::int64_t now = current_bytes += static_cast<std::int64_t>(size);
    std::int64_t peak = peak_bytes.load();
    while (peak < now && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
  }
  ~Storage() {
    current_bytes -= static_cast<std::int64_t>(size);
    cache().give(memory, size);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t size;
  void* memory;
};

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  bool overflow = false;
  bool none = false;
  for (const std::int64_t size : shape) {
    if (size < 0) fail("[tensor] a dimension is negative; got shape {}", to_string(shape));
    none = none || size == 0;
    overflow = __builtin_mul_overflow(count, size, &count) || overflow;
  }
  if (none) return 0;
  if (overflow || count > INT64_MAX / 8) {
    fail("[tensor] the number of bytes exceeds 64 bits; got shape {}", to_string(shape));
  }
  return count;
}

TensorMemory tensor_memory() { return {current_bytes.load(), peak_bytes.load(), cache().cached()}; }

void reset_peak_tensor_memory() { peak_bytes = current_bytes.load(); }

void release_cached_tensor_memory() { cache().release(); }

Tensor Tensor::empty(Shape shape, DType dtype) {
  if (size_of(dtype) == 0) fail("[tensor] the dtype must not be none");
  Tensor tensor;
  tensor.numel_ = element_count(shape);
  tensor.storage_ =
      std::make_shared<Storage>(static_cast<std::size_t>(tensor.numel_ * size_of(dtype)));
  tensor.dtype_ = dtype;
  tensor.strides_ = row_major(shape);
  tensor.shape_ = std::move(shape);
  return tensor;
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor tensor = empty(std::move(shape), dtype);
  tensor.zero();
  return tensor;
}

Tensor Tensor::from(std::span<const float> values, Shape shape) {
  if (element_count(shape) != static_cast<std::int64_t>(values.size())) {
    fail("[tensor] shape {} needs {} values; got {}", to_string(shape), element_count(shape),
         values.size());
  }
  Tensor tensor = empty(std::move(shape));
  std::copy(values.begin(), values.end(), tensor.data());
  return tensor;
}

std::int64_t Tensor::dim(std::int64_t index) const {
  const std::int64_t at = index < 0 ? index + rank() : index;
  if (at < 0 || at >= rank()) {
    fail("[tensor] shape {} has no dimension {}", to_string(shape_), index);
  }
  return shape_[static_cast<std::size_t>(at)];
}

bool Tensor::contiguous() const {
  std::int64_t stride = 1;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    if (shape_[i] != 1 && strides_[i] != stride && numel_ != 0) return false;
    stride *= shape_[i];
  }
  return true;
}

void* Tensor::raw() const {
  if (!defined()) fail("[tensor] the tensor is undefined");
  return static_cast<std::byte*>(storage_->memory) + offset_ * size_of(dtype_);
}

float* Tensor::data() const {
  if (dtype_ != DType::f32) fail("[tensor] f32 elements wanted; got {}", name_of(dtype_));
  return static_cast<float*>(raw());
}

std::span<float> Tensor::values() const {
  if (!contiguous()) {
    fail("[tensor] a contiguous tensor is wanted; got shape {} with strides {}", to_string(shape_),
         to_string(strides_));
  }
  return {data(), static_cast<std::size_t>(numel_)};
}

float Tensor::item() const {
  if (numel_ != 1) fail("[tensor] one element wanted; got shape {}", to_string(shape_));
  return *data();
}

Tensor Tensor::view(Shape shape) const {
  if (!contiguous() || element_count(shape) != numel_) {
    fail("[tensor] cannot view shape {} (strides {}) as {}", to_string(shape_), to_string(strides_),
         to_string(shape));
  }
  Tensor result = *this;
  result.strides_ = row_major(shape);
  result.shape_ = std::move(shape);
  return result;
}

Tensor Tensor::strided(std::int64_t offset, Shape shape, Shape strides) const {
  if (shape.size() != strides.size()) {
    fail("[tensor] shape {} and strides {} differ in rank", to_string(shape), to_string(strides));
  }
  Tensor result = *this;
  result.numel_ = element_count(shape);
  result.offset_ = offset_ + offset;
  std::int64_t last = result.offset_;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] < 0) fail("[tensor] a stride is negative; got {}", to_string(strides));
    last += (shape[i] - 1) * strides[i];
  }
  const auto limit = static_cast<std::int64_t>(storage_->size) / size_of(dtype_);
  if (result.numel_ > 0 && (result.offset_ < 0 || last >= limit)) {
    fail("[tensor] shape {} with strides {} at offset {} leaves a storage of {} elements",
         to_string(shape), to_string(strides), result.offset_, limit);
  }
  result.shape_ = std::move(shape);
  result.strides_ = std::move(strides);
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape_, dtype_);
  if (contiguous()) {
    std::memcpy(result.raw(), raw(), static_cast<std::size_t>(bytes()));
  } else {
    copy_into(result, *this);
  }
  return result;
}

void Tensor::zero() const {
  if (contiguous()) {
    std::memset(raw(), 0, static_cast<std::size_t>(bytes()));
    return;
  }
  const Tensor nothing = zeros({1}, dtype_);
  copy_into(*this, nothing.strided(0, shape_, Shape(shape_.size(), 0)));
}

template <class Pointer>
BasicTensorView<Pointer> Tensor::as_view() const {
  if (rank() > kMaxRank) {
    fail("[tensor] at most {} dimensions; got shape {}", kMaxRank, to_string(shape_));
  }
  BasicTensorView<Pointer> view;
  view.data = raw();
  view.dtype = dtype_;
  view.rank = static_cast<std::int32_t>(rank());
  std::copy(shape_.begin(), shape_.end(), view.shape.begin());
  std::copy(strides_.begin(), strides_.end(), view.strides.begin());
  return view;
}

template BasicTensorView<const void*> Tensor::as_view<const void*>() const;
template BasicTensorView<void*> Tensor::as_view<void*>() const;

void copy_into(const Tensor& to, const Tensor& from, bool add) {
  if (to.shape() != from.shape()) {
    fail("[tensor] cannot copy shape {} into {}", to_string(from.shape()), to_string(to.shape()));
  }
  if (to.rank() > 4) fail("[tensor] at most 4 dimensions; got {}", to_string(to.shape()));
  std::array<std::int64_t, 4> size{1, 1, 1, 1}, a{}, b{};
  const auto lead = static_cast<std::size_t>(4 - to.rank());
  for (std::size_t i = 0; i + lead < 4; ++i) {
    size[lead + i] = to.shape()[i];
    a[lead + i] = to.strides()[i];
    b[lead + i] = from.strides()[i];
  }
  float* const out = to.data();
  const float* const in = from.data();
  parallel_ranges(size[0] * size[1], 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t outer = begin; outer < end; ++outer) {
      const std::int64_t i = outer / size[1];
      const std::int64_t j = outer % size[1];
      for (std::int64_t k = 0; k < size[2]; ++k) {
        float* x = out + i * a[0] + j * a[1] + k * a[2];
        const float* y = in + i * b[0] + j * b[1] + k * b[2];
        for (std::int64_t l = 0; l < size[3]; ++l) {
          x[l * a[3]] = add ? x[l * a[3]] + y[l * b[3]] : y[l * b[3]];
        }
      }
    }
  });
}

}  // namespace fovea::lm
