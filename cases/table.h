// The shared table of cases: what every kernel is run on.
#pragma once

#include <string>
#include <vector>

#include "cases/case.h"

namespace fovea::cases {

struct TableEntry {
  std::string name;
  std::string hazard;  ///< what tends to go wrong there, in a word: "q_longer_than_kv"
  Case spec;
};

/// All entries, small ones: the whole table runs on every kernel in a minute or two.
const std::vector<TableEntry>& table();

}  // namespace fovea::cases
