// From the C structs to the C++ ones.
#pragma once

#include <cstring>
#include <string>

#include <fovea/fovea.h>
#include <fovea/fovea_c.h>

namespace fovea::c_api {

/// Reads a struct that may be older (shorter) or newer (longer) than ours. Fields that it lacks are
/// zero; fields that we lack must be zero.
template <class Struct>
Status read_struct(const Struct* from, const char* name, Struct& to) {
  if (from == nullptr) return {StatusCode::invalid, std::string("[c] ") + name + " is null"};
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < sizeof(size) || size > (std::size_t{1} << 20))
    return {StatusCode::invalid, std::string("[c] ") + name + ".struct_size must be sizeof(" +
                                     name + "); got " + std::to_string(size)};
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t n = sizeof(Struct); n < size; ++n)
    if (bytes[n] != 0)
      return {StatusCode::unsupported,
              std::string("[c] ") + name + " uses fields that this version does not know"};
  std::memset(static_cast<void*>(&to), 0, sizeof(to));
  std::memcpy(static_cast<void*>(&to), from, size < sizeof(Struct) ? size : sizeof(Struct));
  return {};
}

MutableTensorView tensor_of(const fovea_tensor& tensor);
Result<ForwardArgs> forward_args(const fovea_forward_args* args);
Result<BackwardArgs> backward_args(const fovea_backward_args* args);

}  // namespace fovea::c_api
