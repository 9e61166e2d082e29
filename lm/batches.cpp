// Batches of text: BatchIterator, sequential_batches.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "lm/data.h"
#include "lm/error.h"
#include "lm/json_fields.h"

namespace fovea::lm {
namespace {

// Windows of seq tokens, each with a following one: the last token is only a target.
std::int64_t window_count(std::size_t bytes, std::int64_t seq) {
  return bytes == 0 ? 0 : (static_cast<std::int64_t>(bytes) - 1) / seq;
}

void append_window(const std::vector<std::uint8_t>& text, std::int64_t first, std::int64_t seq,
                   Batch& batch) {
  const auto begin = text.begin() + first;
  batch.tokens.insert(batch.tokens.end(), begin, begin + seq);
  batch.targets.insert(batch.targets.end(), begin + 1, begin + seq + 1);
}

void check_sizes(std::int64_t batch, std::int64_t seq) {
  constexpr std::int64_t kLargest = 1 << 24;
  if (batch < 1 || seq < 1 || batch > kLargest || seq > kLargest) {
    fail("[data] batch and context must be 1 to {}; got {} and {}", kLargest, batch, seq);
  }
}

}  // namespace

BatchIterator::BatchIterator(const std::vector<std::uint8_t>& text, std::int64_t batch,
                             std::int64_t seq, std::uint64_t seed)
    : text_(text), batch_(batch), seq_(seq), windows_(0), rng_(seed), epoch_rng_(seed) {
  check_sizes(batch, seq);
  windows_ = window_count(text.size(), seq);
  if (windows_ < batch) {
    fail(
        "[data] the training text is shorter than one batch: {} bytes give {} windows of {} + 1; "
        "a batch takes {}",
        text.size(), windows_, seq, batch);
  }
  start_epoch();
}

void BatchIterator::start_epoch() {
  epoch_rng_ = rng_;
  position_ = 0;
  const std::int64_t spare = static_cast<std::int64_t>(text_.size()) - 1 - windows_ * seq_;
  start_ = static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(spare) + 1));
  order_.resize(static_cast<std::size_t>(windows_));
  std::iota(order_.begin(), order_.end(), 0);
  for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[rng_.below(i)]);
}

Batch BatchIterator::next() {
  Batch batch;
  batch.tokens.reserve(static_cast<std::size_t>(batch_ * seq_));
  batch.targets.reserve(static_cast<std::size_t>(batch_ * seq_));
  for (std::int64_t i = 0; i < batch_; ++i) {
    if (position_ == windows_) {
      ++epoch_;
      start_epoch();
    }
    const std::int64_t window = order_[static_cast<std::size_t>(position_++)];
    append_window(text_, start_ + window * seq_, seq_, batch);
  }
  return batch;
}

nlohmann::json BatchIterator::state() const {
  return {{"text_bytes", text_.size()},
          {"batch", batch_},
          {"context", seq_},
          {"epoch", epoch_},
          {"position", position_},
          {"epoch_rng", epoch_rng_.state()}};
}

void BatchIterator::restore(const nlohmann::json& state) {
  JsonFields fields(state, "data cursor");
  const std::int64_t bytes = fields.integer("text_bytes");
  const std::int64_t batch = fields.integer("batch");
  const std::int64_t seq = fields.integer("context");
  if (bytes != static_cast<std::int64_t>(text_.size()) || batch != batch_ || seq != seq_) {
    fail("[data cursor] saved for {} bytes, batch {}, context {}; the run has {}, {}, {}", bytes,
         batch, seq, text_.size(), batch_, seq_);
  }
  const std::int64_t epoch = fields.integer("epoch");
  const std::int64_t position = fields.integer("position");
  if (epoch < 0 || position < 0 || position > windows_) {
    fail("[data cursor] epoch must be at least 0 and position 0 to {}; got {} and {}", windows_,
         epoch, position);
  }
  const Rng epoch_rng = Rng::from_state(fields.text("epoch_rng"));
  fields.refuse_unknown();
  rng_ = epoch_rng;
  start_epoch();
  epoch_ = epoch;
  position_ = position;
}

std::vector<Batch> sequential_batches(const std::vector<std::uint8_t>& text, std::int64_t batch,
                                      std::int64_t seq, std::int64_t max_windows) {
  check_sizes(batch, seq);
  const std::int64_t windows = std::min(window_count(text.size(), seq), max_windows);
  std::vector<Batch> batches;
  for (std::int64_t window = 0; window < windows; ++window) {
    if (window % batch == 0) batches.emplace_back();
    append_window(text, window * seq, seq, batches.back());
  }
  return batches;
}

}  // namespace fovea::lm
