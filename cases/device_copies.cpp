#include "cases/device_copies.h"

#include <algorithm>
#include <cstring>

#include <fovea/introspect.h>

namespace fovea::cases {

Device device_of(std::string_view kernel) {
  for (const KernelInfo& info : kernels()) {
    if (info.id == kernel) return {info.device, 0};
  }
  return {};
}

bool is_emulated(const Device& device) {
  const std::vector<DeviceInfo> all = devices();
  return std::any_of(all.begin(), all.end(), [&](const DeviceInfo& info) {
    return info.device == device && info.emulated;
  });
}

const DeviceCopies::Block* DeviceCopies::find(const std::byte* begin) const {
  const auto same = std::find_if(blocks_.begin(), blocks_.end(),
                                 [&](const Block& block) { return block.begin == begin; });
  return same == blocks_.end() ? nullptr : &*same;
}

Status DeviceCopies::add(std::byte* begin, std::size_t bytes) {
  if (find(begin) != nullptr) return {};
  Result<DeviceBuffer> copy = DeviceBuffer::make(device_, bytes);
  if (!copy) return copy.status();
  if (Status status = copy->upload(begin, bytes); !status.ok()) return status;
  blocks_.push_back({begin, bytes, std::move(*copy)});
  return {};
}

Status DeviceCopies::add(const Buffer& buffer) {
  if (!buffer.is_sparse()) return add(buffer.base(), buffer.all_bytes());
  if (find(buffer.base()) != nullptr) return {};
  if (!is_emulated(device_)) {
    return {StatusCode::unsupported,
            "gigabytes of sparse memory are not copied to a device; an emulated one shares them"};
  }
  blocks_.push_back({buffer.base(), buffer.all_bytes(), {}});
  return {};
}

void* DeviceCopies::address_of(const void* host) const {
  const auto* at = static_cast<const std::byte*>(host);
  for (const Block& block : blocks_) {
    if (at >= block.begin && at < block.begin + block.bytes) {
      return block.on_device() + (at - block.begin);
    }
  }
  return const_cast<void*>(host);  // NOLINT: views of inputs are made of it again
}

Status DeviceCopies::fetch(const std::byte* begin) {
  const Block* block = find(begin);
  if (block == nullptr || block->copy.data() == nullptr) return {};
  return block->copy.download(block->begin, block->bytes);
}

Result<bool> DeviceCopies::unchanged(const std::byte* begin) const {
  const Block* block = find(begin);
  if (block == nullptr || block->copy.data() == nullptr) return true;
  std::vector<std::byte> now(block->bytes);
  if (Status status = block->copy.download(now.data(), now.size()); !status.ok()) return status;
  return std::memcmp(now.data(), block->begin, block->bytes) == 0;
}

std::vector<const Buffer*> buffers_read(const Inputs& inputs, const Saved* saved) {
  std::vector<const Buffer*> all;
  for (const Tensor* tensor : inputs.tensors()) all.push_back(tensor->buffer.get());
  if (saved == nullptr) return all;
  for (const Tensor& out : saved->out) all.push_back(out.buffer.get());
  all.push_back(saved->lse.buffer.get());
  return all;
}

std::vector<const Buffer*> buffers_written(const Outputs& outputs) {
  std::vector<const Buffer*> all;
  for (const Output& output : outputs.list) all.push_back(output.tensor.buffer.get());
  return all;
}

}  // namespace fovea::cases
