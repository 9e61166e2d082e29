#include "cuda/sm90_call.h"

#include "contract/format.h"
#include "cuda/sm80_call.h"

namespace fovea::cuda {
namespace {

bool is_hopper(const DeviceProperties& properties) {
  return properties.major == 9 && properties.minor == 0;
}

Refusal refuse(const char* why) { return Refusal::because(RefusalCode::other, why); }

}  // namespace

Refusal available_hopper(const Device& device) {
  if (Refusal refusal = available_sm80(device); !refusal.serves()) return refusal;
  if (!is_hopper(*properties_of(device)))
    return Refusal::because(RefusalCode::instruction_set, "compute capability 9.0");
  return Refusal::accept();
}

bool fits_hopper(const Device& device, std::size_t shared_bytes) {
  const DeviceProperties* properties = properties_of(device);
  return properties == nullptr || !is_hopper(*properties) ||
         shared_bytes <= properties->shared_bytes;
}

Refusal refuse_beyond_hopper(const Problem& p) {
  if (p.compute != DType::bf16 && p.compute != DType::f16)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(p.compute), 0,
                            "f16, bf16");
  const Features unserved = Feature::quantization | Feature::f64_lse | Feature::bool_mask |
                            Feature::additive_mask | Feature::alibi | Feature::softcap |
                            Feature::dropout | Feature::paged | Feature::tf32;
  if (Refusal refusal = refuse_beyond_flash(p, kEveryFeature - unserved); !refusal.serves())
    return refusal;
  constexpr std::int64_t kMostColumns = 128;
  if (p.head_dim > kMostColumns)
    return Refusal::because(RefusalCode::head_dim, p.head_dim, kMostColumns);
  if (p.v_head_dim > kMostColumns)
    return Refusal::because(RefusalCode::v_head_dim, p.v_head_dim, kMostColumns);
  if (!(p.scale > 0)) return refuse("a scale that is not positive");
  if (p.q_len > kMostRows || p.kv_len > kMostRows)
    return refuse("more rows than the copy engine counts");
  return Refusal::accept();
}

Refusal refuse_beyond_copies(std::initializer_list<const std::optional<MapOf>*> maps) {
  for (const std::optional<MapOf>* map : maps)
    if (!map->has_value()) return refuse("strides that the copy engine cannot read");
  for (const std::optional<MapOf>* map : maps)
    if (!begins_aligned(**map))
      return refuse("a tensor that does not begin at a multiple of 16 bytes");
  return Refusal::accept();
}

Status encode_input(const char* kernel, const char* name, TensorMap& to, MapSteps& steps,
                    const std::optional<MapOf>& from) {
  if (from.has_value() && begins_aligned(*from)) return encode(to, steps, *from);
  return {
      StatusCode::invalid,
      formatted("[{}] {} must begin at a multiple of 16 bytes, as it did when the plan was made",
                kernel, name)};
}

}  // namespace fovea::cuda
