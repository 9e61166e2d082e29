#include "io/tensor_file.h"

#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "io/npy.h"
#include "io/paths.h"
#include "io/safetensors.h"

namespace fovea::io {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

bool is_npy(const TensorPlace& place) { return place.path.ends_with(".npy"); }

std::string text_of(const TensorPlace& place) {
  return place.name.empty() ? place.path : place.path + ":" + place.name;
}

Status bad(std::string message) { return {StatusCode::invalid, std::move(message)}; }

}  // namespace

Result<TensorPlace> parse_place(const std::string& text) {
  if (text.ends_with(".npy") || text.ends_with(kSafetensors)) return TensorPlace{text, ""};
  const std::size_t at = text.find(std::string(kSafetensors) + ":");
  if (at == std::string::npos) {
    return bad(fmt::format("'{}' is neither FILE.npy nor FILE.safetensors:NAME", text));
  }
  const std::size_t colon = at + kSafetensors.size();
  return TensorPlace{text.substr(0, colon), text.substr(colon + 1)};
}

Result<Array> load_tensor(const std::string& text) {
  Result<TensorPlace> place = parse_place(text);
  if (!place) return place.status();
  if (is_npy(*place)) return read_npy(place->path);
  Result<SafetensorsFile> file = SafetensorsFile::open(place->path);
  if (!file) return file.status();
  if (place->name.empty()) {
    if (file->entries().size() != 1) {
      return bad(fmt::format("{} holds {} tensors; name one as {}:NAME", place->path,
                             file->entries().size(), place->path));
    }
    return file->read(file->entries()[0].name);
  }
  return file->read(place->name);
}

Status check_places(const std::vector<TensorPlace>& outputs,
                    const std::vector<TensorPlace>& inputs) {
  std::map<std::pair<std::string, std::string>, std::string> seen;
  for (const TensorPlace& place : outputs) {
    if (!is_npy(place) && place.name.empty()) {
      return bad(fmt::format("{}: an output needs a tensor name: {}:NAME", place.path, place.path));
    }
    for (const TensorPlace& input : inputs) {
      if (!same_file(place.path, input.path)) continue;
      return bad(
          fmt::format("an output to {} would replace the input file {}", place.path, input.path));
    }
    const auto [other, is_new] =
        seen.try_emplace({canonical(place.path), place.name}, text_of(place));
    if (is_new) continue;
    return bad(
        fmt::format("two outputs would go to one place: {} and {}", other->second, text_of(place)));
  }
  return {};
}

Status check_types(const std::vector<TensorResult>& results) {
  for (const TensorResult& result : results) {
    const DType dtype = result.array->info.dtype;
    if (!is_npy(result.place) || npy_can_hold(dtype)) continue;
    return bad(fmt::format("{}: .npy has no type for {}; write FILE.safetensors:NAME",
                           result.place.path, name_of(dtype)));
  }
  return {};
}

Status store_tensors(const std::vector<TensorResult>& results) {
  std::vector<TensorPlace> places;
  places.reserve(results.size());
  for (const TensorResult& result : results) places.push_back(result.place);
  if (Status s = check_places(places, {}); !s.ok()) return s;
  if (Status s = check_types(results); !s.ok()) return s;
  std::vector<AtomicFile> staged;
  const auto keep = [&staged](Result<AtomicFile> file) {
    if (file) staged.push_back(std::move(*file));
    return file.status();
  };
  std::map<std::string, std::vector<SafetensorsTensor>> files;
  for (const TensorResult& result : results) {
    const Array& array = *result.array;
    if (is_npy(result.place)) {
      if (Status s = keep(stage_npy(result.place.path, array.info, array.data.data())); !s.ok()) {
        return s;
      }
    } else {
      files[canonical(result.place.path)].push_back(
          {result.place.name, array.info.dtype, array.info.shape, array.data.data()});
    }
  }
  for (const auto& [path, tensors] : files) {
    if (Status s = keep(stage_safetensors(path, tensors)); !s.ok()) return s;
  }
  for (AtomicFile& file : staged) {
    if (Status s = file.commit(); !s.ok()) return s;
  }
  return {};
}

}  // namespace fovea::io
