// Text to tokens and back, one token a byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::lm {

/// Every byte is its own token: 256 tokens, any text, nothing unknown. Token 0 never occurs in text
/// and stands between documents.
class ByteTokenizer {
 public:
  static constexpr std::int32_t kVocabulary = 256;
  static constexpr std::int32_t kEndOfText = 0;

  static std::vector<std::int32_t> encode(std::string_view text);
  /// Throws fovea::Error on a token outside [0, 256).
  static std::string decode(std::span<const std::int32_t> tokens);
};

}  // namespace fovea::lm
