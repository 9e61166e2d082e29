#include "cases/table.h"

#include <cstdlib>
#include <set>
#include <string_view>

#include <fmt/core.h>

#include "cases/table_rows.h"

namespace fovea::cases {
namespace {

using Entries = std::vector<TableEntry>;

/// Rows are part of the program: one that does not parse is a defect of it.
void add(Entries& entries, std::string_view name, std::string_view hazard) {
  Result<Case> spec = parse_case(name);
  if (!spec) {
    fmt::print(stderr, "case table: {}\n", spec.status().message());
    std::abort();
  }
  entries.push_back({std::string(name), std::string(hazard), *spec});
}

/// Head dims with and without padding, each with a mask-free and a causal call.
void add_head_dims(Entries& entries) {
  for (const int d :
       {1,  2,  3,  7,   8,   15,  16,  17,  24,  31,  32,  33,  40,  48,  56,  63,  64,  65, 72,
        80, 88, 96, 100, 112, 120, 127, 128, 129, 160, 192, 200, 256, 257, 320, 384, 511, 512}) {
    add(entries, fmt::format("b1_hq2_hkv1_q37_k53_d{}_f32{}", d, d % 2 == 0 ? "_causal_br" : ""),
        fmt::format("d{}", d));
  }
  for (const auto& [d, dv] : {std::pair{192, 128},
                              {64, 128},
                              {128, 64},
                              {40, 72},
                              {1, 64},
                              {64, 1},
                              {512, 8},
                              {96, 33}}) {
    add(entries, fmt::format("b1_hq2_hkv2_q41_k67_d{}_dv{}_f32_causal", d, dv),
        fmt::format("d{}_dv{}", d, dv));
  }
}

/// Lengths around the tiles that kernels are likely to have.
void add_lengths(Entries& entries) {
  for (const int q : {1, 2, 15, 16, 63, 64, 65, 96, 97}) {
    for (const int k : {1, 17, 64, 129, 511, 513}) {
      add(entries,
          fmt::format("b1_hq1_hkv1_q{}_k{}_d32_f32{}", q, k, (q + k) % 2 == 0 ? "_causal_br" : ""),
          "ragged_length");
    }
  }
}

}  // namespace

const std::vector<TableEntry>& table() {
  static const Entries entries = [] {
    Entries made;
    for (const TableRow& row : kDenseRows) add(made, row.name, row.hazard);
    for (const TableRow& row : kFeatureRows) add(made, row.name, row.hazard);
    for (const TableRow& row : kDecodeRows) add(made, row.name, row.hazard);
    add_head_dims(made);
    add_lengths(made);
    return made;
  }();
  return entries;
}

}  // namespace fovea::cases
