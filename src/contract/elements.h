// One element of a float tensor as f64, for code that favours clarity over speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <fovea/tensor.h>

#include "contract/float_types.h"
#include "contract/host_device.h"

namespace fovea {

/// Element `n` counted from `data`; NaN for dtypes that are not floats.
FOVEA_HD inline double load_element(const void* data, DType dtype, std::int64_t n) {
  switch (dtype) {
    case DType::f64:
      return static_cast<const double*>(data)[n];
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(data)[n]);
    case DType::f16:
      return static_cast<double>(to_f32(static_cast<const F16*>(data)[n]));
    case DType::bf16:
      return static_cast<double>(to_f32(static_cast<const Bf16*>(data)[n]));
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

/// Stores `value` rounded to `dtype` by way of f32. Nothing for dtypes that are not floats.
FOVEA_HD inline void store_element(void* data, DType dtype, std::int64_t n, double value) {
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(data)[n] = value;
      break;
    case DType::f32:
      static_cast<float*>(data)[n] = static_cast<float>(value);
      break;
    case DType::f16:
      static_cast<F16*>(data)[n] = to_f16(static_cast<float>(value));
      break;
    case DType::bf16:
      static_cast<Bf16*>(data)[n] = to_bf16(static_cast<float>(value));
      break;
    default:
      break;
  }
}

}  // namespace fovea
