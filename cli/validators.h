// Checks of option values beyond CLI11's own.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

namespace fovea::cli {

/// A whole number from `least` that 64 bits hold.
CLI::Validator at_least(std::int64_t least);

/// A whole number from 0 that 64 unsigned bits hold: CLI11 makes -1 the largest.
CLI::Validator seed_value();

/// A number for which `holds`; CLI::Range takes NaN for one in any range. "NUMBER in [0, 1)".
CLI::Validator number(const std::string& description, bool (*holds)(double));

}  // namespace fovea::cli
