// Text for training: files and folders as bytes, a validation split, shuffled batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lm/rng.h"

namespace fovea::lm {

struct TextOptions {
  /// File name endings taken from folders; files named directly are always taken.
  std::vector<std::string> extensions = {".h",  ".hpp", ".c",   ".cpp",   ".cu",  ".cuh",
                                         ".py", ".md",  ".txt", ".cmake", ".def", ".sh"};
  /// Shares of every part of the text kept for validation, in [0, 0.5].
  double validation_fraction = 0.05;
  std::int64_t max_bytes = std::int64_t{1} << 30;  ///< more text than this is refused
};

/// Documents joined by a zero byte (ByteTokenizer::kEndOfText) and split.
///
/// The validation text is the end of each of eight equal parts of the whole, so that it resembles
/// the training text without sharing any of it, whatever the number of files.
struct TextData {
  std::vector<std::uint8_t> train;
  std::vector<std::uint8_t> validation;
  std::vector<std::string> files;  ///< in the order read
  std::int64_t skipped = 0;        ///< files with the right ending that are binary or unreadable

  /// Identifies the training text: a hash of all its bytes.
  [[nodiscard]] std::string fingerprint() const;
};

/// Reads files and, recursively, folders, in byte order of their paths. Skips hidden entries, build
/// folders (build*, out, dist, node_modules, __pycache__, target, CMakeFiles), symbolic links and
/// files with a zero byte. Throws fovea::Error when a path does not exist, when there is no text,
/// or too much.
TextData load_text(const std::vector<std::filesystem::path>& paths, const TextOptions& options);

/// Splits one text, as load_text does.
TextData split_text(std::vector<std::uint8_t> text, double validation_fraction);

/// `batch` windows of `seq` tokens with the token that follows each.
struct Batch {
  std::vector<std::int32_t> tokens;   ///< [batch * seq]
  std::vector<std::int32_t> targets;  ///< [batch * seq]
};

/// Endless shuffled batches. An epoch visits every window of `seq` tokens once, in a new order and
/// from a new starting byte; a batch may span two epochs, so none is short and no window is left
/// out.
class BatchIterator {
 public:
  /// `text` must outlive this. Throws fovea::Error when it has fewer windows than one batch.
  BatchIterator(const std::vector<std::uint8_t>& text, std::int64_t batch, std::int64_t seq,
                std::uint64_t seed);

  Batch next();

  [[nodiscard]] std::int64_t epoch() const { return epoch_; }  ///< from 0
  [[nodiscard]] std::int64_t windows_per_epoch() const { return windows_; }
  /// Windows of the current epoch already given out.
  [[nodiscard]] std::int64_t position() const { return position_; }

  /// The cursor: enough to continue with the same batches.
  [[nodiscard]] nlohmann::json state() const;
  /// Throws fovea::Error when the state is malformed or belongs to another text size, batch or seq.
  void restore(const nlohmann::json& state);

 private:
  void start_epoch();

  const std::vector<std::uint8_t>& text_;
  std::int64_t batch_, seq_, windows_;
  Rng rng_;
  Rng epoch_rng_;  // rng_ before the current epoch was drawn
  std::int64_t epoch_ = 0;
  std::int64_t position_ = 0;
  std::int64_t start_ = 0;
  std::vector<std::int64_t> order_;
};

/// The first windows of `text`, in order, at most `max_windows`, as batches of at most `batch`.
std::vector<Batch> sequential_batches(const std::vector<std::uint8_t>& text, std::int64_t batch,
                                      std::int64_t seq, std::int64_t max_windows);

}  // namespace fovea::lm
