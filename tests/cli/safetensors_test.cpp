// .safetensors files: the header is believed only where every number of it holds.
#include "io/safetensors.h"

#include "io/tensor_file.h"
#include "tests/cli/files.h"

namespace fovea::io {
namespace {

using test::TemporaryFolder;
using test::write_file;

std::string safetensors(const std::string& json, const std::string& data,
                        std::int64_t length = -1) {
  auto header_length =
      static_cast<std::uint64_t>(length < 0 ? static_cast<std::int64_t>(json.size()) : length);
  std::string file;
  for (int n = 0; n < 8; ++n) {
    file += static_cast<char>(header_length & 0xFF);
    header_length >>= 8;
  }
  return file + json + data;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file(folder / "x.safetensors", bytes);
  const Result<SafetensorsFile> file = SafetensorsFile::open(folder / "x.safetensors");
  return file.ok() ? "" : file.status().message();
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const TemporaryFolder folder;
  write_file(
      folder / "x.safetensors",
      safetensors(R"({"__metadata__":{"format":"pt"},"b":)" + entry("BF16", "[2,1]", "[8,12]") +
                      R"(,"a":)" + entry("F32", "[2]", "[0,8]") + R"(,"u":)" +
                      entry("U16", "[1]", "[12,14]") + "}  ",
                  "12345678abcdXY"));
  const Result<SafetensorsFile> file = SafetensorsFile::open(folder / "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ASSERT_EQ(file->entries().size(), 3u);
  EXPECT_EQ(file->entries()[0].name, "a");
  const Array b = file->read("b").value();
  EXPECT_EQ(b.info.dtype, DType::bf16);
  EXPECT_EQ(b.info.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(static_cast<char>(b.data[0]), 'a');
  EXPECT_NE(file->read("u").status().message().find("U16"), std::string::npos);
  EXPECT_NE(file->read("c").status().message().find("no tensor 'c'; it holds 'a'"),
            std::string::npos);
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  const float a[] = {1, 2, 3};
  const std::int64_t b[] = {7};
  throw_if_error(write_safetensors(folder / "x.safetensors",
                                   {{"z", DType::f32, {3, 1}, a},
                                    {"a", DType::i64, {}, b},
                                    {"none", DType::f16, {0, 4}, nullptr}},
                                   {{"key", "value"}}));
  const SafetensorsFile file = SafetensorsFile::open(folder / "x.safetensors").value();
  EXPECT_EQ(file.metadata().at("key"), "value");
  EXPECT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.find("z")->begin % 64, 0u);
  float read[3];
  throw_if_error(file.read(*file.find("z"), read));
  EXPECT_EQ(read[2], 3);
  EXPECT_EQ(folder.listing(), "x.safetensors ");
}

TEST(Safetensors, RefusesWhatIsMalformed) {
  const std::string one = entry("F32", "[2]", "[0,8]");
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a safetensors file"},
      {"1234567", "not a safetensors file: 7 bytes"},
      {safetensors("{}", "", 1000), "does not fit"},
      {std::string(8, '\xFF') + "{}", "does not fit"},
      {safetensors("{", ""), "not valid JSON"},
      {safetensors("[1]", ""), "not a JSON object"},
      {safetensors("{\"a\":" + one + "}", "1234567"), "the file holds 7"},
      {safetensors("{\"a\":" + one + "}", "123456789"), "the file holds 9"},
      {safetensors("{\"a\":" + one + ",\"a\":" + one + "}", "12345678"), "stands twice"},
      {safetensors("{\"a\":" + one + ",\"b\":" + entry("F32", "[2]", "[4,12]") + "}",
                   "123456789012"),
       "inside or before"},
      {safetensors("{\"a\":" + one + ",\"b\":" + entry("F32", "[1]", "[12,16]") + "}",
                   "1234567890123456"),
       "behind"},
      {safetensors("{\"a\":" + entry("F32", "[2]", "[0,4]") + "}", "1234"), "takes 8 bytes"},
      {safetensors("{\"a\":" + entry("F32", "[2]", "[8,0]") + "}", "12345678"), "data_offsets"},
      {safetensors("{\"a\":" + entry("F32", "[-2]", "[0,8]") + "}", "12345678"), "no size: -2"},
      {safetensors("{\"a\":" + entry("F32", "[2.0]", "[0,8]") + "}", "12345678"), "no size"},
      {safetensors("{\"a\":" + entry("F32", "[4611686018427387904,4]", "[0,8]") + "}", "12345678"),
       "overflows"},
      {safetensors("{\"a\":" + entry("F64", "[2305843009213693952]", "[0,0]") + "}", ""),
       "overflows"},
      {safetensors("{\"a\":" + entry("Q4", "[2]", "[0,8]") + "}", "12345678"), "'Q4'"},
      {safetensors("{\"a\":" + entry("F32", "[2]", "[0,8,9]") + "}", "12345678"), "wrong kind"},
      {safetensors("{\"a\":" + entry("F32", "2", "[0,8]") + "}", "12345678"), "wrong kind"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[2]}})", "12345678"), "does not have just"},
      {safetensors(R"({"a":5})", ""), "not an object"},
      {safetensors(R"({"__metadata__":{"a":1}})", ""), "not a string"},
      {safetensors(R"({"__metadata__":7})", ""), "not an object"},
  };
  for (const auto& [bytes, expected] : cases) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(expected), std::string::npos)
        << "wanted: " << expected << "\ngot: " << error;
    EXPECT_NE(error.find("x.safetensors"), std::string::npos) << error;
  }
}

TEST(Safetensors, RefusesToWriteNonsense) {
  const TemporaryFolder folder;
  const float x[] = {1};
  const std::string path = folder / "x.safetensors";
  EXPECT_FALSE(
      write_safetensors(path, {{"a", DType::f32, {1}, x}, {"a", DType::f32, {1}, x}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"__metadata__", DType::f32, {1}, x}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"a", DType::f32, {-1}, x}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"a\xFF", DType::f32, {1}, x}}).ok());
  EXPECT_EQ(folder.listing(), "");
}

TEST(TensorFile, PlacesOnTheCommandLine) {
  EXPECT_EQ(parse_place("a/b.npy")->path, "a/b.npy");
  EXPECT_EQ(parse_place("a.safetensors:x.y:z")->name, "x.y:z");
  EXPECT_FALSE(parse_place("a.txt").ok());
  EXPECT_FALSE(parse_place("").ok());
  EXPECT_FALSE(load_tensor("a.safetensors:").ok());
}

TEST(TensorFile, StoresAllOrNothing) {
  const TemporaryFolder folder;
  const Array array = make_array(DType::f32, {2}).value();
  EXPECT_FALSE(
      store_tensors({{{folder / "a.npy", ""}, &array}, {{folder / "missing/b.npy", ""}, &array}})
          .ok());
  EXPECT_EQ(folder.listing(), "");
  const std::string file = folder / "c.safetensors";
  EXPECT_FALSE(store_tensors({{{file, "x"}, &array}, {{file, "x"}, &array}}).ok());
  EXPECT_FALSE(store_tensors({{{file, ""}, &array}}).ok());
  EXPECT_TRUE(store_tensors({{{file, "x"}, &array}, {{file, "y"}, &array}}).ok());
  EXPECT_TRUE(load_tensor(file + ":y").ok());
  EXPECT_FALSE(load_tensor(file).ok());  // two tensors and no name
}

}  // namespace
}  // namespace fovea::io
