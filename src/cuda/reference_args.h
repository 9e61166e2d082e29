// cuda.reference: what its kernels are told.
#pragma once

#include "contract/plain_rows.h"
#include "contract/reference_formulas.h"
#include "cuda/launch.h"
#include "cuda/reference_rows.h"

namespace fovea::cuda {

/// q^, k^ and v^ in f64, as load_rows left them: rows by queries (RowSpace), or by keys.
struct ReferenceArgs : plain::Call {
  double softcap = 0;              ///< plain::Call has it in f32
  const double* q_rows = nullptr;  ///< [query rows, head_dim]
  const double* k_rows = nullptr;  ///< [key rows, head_dim]
  const double* v_rows = nullptr;  ///< [key rows, v_head_dim]
};

/// One number a query row, [batch, q_heads, q_len] or packed. Data is null where it is absent.
template <class Pointer>
struct RowNumbers {
  plain::Strided<Pointer> at;  ///< columns unused
  plain::Element element = plain::Element::f32;

  FOVEA_HD_INLINE std::int64_t place(const plain::Sequence& s, std::int64_t head,
                                     std::int64_t i) const {
    return s.batch * at.batch + head * at.head + (s.q_begin + i) * at.row;
  }
};

struct ReferenceForwardArgs : ReferenceArgs {
  plain::Sink out;
  RowNumbers<void*> lse;
};

/// What backward keeps of a query row.
struct ReferenceRow {
  reference::Softmax<double> softmax;
  double delta = 0, dlse = 0;
};

struct ReferenceBackwardArgs : ReferenceArgs {
  const double* dout_rows = nullptr;  ///< [query rows, v_head_dim]
  RowNumbers<const void*> dlse;
  ReferenceRow* rows = nullptr;   ///< [query rows]
  double* dq = nullptr;           ///< [query rows, head_dim]: of q^
  double* dk = nullptr;           ///< [key rows, head_dim]: of k^
  double* dv = nullptr;           ///< [key rows, v_head_dim]
  double* dsink_terms = nullptr;  ///< [query rows]; null: not wanted
  WeightGradient dsinks;          ///< [q_heads]
  plain::MaskSink dmask;
};

/// Tasks of a warp: query rows, key rows, elements of the mask's gradient.
FOVEA_HD_INLINE std::int64_t query_tasks(const plain::Shape& s) {
  return s.batch * s.q_heads * s.q_len;
}
FOVEA_HD_INLINE std::int64_t key_tasks(const plain::Shape& s) {
  return s.batch * s.kv_heads * s.kv_len;
}
FOVEA_HD_INLINE std::int64_t dmask_tasks(const plain::MaskSink& dmask) {
  return dmask.sizes[0] * dmask.sizes[1] * dmask.sizes[2] * dmask.sizes[3];
}

FOVEA_CUDA_EXPORT(const Entry* reference_forward_entry());
FOVEA_CUDA_EXPORT(const Entry* reference_dq_entry());
FOVEA_CUDA_EXPORT(const Entry* reference_dk_dv_entry());
FOVEA_CUDA_EXPORT(const Entry* reference_dsinks_entry());
FOVEA_CUDA_EXPORT(const Entry* reference_dmask_entry());

}  // namespace fovea::cuda
