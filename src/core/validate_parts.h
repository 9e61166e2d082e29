// The parts of validation, in the order they run. Each relies on the ones before it.
#pragma once

#include <string>

#include <fovea/status.h>

#include "contract/format.h"
#include "contract/problem.h"

namespace fovea::validation {

/// What the parts share: the problem being built and the name of the entry for messages.
struct Context {
  Problem& problem;
  std::string where;

  template <class... Args>
  [[nodiscard]] Status invalid(fmt::format_string<Args...> format, Args&&... args) const {
    return {StatusCode::invalid,
            "[" + where + "] " + formatted(format, std::forward<Args>(args)...)};
  }
};

/// q, k, v: ranks, dims, segments, varlen, paging, seqused_k; sets batch, lengths, heads, dims.
Status check_operands(Context& context);
/// Compute dtype by the policy, F32Precision, quantisation.
Status check_dtypes(Context& context);
/// Scale, band, mask, ALiBi, softcap, sinks.
Status check_scores(Context& context);
/// Dropout.
Status check_dropout(Context& context);
/// Segment norm weights, QK-norm and RoPE.
Status check_prologue(Context& context);
/// out and lse of forward.
Status check_forward_results(Context& context);
/// What forward left behind, the upstream gradients and the requested gradients.
Status check_gradients(Context& context);

/// RoPE rows needed by the call against the rows of the tables.
Status check_rope_rows(const std::string& where, const Problem& problem);
/// Dropout positions and streams against the counter's widths.
Status check_dropout_range(const std::string& where, const Problem& problem);

/// Layout and device of one view; floating dtype if `floating`.
Status check_view(const Context& context, const char* name, const TensorView& view, int min_rank,
                  int max_rank, bool floating);
/// The view has exactly this shape.
Status check_shape(const Context& context, const char* name, const TensorView& view,
                   std::initializer_list<std::int64_t> shape);
/// Layout and device of one view of i32 or i64 with exactly this shape.
Status check_index_view(const Context& context, const char* name, const TensorView& view,
                        std::initializer_list<std::int64_t> shape);

/// The view with leading dimensions added up to 4, and stride 0 where it has one element.
template <class View>
View broadcast_to_4d(const View& view) {
  View wide;
  wide.data = view.data;
  wide.dtype = view.dtype;
  wide.device = view.device;
  wide.rank = 4;
  for (int d = 0; d < 4; ++d) {
    const int from = d - (4 - view.rank);
    const auto to = static_cast<std::size_t>(d);
    const bool real = from >= 0 && view.shape[static_cast<std::size_t>(from)] != 1;
    wide.shape[to] = from >= 0 ? view.shape[static_cast<std::size_t>(from)] : 1;
    wide.strides[to] = real ? view.strides[static_cast<std::size_t>(from)] : 0;
  }
  return wide;
}

}  // namespace fovea::validation
