// Names of the vocabulary types, as messages and reports print them.
#include <fovea/status.h>
#include <fovea/tensor.h>

#include "contract/problem.h"

namespace fovea {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::none:
      return "none";
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::boolean:
      return "bool";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::i8:
      return "i8";
    case DType::i4x2:
      return "i4x2";
    case DType::fp8_e4m3:
      return "fp8_e4m3";
    case DType::fp8_e5m2:
      return "fp8_e5m2";
  }
  return "unknown";
}

const char* name_of(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda";
    case DeviceType::metal:
      return "metal";
  }
  return "unknown";
}

const char* name_of(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid:
      return "invalid";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::out_of_memory:
      return "out of memory";
    case StatusCode::device:
      return "device";
    case StatusCode::internal:
      return "internal";
  }
  return "unknown";
}

const std::string& Status::message() const {
  static const std::string empty;
  return message_ ? *message_ : empty;
}

const char* name_of(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

const char* name_of(Feature feature) {
  switch (feature) {
    case Feature::gqa:
      return "grouped query heads";
    case Feature::band:
      return "band (causal or window)";
    case Feature::bool_mask:
      return "boolean mask";
    case Feature::additive_mask:
      return "additive mask";
    case Feature::alibi:
      return "ALiBi";
    case Feature::softcap:
      return "softcap";
    case Feature::sinks:
      return "sinks";
    case Feature::dropout:
      return "dropout";
    case Feature::varlen:
      return "varlen";
    case Feature::seqused_k:
      return "seqused_k";
    case Feature::paged:
      return "paged KV cache";
    case Feature::segments:
      return "segmented operands";
    case Feature::qk_norm:
      return "QK-norm";
    case Feature::rope:
      return "RoPE";
    case Feature::mixed_dtypes:
      return "mixed input dtypes";
    case Feature::f32_result:
      return "f32 result of a narrower input";
    case Feature::tf32:
      return "tf32 precision";
    case Feature::quantization:
      return "quantisation";
    case Feature::dlse:
      return "dlse";
    case Feature::dmask:
      return "mask gradient";
    case Feature::dsinks:
      return "sink gradient";
    case Feature::dnorm_weight:
      return "norm-weight gradient";
    case Feature::segmented_results:
      return "segmented out or dout";
    case Feature::f64_lse:
      return "f64 LSE of a narrower compute dtype";
  }
  return "unknown feature";
}

}  // namespace fovea
