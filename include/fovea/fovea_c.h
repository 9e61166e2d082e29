/* Fovea's C ABI. The meaning of every field is that of the C++ header attention.h.
 *
 * Rules: every struct of arguments begins with its own size, so that it can grow; a zeroed field is
 * its default; a tensor with dtype 0 is absent. Functions return a fovea_status and never throw,
 * abort or print; the message of the last failure is fovea_last_error(), per thread. Enumerators
 * and struct layouts are stable within one fovea_abi_version(). Tensors are not owned. Strides are
 * in elements. */
#ifndef FOVEA_FOVEA_C_H
#define FOVEA_FOVEA_C_H

#include <stddef.h>
#include <stdint.h>

#include <fovea/export.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FOVEA_ABI_VERSION 1
#define FOVEA_MAX_RANK 5
#define FOVEA_MAX_SEGMENTS 4
/** A side of a band without a limit. */
#define FOVEA_UNBOUNDED INT64_MAX

typedef enum fovea_status {
  FOVEA_OK = 0,
  FOVEA_INVALID = 1,     /**< the caller's mistake */
  FOVEA_UNSUPPORTED = 2, /**< no kernel serves it; the message has every reason */
  FOVEA_OUT_OF_MEMORY = 3,
  FOVEA_DEVICE_ERROR = 4,
  FOVEA_INTERNAL = 5
} fovea_status;

typedef enum fovea_dtype {
  FOVEA_NONE = 0,
  FOVEA_F32 = 1,
  FOVEA_F16 = 2,
  FOVEA_BF16 = 3,
  FOVEA_F64 = 4,
  FOVEA_BOOL = 5,
  FOVEA_I32 = 6,
  FOVEA_I64 = 7,
  FOVEA_I8 = 8,
  FOVEA_I4X2 = 9,
  FOVEA_FP8_E4M3 = 10,
  FOVEA_FP8_E5M2 = 11
} fovea_dtype;

typedef enum fovea_device_type { FOVEA_CPU = 0, FOVEA_CUDA = 1, FOVEA_METAL = 2 } fovea_device_type;
typedef enum fovea_anchor {
  FOVEA_ANCHOR_NONE = 0, /**< no band */
  FOVEA_TOP_LEFT = 1,
  FOVEA_BOTTOM_RIGHT = 2
} fovea_anchor;
typedef enum fovea_rope_style { FOVEA_ROPE_INTERLEAVED = 1, FOVEA_ROPE_HALF = 2 } fovea_rope_style;
typedef enum fovea_rope_table {
  FOVEA_ROPE_TABLE_HALF = 1,
  FOVEA_ROPE_TABLE_DUPLICATED = 2
} fovea_rope_table;
typedef enum fovea_proof_level {
  FOVEA_PROOF_OFF = 0,
  FOVEA_PROOF_PROOF = 1,
  FOVEA_PROOF_ALL = 2
} fovea_proof_level;

/** A strided view. Enumerations are stored as int32_t. This layout never changes. */
typedef struct fovea_tensor {
  void* data; /**< inputs are not written */
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t rank;
  int64_t shape[FOVEA_MAX_RANK];
  int64_t strides[FOVEA_MAX_RANK];
} fovea_tensor;

typedef struct fovea_segment {
  fovea_tensor tensor;
  fovea_tensor norm_weight;
} fovea_segment;

/** One to four segments along the sequence. This layout never changes. */
typedef struct fovea_operand {
  int32_t count;
  int32_t reserved;
  fovea_segment segments[FOVEA_MAX_SEGMENTS];
} fovea_operand;

/** What is computed; the same for forward and backward. See AttentionParams. */
typedef struct fovea_params {
  size_t struct_size;
  fovea_operand q, k, v;

  int32_t has_scale; /**< 0: 1/sqrt(head_dim) */
  int32_t band_anchor;
  double scale;
  int64_t band_left, band_right; /**< used when band_anchor is set */

  fovea_tensor mask;
  fovea_tensor alibi_slopes;
  int32_t alibi_anchor; /**< 0: FOVEA_TOP_LEFT */
  int32_t qk_norm;      /**< 1: RMSNorm of q and k with the segments' weights */
  double qk_norm_eps;   /**< 0: 1e-6 */
  double softcap;
  fovea_tensor sinks;

  double dropout_probability;
  uint64_t dropout_seed, dropout_offset;
  fovea_tensor dropout_seed_tensor, dropout_offset_tensor, dropout_streams;
  int64_t dropout_row_origin, dropout_column_origin;

  fovea_tensor cu_seqlens_q, cu_seqlens_k;
  int64_t max_q_len, max_kv_len; /**< varlen maxima */
  fovea_tensor seqused_k;
  fovea_tensor block_table;
  int64_t paged_max_kv_len;

  fovea_tensor rope_cos, rope_sin;
  int32_t rope_style; /**< 0: FOVEA_ROPE_INTERLEAVED */
  int32_t rope_table; /**< 0: FOVEA_ROPE_TABLE_HALF */
  int64_t rotary_dim; /**< 0: head_dim */
  int64_t rope_q_offset, rope_k_offset;
  fovea_tensor rope_q_offsets, rope_k_offsets;
  int32_t rope_skip_q, rope_skip_k; /**< 1: that operand is rotated already */

  int32_t cast_dtype; /**< 0: mixed dtypes are refused */
  int32_t tf32;       /**< 1: products may be rounded to tf32 */
  int32_t quantized_dtype, quantized_block;
} fovea_params;

typedef struct fovea_forward_args {
  size_t struct_size;
  const fovea_params* params;
  fovea_operand out;
  fovea_tensor lse; /**< optional */
} fovea_forward_args;

