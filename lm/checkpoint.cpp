#include "lm/checkpoint.h"

#include <string>
#include <utility>

#include "lm/error.h"
#include "lm/json_fields.h"

namespace fovea::lm {
namespace {

constexpr const char* kFormat = "fovea-lm-1";
constexpr const char* kFirstMoment = "optimizer.m.";
constexpr const char* kSecondMoment = "optimizer.v.";

const std::string& metadata_of(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    fail("[checkpoint {}] the metadata have no '{}'", file.path(), key);
  }
  return found->second;
}

const SafetensorsEntry& entry_of(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) fail("[checkpoint {}] tensor '{}' is missing", file.path(), name);
  return *entry;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Gpt2& model, const AdamW* optimizer,
                     const nlohmann::json& trainer) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model.parameters()) {
    tensors.push_back({parameter.name, parameter.var.value()});
  }
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"config", model.config().to_json().dump()}};
  if (optimizer != nullptr) {
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const std::string& name = model.parameters()[i].name;
      tensors.push_back({kFirstMoment + name, optimizer->first_moment(i)});
      tensors.push_back({kSecondMoment + name, optimizer->second_moment(i)});
    }
    metadata["trainer"] = trainer.dump();
  }
  write_safetensors(path, tensors, metadata);
}

CheckpointFile::CheckpointFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = "checkpoint " + file_.path();
  const std::string& format = metadata_of(file_, "format");
  if (format != kFormat) fail("[{}] format '{}' is not '{}'", where, format, kFormat);
  config_ =
      Gpt2Config::from_json(parse_json_object(metadata_of(file_, "config"), where + ": config"));
  if (file_.metadata().contains("trainer")) {
    trainer_ = parse_json_object(file_.metadata().at("trainer"), where + ": trainer");
  }
  // A file holds the tensors of its configuration. The number of layers is compared before a list
  // as long as that number is made.
  const auto wanted = static_cast<std::size_t>(2 + 12 * config_.n_layer + 2);
  const std::size_t copies = has_training_state() ? 3 : 1;
  if (file_.entries().size() != wanted * copies) {
    fail("[{}] {} tensors; the configuration has {} parameters, which makes {}", where,
         file_.entries().size(), wanted, wanted * copies);
  }
  for (const Gpt2::ParameterShape& parameter : Gpt2::parameter_shapes(config_)) {
    for (const char* prefix : {"", kFirstMoment, kSecondMoment}) {
      if (*prefix != '\0' && !has_training_state()) continue;
      const SafetensorsEntry& entry = entry_of(file_, prefix + parameter.name);
      if (entry.shape != parameter.shape) {
        fail("[{}] tensor '{}' has shape {}; the configuration wants {}", where, entry.name,
             to_string(entry.shape), to_string(parameter.shape));
      }
      const bool narrow = entry.dtype == "F16" || entry.dtype == "BF16";
      if (entry.dtype != "F32" && !(narrow && *prefix == '\0' && !has_training_state())) {
        fail("[{}] tensor '{}' is {}; wanted is F32{}", where, entry.name, entry.dtype,
             has_training_state() ? "" : ", F16 or BF16");
      }
    }
  }
}

Gpt2 CheckpointFile::load_model() const {
  Gpt2 model(config_);
  for (const Parameter& parameter : model.parameters()) {
    file_.read_into(entry_of(file_, parameter.name), parameter.var.value());
  }
  return model;
}

void CheckpointFile::load_optimizer(const Gpt2& model, const AdamW& optimizer) const {
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const std::string& name = model.parameters()[i].name;
    file_.read_into(entry_of(file_, kFirstMoment + name), optimizer.first_moment(i));
    file_.read_into(entry_of(file_, kSecondMoment + name), optimizer.second_moment(i));
  }
}

}  // namespace fovea::lm
