#include "lm/checkpoint.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "lm/error.h"
#include "lm/json_fields.h"

namespace fovea::lm {
namespace {

constexpr const char* kFormat = "fovea-lm-1";
constexpr const char* kFirstMoment = "optimizer.m.";
constexpr const char* kSecondMoment = "optimizer.v.";

io::SafetensorsFile open_file(const std::filesystem::path& path) {
  Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path.string());
  if (!file) fail_as(file.status().code(), "[checkpoint] {}", file.status().message());
  return std::move(*file);
}

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1.0p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Gpt2& model, const AdamW* optimizer,
                     const nlohmann::json& trainer) {
  std::vector<io::SafetensorsTensor> tensors;
  const auto put = [&](std::string name, const Tensor& tensor) {
    tensors.push_back({std::move(name), tensor.dtype(), tensor.shape(), tensor.values().data()});
  };
  for (const Parameter& parameter : model.parameters()) {
    put(parameter.name, parameter.var.value());
  }
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"config", model.config().to_json().dump()}};
  if (optimizer != nullptr) {
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const std::string& name = model.parameters()[i].name;
      put(kFirstMoment + name, optimizer->first_moment(i));
      put(kSecondMoment + name, optimizer->second_moment(i));
    }
    metadata["trainer"] = trainer.dump();
  }
  const Status status = io::write_safetensors(path.string(), tensors, metadata);
  if (!status.ok()) fail_as(status.code(), "[checkpoint] {}", status.message());
}

CheckpointFile::CheckpointFile(const std::filesystem::path& path) : file_(open_file(path)) {
  const std::string where = "checkpoint " + file_.path();
  if (metadata("format") != kFormat) {
    fail("[checkpoint] {}: the format is '{}', not '{}'", file_.path(), metadata("format"),
         kFormat);
  }
  config_ = Gpt2Config::from_json(parse_json_object(metadata("config"), where + ": config"));
  if (file_.metadata().contains("trainer")) {
    trainer_ = parse_json_object(metadata("trainer"), where + ": trainer");
  }
  check_tensors();
}

// The file must hold the tensors of its configuration and no others. Their number is compared
// before a list is made that the configuration's numbers could make very long.
void CheckpointFile::check_tensors() const {
  const std::size_t wanted =
      Gpt2::parameter_tensors(config_) * (has_training_state() ? std::size_t{3} : 1);
  if (file_.entries().size() != wanted) {
    fail("[checkpoint] {}: {} tensors; its configuration makes {}", path(), file_.entries().size(),
         wanted);
  }
  for (const Gpt2::ParameterShape& parameter : Gpt2::parameter_shapes(config_)) {
    for (const char* prefix : {"", kFirstMoment, kSecondMoment}) {
      if (*prefix != '\0' && !has_training_state()) continue;
      const io::SafetensorsEntry& found = entry(prefix + parameter.name);
      if (found.shape != parameter.shape) {
        fail("[checkpoint] {}: tensor '{}' has shape {}; its configuration makes {}", path(),
             found.name, to_string(found.shape), to_string(parameter.shape));
      }
      const bool narrow = found.dtype == DType::f16 || found.dtype == DType::bf16;
      if (found.dtype != DType::f32 && (has_training_state() || !narrow)) {
        fail("[checkpoint] {}: tensor '{}' is {}; F32{} is wanted", path(), found.name,
             found.stored_dtype, has_training_state() ? "" : ", F16 or BF16");
      }
    }
  }
}

const io::SafetensorsEntry& CheckpointFile::entry(const std::string& name) const {
  const io::SafetensorsEntry* found = file_.find(name);
  if (found == nullptr) fail("[checkpoint] {}: tensor '{}' is missing", path(), name);
  return *found;
}

const std::string& CheckpointFile::metadata(const char* key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end()) {
    fail("[checkpoint] {}: the metadata have no '{}'", path(), key);
  }
  return found->second;
}

void CheckpointFile::read(const std::string& name, const Tensor& to) const {
  const io::SafetensorsEntry& from = entry(name);
  const std::span<float> values = to.values();
  std::vector<std::uint16_t> narrow(from.dtype == DType::f32 ? 0 : values.size());
  void* const target = narrow.empty() ? static_cast<void*>(values.data()) : narrow.data();
  const Status status = file_.read(from, target);
  if (!status.ok()) fail_as(status.code(), "[checkpoint] {}", status.message());
  if (narrow.empty()) return;
  std::transform(narrow.begin(), narrow.end(), values.begin(),
                 from.dtype == DType::f16 ? f16_to_f32 : bf16_to_f32);
}

Gpt2 CheckpointFile::load_model() const {
  Gpt2 model(config_);
  for (const Parameter& parameter : model.parameters()) {
    read(parameter.name, parameter.var.value());
  }
  return model;
}

void CheckpointFile::load_optimizer(const Gpt2& model, const AdamW& optimizer) const {
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const std::string& name = model.parameters()[i].name;
    read(kFirstMoment + name, optimizer.first_moment(i));
    read(kSecondMoment + name, optimizer.second_moment(i));
  }
}

}  // namespace fovea::lm