typedef struct fovea_backward_args {
  size_t struct_size;
  const fovea_params* params;
  fovea_operand out, dout;
  fovea_tensor lse, dlse;   /**< dlse is optional */
  fovea_operand dq, dk, dv; /**< count 0 or an absent tensor: not wanted */
  fovea_tensor dmask, dsinks;
} fovea_backward_args;

/** A caller's threads; see ThreadPool. */
typedef struct fovea_thread_pool {
  size_t struct_size;
  int32_t threads;
  void* self;
  void (*run)(void* self, void (*task)(void* arg, int worker), void* arg);
} fovea_thread_pool;

typedef struct fovea_job fovea_job;
typedef struct fovea_plan fovea_plan;

/** How a call is planned and run; NULL stands for all defaults. */
typedef struct fovea_options {
  size_t struct_size;
  const char* kernel;  /**< an id, or NULL */
  const char* backend; /**< a backend or family, or NULL */
  int32_t strict;
  int32_t deterministic;
  int32_t skip_self_check;
  int32_t autotune;    /**< 1: the kernels that serve are measured; see PlanOptions::autotune */
  int32_t num_threads; /**< 0: FOVEA_NUM_THREADS, else the usable cores */
  const fovea_thread_pool* pool;
  void* stream;
  void* workspace;
  size_t workspace_bytes;
  fovea_job* job;
} fovea_options;

FOVEA_API uint32_t fovea_abi_version(void);
FOVEA_API const char* fovea_version(void);
/** Message of the last call on this thread that failed; never NULL. */
FOVEA_API const char* fovea_last_error(void);

FOVEA_API fovea_status fovea_forward(const fovea_forward_args* args, const fovea_options* options);
FOVEA_API fovea_status fovea_backward(const fovea_backward_args* args,
                                      const fovea_options* options);

/** Plans are made once and run often, from several threads if wanted. `pool->self` must outlive the
 * plan. *plan is NULL after a failure. */
FOVEA_API fovea_status fovea_plan_forward(const fovea_forward_args* args,
                                          const fovea_options* options, fovea_plan** plan);
FOVEA_API fovea_status fovea_plan_backward(const fovea_backward_args* args,
                                           const fovea_options* options, fovea_plan** plan);
FOVEA_API fovea_status fovea_plan_run_forward(const fovea_plan* plan,
                                              const fovea_forward_args* args,
                                              const fovea_options* options);
FOVEA_API fovea_status fovea_plan_run_backward(const fovea_plan* plan,
                                               const fovea_backward_args* args,
                                               const fovea_options* options);
FOVEA_API size_t fovea_plan_workspace_bytes(const fovea_plan* plan);
/** Id of the chosen kernel; lives as long as the plan. */
FOVEA_API const char* fovea_plan_kernel(const fovea_plan* plan);
/** How the plan is served (Report) as a JSON text, measured choice included: its kernel, workspace,
 * the kernels passed over with their reasons, and `tuned`. Written as fovea_info_json() writes. */
FOVEA_API size_t fovea_plan_report_json(const fovea_plan* plan, char* buffer, size_t capacity);
FOVEA_API void fovea_plan_destroy(fovea_plan* plan);

/** Merges `count` partial results; see merge_partials(). sinks and lse may be NULL. */
FOVEA_API fovea_status fovea_merge_partials(const fovea_tensor* outs, const fovea_tensor* lses,
                                            size_t count, const fovea_tensor* sinks,
                                            const fovea_tensor* out, const fovea_tensor* lse);

/** The same, queued on a CUDA stream (cudaStream_t). */
FOVEA_API fovea_status fovea_merge_partials_on_stream(const fovea_tensor* outs,
                                                      const fovea_tensor* lses, size_t count,
                                                      const fovea_tensor* sinks,
                                                      const fovea_tensor* out,
                                                      const fovea_tensor* lse, void* stream);

FOVEA_API fovea_status fovea_job_create(const char* name, fovea_job** job);
/** Counts and proves the runs that have finished on CUDA devices by now, without waiting. Fails
 * once with the first failure of a run of the job that happened after it was queued. */
FOVEA_API fovea_status fovea_job_flush(fovea_job* job);
/** The same for calls without a job. */
FOVEA_API fovea_status fovea_flush(void);
FOVEA_API void fovea_job_destroy(fovea_job* job);

FOVEA_API fovea_status fovea_set_proof_level(int32_t level);
/** `sink` receives each proof line; NULL restores stderr. */
FOVEA_API fovea_status fovea_set_proof_sink(void (*sink)(const char* line, void* user), void* user);

/** These write a JSON text with its terminating zero into `buffer` as far as `capacity` allows and
 * return the bytes needed for all of it. */
FOVEA_API size_t fovea_info_json(char* buffer, size_t capacity);
FOVEA_API size_t fovea_counters_json(char* buffer, size_t capacity);
FOVEA_API void fovea_reset_counters(void);

/** For each kernel why it would not serve the call, one "id: reason" a line ("id: serves"). */
FOVEA_API fovea_status fovea_why_not_forward(const fovea_forward_args* args,
                                             const fovea_options* options, char* buffer,
                                             size_t capacity, size_t* needed);
FOVEA_API fovea_status fovea_why_not_backward(const fovea_backward_args* args,
                                              const fovea_options* options, char* buffer,
                                              size_t capacity, size_t* needed);

FOVEA_API fovea_status fovea_run_self_checks(void);
FOVEA_API void fovea_release_cached_memory(void);

#ifdef __cplusplus
}
#endif

#endif /* FOVEA_FOVEA_C_H */
