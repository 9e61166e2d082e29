#include "lm/tokenizer.h"

#include "lm/error.h"

namespace fovea::lm {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= kVocabulary) {
      fail("[tokenizer] byte tokens are 0 to {}; got {}", kVocabulary - 1, token);
    }
    text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace fovea::lm
