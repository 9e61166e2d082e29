// Random numbers whose whole state is four words that can be saved and restored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fovea::lm {

/// xoshiro256++ 1.0 (Blackman and Vigna), seeded through SplitMix64. The same seed gives the same
/// numbers on every machine, but for normal(), which uses the C library's log and cos.
class Rng {
 public:
  explicit Rng(std::uint64_t seed);

  std::uint64_t next();
  /// In [0, 1), 53 random bits.
  double uniform();
  /// In [0, bound), without bias. bound >= 1, else fovea::Error.
  std::uint64_t below(std::uint64_t bound);
  /// Standard normal (Box-Muller, two draws each).
  double normal();

  /// The state as 64 hexadecimal digits.
  [[nodiscard]] std::string state() const;
  /// Throws fovea::Error on anything that state() does not give.
  static Rng from_state(std::string_view text);

  friend bool operator==(const Rng&, const Rng&) = default;

 private:
  Rng() = default;
  std::array<std::uint64_t, 4> words_{};
};

}  // namespace fovea::lm
