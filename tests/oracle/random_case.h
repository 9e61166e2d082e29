// Random calls in f64 over every feature, and their literal evaluation.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {

/// Something that backward can differentiate by.
struct Input {
  enum class Kind { q, k, v, q_weight, k_weight, mask, sinks } kind;
  int segment;
  Tensor* value;
};

/// A call with all its memory. Its lengths are small; what it uses is drawn at random.
class RandomCase {
 public:
  RandomCase(std::uint64_t seed, bool allow_paged);
  RandomCase(const RandomCase&) = delete;
  RandomCase& operator=(const RandomCase&) = delete;

  AttentionParams params;
  std::vector<Input> inputs;
  std::string description;

  std::int64_t batch, q_heads, kv_heads, head_dim, v_head_dim;
  std::int64_t q_len = 0, kv_len = 0;            ///< maxima
  std::vector<std::int64_t> q_lens, kv_lens;     ///< of each sequence, as used
  std::vector<std::int64_t> kv_capacities;       ///< rows of k and v, used or not
  std::vector<std::int64_t> q_begins, k_begins;  ///< first rows, where packed
  bool packed_q = false, packed_k = false, paged = false;

  [[nodiscard]] bool packed() const { return packed_q; }
  /// Row of a packed tensor, or of a dense one (where it is i).
  [[nodiscard]] std::int64_t q_row(std::int64_t b, std::int64_t i) const {
    return packed_q ? q_begins[static_cast<std::size_t>(b)] + i : i;
  }
  /// Shapes of out and lse.
  [[nodiscard]] Shape out_shape() const;
  [[nodiscard]] Shape lse_shape() const;
  [[nodiscard]] Shape out_index(std::int64_t b, std::int64_t h, std::int64_t i,
                                std::int64_t d) const;
  [[nodiscard]] Shape lse_index(std::int64_t b, std::int64_t h, std::int64_t i) const;

 private:
  std::int64_t draw(std::int64_t low, std::int64_t high);
  bool chance(double probability);
  Tensor& keep(Tensor tensor);
  Tensor& normal(const Shape& shape);
  void note(const std::string& text) { description += " " + text; }
  TensorView integers(const std::vector<std::int64_t>& values);
  void draw_lengths(bool allow_paged);
  Operand draw_dense(Input::Kind kind, std::int64_t heads, std::int64_t rows, std::int64_t dim);
  TensorView draw_packed(Input::Kind kind, std::int64_t rows, std::int64_t heads, std::int64_t dim);
  void draw_paged();
  void draw_operands();
  void draw_norm();
  void draw_rope();
  void draw_scores();
  void draw_mask();
  void draw_dropout();

  std::mt19937_64 random_;
  std::deque<Tensor> storage_;
  std::int64_t packed_q_rows_ = 0, packed_k_rows_ = 0;
};

/// out and lse by the formulas, from dense matrices of one head at a time: no code in common with
/// the kernels but for element access and Philox.
Outputs literal_forward(const RandomCase& c);

}  // namespace fovea::oracle
