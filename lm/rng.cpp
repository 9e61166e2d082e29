#include "lm/rng.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numbers>

#include "lm/error.h"

namespace fovea::lm {

Rng::Rng(std::uint64_t seed) {
  for (std::uint64_t& word : words_) {
    seed += 0x9e3779b97f4a7c15U;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    word = z ^ (z >> 31);
  }
}

std::uint64_t Rng::next() {
  auto& [a, b, c, d] = words_;
  const std::uint64_t result = std::rotl(a + d, 23) + a;
  const std::uint64_t t = b << 17;
  c ^= a;
  d ^= b;
  b ^= c;
  a ^= d;
  c ^= t;
  d = std::rotl(d, 45);
  return result;
}

double Rng::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

std::uint64_t Rng::below(std::uint64_t bound) {
  if (bound == 0) fail("[rng] the bound must be at least 1; got 0");
  // The numbers below 2^64 mod bound would make some results likelier than others.
  const std::uint64_t threshold = (0 - bound) % bound;
  std::uint64_t draw = next();
  while (draw < threshold) draw = next();
  return draw % bound;
}

double Rng::normal() {
  const double u = 1.0 - uniform();
  const double angle = 2.0 * std::numbers::pi * uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

std::string Rng::state() const {
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", words_[0], words_[1], words_[2], words_[3]);
}

Rng Rng::from_state(std::string_view text) {
  Rng rng;
  const auto digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != 64 || !std::all_of(text.begin(), text.end(), digit)) {
    fail("[rng] a state has 64 lower-case hexadecimal digits; got '{}'", text.substr(0, 80));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const char* const begin = text.data() + 16 * i;
    std::from_chars(begin, begin + 16, rng.words_[i], 16);
  }
  if (rng == Rng()) fail("[rng] the state of all zeros is not a state");
  return rng;
}

}  // namespace fovea::lm
