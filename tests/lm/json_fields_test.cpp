#include "lm/json_fields.h"

#include "lm/tokenizer.h"
#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

TEST(ParseJsonObject, malformed_texts_are_refused) {
  const auto parse = [](const std::string& text) { (void)parse_json_object(text, "place"); };
  EXPECT_ERROR_HAS(parse(""), "[place] invalid JSON");
  EXPECT_ERROR_HAS(parse("{\"a\": 1"), "[place] invalid JSON");
  EXPECT_ERROR_HAS(parse("{\"a\": 1} x"), "[place] invalid JSON");
  EXPECT_ERROR_HAS(parse("{\"a\": \"\xff\"}"), "[place] invalid JSON");
  EXPECT_ERROR_HAS(parse("[1]"), "a JSON object is wanted; got array");
  EXPECT_ERROR_HAS(parse("{\"a\": 1, \"a\": 2}"), "the key 'a' is given twice");
  EXPECT_ERROR_HAS(parse("{\"a\": {\"b\": 1, \"b\": 2}}"), "the key 'b' is given twice");
  EXPECT_ERROR_HAS(parse("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}"),
                   "nested deeper than 16");
  EXPECT_EQ(parse_json_object("{\"a\": {\"x\": 1}, \"b\": {\"x\": 2}}", "place").size(), 2U);
}

TEST(JsonFields, types_ranges_and_leftovers) {
  const nlohmann::json json = {{"i", 3},
                               {"big", UINT64_MAX},
                               {"f", 0.5},
                               {"s", "text"},
                               {"b", true},
                               {"o", {{"x", 1}}},
                               {"seed", "18446744073709551615"}};
  JsonFields fields(json, "place");
  EXPECT_EQ(fields.integer("i"), 3);
  EXPECT_EQ(fields.number("i"), 3);
  EXPECT_EQ(fields.number("f"), 0.5);
  EXPECT_EQ(fields.text("s"), "text");
  EXPECT_TRUE(fields.boolean("b"));
  EXPECT_EQ(fields.object("o").size(), 1U);
  EXPECT_EQ(fields.unsigned_text("seed"), UINT64_MAX);
  EXPECT_ERROR_HAS((void)fields.integer("f"), "'f' must be a 64-bit integer; got 0.5");
  EXPECT_ERROR_HAS((void)fields.integer("big"), "64-bit integer");
  EXPECT_ERROR_HAS((void)fields.integer("none"), "'none' is missing");
  EXPECT_ERROR_HAS((void)fields.text("i"), "'i' must be a string; got 3");
  EXPECT_ERROR_HAS((void)fields.boolean("i"), "true or false");
  EXPECT_ERROR_HAS((void)fields.object("s"), "must be an object");
  EXPECT_ERROR_HAS((void)fields.unsigned_text("s"), "unsigned 64-bit number");
  fields.refuse_unknown();

  JsonFields few(json, "place");
  (void)few.integer("i");
  EXPECT_ERROR_HAS(few.refuse_unknown(), "unknown key 'b'");
  EXPECT_ERROR_HAS(JsonFields(nlohmann::json(3), "place"), "got number");
}

TEST(ByteTokenizer, every_byte_goes_round) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const std::vector<std::int32_t> tokens = ByteTokenizer::encode(text);
  EXPECT_EQ(tokens[255], 255);
  EXPECT_EQ(ByteTokenizer::decode(tokens), text);
  EXPECT_ERROR_HAS((void)ByteTokenizer::decode(std::vector<std::int32_t>{256}), "got 256");
  EXPECT_ERROR_HAS((void)ByteTokenizer::decode(std::vector<std::int32_t>{-1}), "got -1");
}

}  // namespace
}  // namespace fovea::lm
