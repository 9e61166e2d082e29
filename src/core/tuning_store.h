// Where measured choices are kept: in memory, and in a file that other processes read and write
// too.
//
// The file is FOVEA_CACHE_DIR/autotune.jsonl, else XDG_CACHE_HOME/fovea/..., else
// ~/.cache/fovea/...: a JSON object a line. It is written under another name and renamed, so that
// readers see a whole one; of two processes that write at once one may lose its last choice, and
// measures it again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <fovea/introspect.h>

namespace fovea {

/// The choice for a class of calls, from memory or the file. Lines of the file that cannot be read
/// are ignored, and counted in `notice`.
std::optional<TunedChoice> find_tuning(const std::string& call, std::string& notice);

/// Keeps a choice. `notice` says when the file could not be written; memory has it then.
void keep_tuning(const TunedChoice& choice, std::string& notice);

/// What memory and the file hold.
std::vector<TunedChoice> known_tunings();

/// Forgets what memory holds.
void forget_tunings();

/// Path of the file; empty without any of the three variables.
std::string tuning_file();

/// One line of the file, without its end, and back.
std::string line_of(const TunedChoice& choice);
std::optional<TunedChoice> parse_tuning(std::string_view line);

}  // namespace fovea
