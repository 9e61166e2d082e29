// From a Problem to plain data.
#pragma once

#include "contract/plain_call.h"
#include "contract/problem.h"

namespace fovea::plain {

Call plain_call(const Problem& problem);

Element element_of(DType dtype);

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

}  // namespace fovea::plain
