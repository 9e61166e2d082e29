// Rows of the case table: name and hazard.
#pragma once

#include <span>
#include <string_view>

namespace fovea::cases {

struct TableRow {
  std::string_view name, hazard;
};

extern const std::span<const TableRow> kDenseRows;    ///< q, k, v with strides, heads and bands
extern const std::span<const TableRow> kDecodeRows;   ///< few queries over many keys
extern const std::span<const TableRow> kFeatureRows;  ///< everything else of the contract

}  // namespace fovea::cases
