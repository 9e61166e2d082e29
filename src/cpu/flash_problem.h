// From a Problem to the plain arguments of the flash kernels. Compiled for every machine.
#pragma once

#include "contract/kernel.h"
#include "cpu/flash_args.h"

namespace fovea::cpu {

FlashArgs flash_args(const Problem& problem);

/// out or dout, in one to four segments.
Source source_like_out(const Problem& problem, const Operand& operand);
/// out, in one to four segments; dq, dk, dv: those of their inputs, of which some may be absent.
Sink sink_like_out(const Problem& problem, const MutableOperand& out);
Sink sink_of_gradient(const MutableOperand& gradient, const Source& input);
/// Whether a gradient is wanted, or that of its norm's weights.
bool wanted(const MutableOperand& gradient);

/// dmask, reduced over the dimensions that the mask is broadcast over.
MaskSink mask_sink(const Problem& problem);

/// lse, dlse and the like: [batch, q_heads, q_len], or [q_heads, total_q].
template <class Pointer, class View>
Strided<Pointer> rows_of_heads(const Problem& p, const View& view) {
  Strided<Pointer> s{};
  if (!view.present() || view.elements() == 0) return s;
  s.data = static_cast<Pointer>(view.data);
  const bool packed = p.params.varlen.cu_seqlens_q.present();
  s.batch = packed ? 0 : view.strides[0];
  s.head = view.strides[packed ? 0 : 1];
  s.row = view.strides[packed ? 1 : 2];
  return s;
}

/// What the flash kernels serve.
Refusal supports_flash(const Problem& problem);

}  // namespace fovea::cpu
