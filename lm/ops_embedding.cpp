// Table look-ups: embedding.
#include <algorithm>
#include <vector>

#include "lm/error.h"
#include "lm/ops.h"
#include "lm/parallel.h"

namespace fovea::lm {
namespace {

constexpr std::int64_t kColumns = 64;  // columns of one task

// table[row(i)] += dout[i] for i in [0, count), in order: one task owns a column range.
template <class Row>
void scatter_add(const GradTarget& target, const Tensor& dout, std::int64_t count, Row row) {
  if (!target.accumulate) target.tensor.zero();
  const std::int64_t width = target.tensor.dim(-1);
  float* const table = target.tensor.data();
  const float* const in = dout.data();
  parallel_ranges(width, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i) {
      float* to = table + row(i) * width;
      const float* from = in + i * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

Var embedding(Tape& tape, const Var& token_table, const std::optional<Var>& position_table,
              std::span<const std::int32_t> tokens, std::int64_t batch, std::int64_t seq,
              std::int64_t first_position) {
  const std::int64_t vocabulary = token_table.value().dim(0);
  const std::int64_t width = token_table.value().dim(1);
  if (element_count({batch, seq}) != static_cast<std::int64_t>(tokens.size())) {
    fail("[embedding] batch {} x seq {} needs as many tokens; got {}", batch, seq, tokens.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocabulary) {
      fail("[embedding] tokens must be 0 to {}; got {} at index {}", vocabulary - 1, tokens[i], i);
    }
  }
  const float* positions = nullptr;
  if (position_table) {
    if (position_table->value().dim(1) != width) {
      fail("[embedding] the tables differ in width; got {} and {}", to_string(token_table.shape()),
           to_string(position_table->shape()));
    }
    const std::int64_t limit = position_table->value().dim(0);
    if (first_position < 0 || first_position > limit - seq) {
      fail("[embedding] positions {} to {} exceed the table of {}", first_position,
           first_position + seq - 1, limit);
    }
    positions = position_table->value().data() + first_position * width;
  }

  Tensor out = Tensor::empty({batch, seq, width});
  parallel_ranges(batch * seq, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* to = out.data() + i * width;
      std::copy_n(token_table.value().data() + tokens[static_cast<std::size_t>(i)] * width, width,
                  to);
      if (positions == nullptr) continue;
      const float* position = positions + i % seq * width;
      for (std::int64_t c = 0; c < width; ++c) to[c] += position[c];
    }
  });

  const Var positions_var = position_table.value_or(Var());
  if (!tape.records(token_table, positions_var)) return out;
  return tape.record(
      std::move(out),
      [token_slot = token_table.slot(), position_slot = positions_var.slot(), seq, first_position,
       rows = std::vector(tokens.begin(), tokens.end())](const Tensor& dout) {
        const auto count = static_cast<std::int64_t>(rows.size());
        if (token_slot) {
          scatter_add(grad_target(token_slot), dout, count,
                      [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; });
        }
        if (position_slot) {
          scatter_add(grad_target(position_slot), dout, count,
                      [&](std::int64_t i) { return first_position + i % seq; });
        }
      });
}

}  // namespace fovea::lm
