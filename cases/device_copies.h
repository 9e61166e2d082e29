// A call's tensors on a device: copies of the memory they lie in, guards and poison included.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/attention.h>
#include <fovea/device_memory.h>
#include <fovea/status.h>

#include "cases/buffer.h"
#include "cases/outputs.h"

namespace fovea::cases {

/// f(view) for every view of the arguments, present or not.
template <class F>
void for_each_view(AttentionParams& p, F&& f) {
  for (Operand* operand : {&p.q, &p.k, &p.v}) {
    for (int n = 0; n < operand->count; ++n) {
      f(operand->segments[n].tensor);
      f(operand->segments[n].norm_weight);
    }
  }
  for (TensorView* view :
       {&p.mask, &p.alibi.slopes, &p.sinks, &p.dropout.seed_tensor, &p.dropout.offset_tensor,
        &p.dropout.streams, &p.varlen.cu_seqlens_q, &p.varlen.cu_seqlens_k, &p.seqused_k,
        &p.paged.block_table, &p.rope.cos, &p.rope.sin, &p.rope.q_offsets, &p.rope.k_offsets}) {
    f(*view);
  }
}
template <class F>
void for_each_view(ForwardArgs& args, F&& f) {
  for_each_view(args.params, f);
  for (int n = 0; n < args.out.count; ++n) f(args.out.segments[n].tensor);
  f(args.lse);
}
template <class F>
void for_each_view(BackwardArgs& args, F&& f) {
  for_each_view(args.params, f);
  for (Operand* operand : {&args.out, &args.dout}) {
    for (int n = 0; n < operand->count; ++n) f(operand->segments[n].tensor);
  }
  f(args.lse);
  f(args.dlse);
  for (MutableOperand* operand : {&args.dq, &args.dk, &args.dv}) {
    for (int n = 0; n < operand->count; ++n) {
      f(operand->segments[n].tensor);
      f(operand->segments[n].norm_weight);
    }
  }
  f(args.dmask);
  f(args.dsinks);
}

/// The arguments as if their tensors were on the device, for planning, which looks at no data.
template <class Args>
Args as_on(const Device& device, Args args) {
  for_each_view(args, [&](auto& view) {
    if (view.present()) view.device = device;
  });
  return args;
}

/// The first device that a kernel runs on; the CPU where no kernel has this name.
Device device_of(std::string_view kernel);
/// Whether the host computes in the device's place.
bool is_emulated(const Device& device);

/// Copies of blocks of host memory on a device.
class DeviceCopies {
 public:
  explicit DeviceCopies(const Device& device) : device_(device) {}

  /// Copies a block of memory to the device, once, however often it is added. The copy begins at a
  /// multiple of 64.
  Status add(std::byte* begin, std::size_t bytes);
  /// The same with a buffer and its guards. Sparse memory is not copied: an emulated device uses it
  /// where it is, and others refuse it.
  Status add(const Buffer& buffer);

  /// The arguments with views of the copies. Views that lie in no block keep their pointers.
  template <class Args>
  [[nodiscard]] Args moved(Args args) const {
    for_each_view(args, [&](auto& view) {
      if (!view.present()) return;
      view.device = device_;
      if (view.data != nullptr) view.data = address_of(view.data);
    });
    return args;
  }
  /// Where a byte of a block lies on the device; the byte itself when it is in no block.
  [[nodiscard]] void* address_of(const void* host) const;

  /// Copies a block back to where it came from.
  Status fetch(const std::byte* begin);
  /// Whether the copy of a block is as it was when it was added.
  Result<bool> unchanged(const std::byte* begin) const;

 private:
  struct Block {
    std::byte* begin;
    std::size_t bytes;
    DeviceBuffer copy;  ///< empty: shared
    [[nodiscard]] std::byte* on_device() const {
      return copy.data() == nullptr ? begin : static_cast<std::byte*>(copy.data());
    }
  };
  [[nodiscard]] const Block* find(const std::byte* begin) const;

  Device device_;
  std::vector<Block> blocks_;
};

/// The memory that a case's call reads. `saved`: of backward, else null.
std::vector<const Buffer*> buffers_read(const Inputs& inputs, const Saved* saved);
std::vector<const Buffer*> buffers_written(const Outputs& outputs);

}  // namespace fovea::cases
