// Checkpoints: weights, optimiser state and trainer state in one .safetensors file.
//
// Weights stand under their parameter names; the optimiser's moments under "optimizer.m." and
// "optimizer.v." before them; the metadata hold "format", "config" and, in a training checkpoint,
// "trainer" as JSON. One file, so that its replacement by rename is atomic.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "lm/gpt2.h"
#include "lm/optim.h"

namespace fovea::lm {

/// Writes the file whole, or leaves what stood there. `optimizer` may be null: weights alone, and
/// no trainer state.
void save_checkpoint(const std::filesystem::path& path, const Gpt2& model, const AdamW* optimizer,
                     const nlohmann::json& trainer);

/// A checkpoint whose header, configuration, names, dtypes and shapes have all been checked;
/// nothing has been allocated for its tensors yet. Weights alone may be F32, F16 or BF16; a
/// training checkpoint is F32.
class CheckpointFile {
 public:
  /// Throws fovea::Error, "[checkpoint] <path>: ...".
  explicit CheckpointFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const Gpt2Config& config() const { return config_; }
  /// Whether training can be continued from it.
  [[nodiscard]] bool has_training_state() const { return !trainer_.is_null(); }
  /// Null without training state.
  [[nodiscard]] const nlohmann::json& trainer() const { return trainer_; }

  /// A model with the stored weights.
  [[nodiscard]] Gpt2 load_model() const;
  /// Fills the moments of an optimiser of such a model.
  void load_optimizer(const Gpt2& model, const AdamW& optimizer) const;

 private:
  void check_tensors() const;
  [[nodiscard]] const io::SafetensorsEntry& entry(const std::string& name) const;
  [[nodiscard]] const std::string& metadata(const char* key) const;
  void read(const std::string& name, const Tensor& to) const;

  io::SafetensorsFile file_;
  Gpt2Config config_;
  nlohmann::json trainer_;
};

}  // namespace fovea::lm
