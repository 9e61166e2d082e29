// Everything a case's call reads, made anew from (case, seed).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <fovea/attention.h>

#include "cases/case.h"
#include "cases/tensors.h"

namespace fovea::cases {

/// A half-open range of keys.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end > begin ? end - begin : 0; }
};

/// Lengths of every sequence; they follow from the case's name alone.
struct Lengths {
  std::vector<std::int64_t> q;                 ///< rows of q
  std::vector<std::int64_t> capacity;          ///< rows of k and v that belong to the sequence
  std::vector<std::int64_t> seqused;           ///< what seqused_k says: may exceed the capacity
  std::vector<std::int64_t> k;                 ///< keys in use
  std::vector<std::int64_t> q_begin, k_begin;  ///< first rows in packed tensors, and the ends
  std::int64_t total_q = 0, total_k = 0;       ///< rows of packed tensors, unowned ones included
};

Lengths lengths_of(const Case& c);

/// Keys that row i sees by band and lengths (masks aside).
KeyRange keys_of_row(const Case& c, const Lengths& lengths, std::int64_t b, std::int64_t i);
/// Keys that any row of the sequence sees.
KeyRange keys_of_sequence(const Case& c, const Lengths& lengths, std::int64_t b);

/// q, k and v, or their gradients: one tensor a segment.
struct Operands {
  std::vector<Tensor> q, k, v;
};
/// Poisoned memory for them. Gradients have no stride of 0.
Operands make_operands(const Case& c, const Lengths& lengths, const std::vector<DType>& qkv_dtypes,
                       bool gradients);

/// Poisoned memory for out, dout: one tensor a segment.
std::vector<Tensor> make_like_out(const Case& c, const Lengths& lengths, DType dtype);
/// The same for lse and dlse.
Tensor make_like_lse(const Case& c, const Lengths& lengths);
Tensor make_like_lse(const Case& c, const Lengths& lengths, DType dtype);

/// Where row j of a sequence's keys lies.
struct RowPlace {
  std::size_t segment = 0;
  Index index{};  ///< heads and dim are still 0
  int heads_axis = 1, dim_axis = 3;
};

struct Inputs {
  Case c;
  std::uint64_t seed = 0;
  Lengths lengths;

  Operands operands;
  std::vector<Tensor> q_weights, k_weights;
  Tensor mask, slopes, sinks;
  Tensor drop_seed, drop_offset, drop_streams;
  Tensor cu_seqlens_q, cu_seqlens_k, seqused, block_table;
  Tensor cos, sin, q_offsets, k_offsets;
  std::vector<Tensor> dout;
  Tensor dlse;

  AttentionParams params;  ///< views of the tensors above

  [[nodiscard]] std::vector<const Tensor*> tensors() const;
  /// Whether nobody has written to any input or around it.
  [[nodiscard]] bool intact() const;
  [[nodiscard]] RowPlace place_of_key(const std::vector<Tensor>& segments, std::int64_t b,
                                      std::int64_t j) const;
  [[nodiscard]] RowPlace place_of_query(const std::vector<Tensor>& segments, std::int64_t b,
                                        std::int64_t i) const;

  std::uint64_t hash = 0;
};

std::unique_ptr<Inputs> make_inputs(const Case& c, std::uint64_t seed);

/// The seed of a case that is run without one.
std::uint64_t default_seed(const Case& c);

namespace detail {
void make_mask(Inputs& inputs);
void make_slopes_and_sinks(Inputs& inputs);
void make_dropout(Inputs& inputs);
void make_rope(Inputs& inputs);
}  // namespace detail

}  // namespace fovea::cases
