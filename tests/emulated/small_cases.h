// Cases of the table that an emulated device can do in little time.
#pragma once

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cases/table.h"

namespace fovea::cases {

/// Words of a name without their numbers: what kinds of things a case has.
inline std::set<std::string> kinds_of(const std::string& name) {
  std::set<std::string> kinds;
  std::istringstream words(name);
  for (std::string word; std::getline(words, word, '_');) {
    std::erase_if(word, [](unsigned char c) { return std::isdigit(c) || c == '.'; });
    kinds.insert(word);
  }
  return kinds;
}

/// Cases of little work, and of the others, up to `most`, the smaller first, those with something
/// that no smaller one has.
inline std::vector<const TableEntry*> small_cases(const std::function<double(const Case&)>& work_of,
                                                  double little, double most) {
  std::vector<const TableEntry*> all, chosen;
  for (const TableEntry& entry : table()) all.push_back(&entry);
  const auto work = [&](const TableEntry* entry) { return work_of(entry->spec); };
  std::stable_sort(all.begin(), all.end(),
                   [&](const TableEntry* a, const TableEntry* b) { return work(a) < work(b); });
  std::set<std::string> seen;
  for (const TableEntry* entry : all) {
    if (work(entry) > most) break;
    const std::size_t before = seen.size();
    seen.merge(kinds_of(entry->name));
    if (work(entry) <= little || seen.size() > before) chosen.push_back(entry);
  }
  return chosen;
}

}  // namespace fovea::cases
