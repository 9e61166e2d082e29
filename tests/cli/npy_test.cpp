// .npy files: what NumPy writes is read; anything malformed is refused before it is believed.
#include "io/npy.h"

#include <cstring>

#include "tests/cli/files.h"

namespace fovea::io {
namespace {

using test::TemporaryFolder;
using test::write_file;

std::string npy(const std::string& dict, const std::string& data, char major = 1,
                std::int64_t header_length = -1) {
  std::string header = dict;
  header += '\n';
  const auto length = static_cast<std::uint32_t>(
      header_length < 0 ? static_cast<std::int64_t>(header.size()) : header_length);
  std::string file = "\x93NUMPY";
  file += major;
  file += '\0';
  for (int n = 0; n < (major == 1 ? 2 : 4); ++n) {
    file += static_cast<char>(length >> (8 * n) & 0xFF);
  }
  return file + header + data;
}

std::string dict(const std::string& descr, const std::string& shape,
                 const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", bytes);
  const Result<Array> array = read_npy(folder / "x.npy");
  return array.ok() ? "" : array.status().message();
}

TEST(Npy, ReadsAllVersionsAndDTypes) {
  const TemporaryFolder folder;
  const std::string data(24, '\x01');
  for (const char major : {'\1', '\2', '\3'}) {
    EXPECT_EQ(error_of(npy(dict("<f4", "(2, 3)"), data, major)), "");
  }
  EXPECT_EQ(error_of(npy(dict("<f8", "(3,)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("<f2", "(1, 2, 6)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("|b1", "(24,)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("|i1", "(24,)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("<i4", "(6,)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("<i8", "(3,)"), data)), "");
  EXPECT_EQ(error_of(npy(dict("<f4", "()"), "1234")), "");
  EXPECT_EQ(error_of(npy(dict("<f4", "(0, 7)"), "")), "");
}

TEST(Npy, FortranOrderBecomesStrides) {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy(dict("<f4", "(2, 3)", "True"), std::string(24, 'x')));
  Result<Array> array = read_npy(folder / "x.npy");
  ASSERT_TRUE(array.ok()) << array.status().message();
  const MutableTensorView view = view_of(*array).value();
  EXPECT_EQ(view.strides[0], 1);
  EXPECT_EQ(view.strides[1], 2);
}

TEST(Npy, WritesWhatItReads) {
  const TemporaryFolder folder;
  Array array = make_array(DType::f16, {3, 1, 5}).value();
  for (std::size_t n = 0; n < array.data.size(); ++n) array.data[n] = static_cast<std::byte>(n);
  throw_if_error(write_npy(folder / "x.npy", array.info, array.data.data()));
  const Array again = read_npy(folder / "x.npy").value();
  EXPECT_EQ(again.info.shape, array.info.shape);
  EXPECT_EQ(again.info.dtype, DType::f16);
  EXPECT_EQ(again.data, array.data);
  EXPECT_EQ(folder.listing(), "x.npy ");
  EXPECT_EQ(test::read_file(folder / "x.npy").size() % 64, array.data.size() % 64);
}

TEST(Npy, CannotHoldBf16) {
  const TemporaryFolder folder;
  const Array array = make_array(DType::bf16, {2}).value();
  const Status status = write_npy(folder / "x.npy", array.info, array.data.data());
  EXPECT_NE(status.message().find("no type for bf16"), std::string::npos) << status.message();
  EXPECT_EQ(folder.listing(), "");
}

TEST(Npy, RefusesWhatIsMalformed) {
  const std::string data(24, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"", "not an .npy file"},
      {"\x93NUMPY", "not an .npy file"},
      {"PK\x03\x04 a zip archive", "magic"},
      {npy(dict("<f4", "(2, 3)"), data, 4), "version 4.0"},
      {npy(dict("<f4", "(2, 3)"), data, 1, 60000), "ends inside its header"},
      {npy(dict("<f4", "(2, 3)"), data, 2, 0xFFFFFFFF), "exceeds"},
      {npy(dict("<f4", "(2, 3)"), data.substr(1)), "the file holds 23"},
      {npy(dict("<f4", "(2, 3)"), data + "x"), "the file holds 25"},
      {npy(dict("<f4", "(4611686018427387904, 4)"), data), "overflows"},
      {npy(dict("<f4", "(9223372036854775807, 2, 0)"), ""), "overflows"},
      {npy(dict("<f4", "(99999999999999999999,)"), data), "exceeds 64 bits"},
      {npy(dict("<f4", "(-6,)"), data), "negative dimension -6"},
      {npy(dict("<f4", "(6)"), data), "tuple"},
      {npy(dict("<f4", "[6,]"), data), "tuple"},
      {npy(dict("<f4", "(six,)"), data), "tuple of integers"},
      {npy(dict("<f4", "(2 3)"), data), "tuple of integers"},
      {npy(dict(">f4", "(6,)"), data), "'>f4' is not one of"},
      {npy(dict("<c8", "(3,)"), data), "'<c8' is not one of"},
      {npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}", data), "structured"},
      {npy(dict("<f4", "(6,)", "0"), data), "neither True nor False"},
      {npy("{'descr': '<f4', 'shape': (6,)}", data), "lacks"},
      {npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", data),
       "twice"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'extra': 1}", data),
       "unknown header key 'extra'"},
      {npy(dict("<f4", "(6,)") + " + os.system('x')", data), "goes on after"},
      {npy("['descr']", data), "not a dict"},
      {npy("{'descr': '<f4' 'fortran_order': False}", data), "malformed"},
      {npy("{'descr", data), "malformed"},
      {npy("", data), "not a dict"},
  };
  for (const auto& [bytes, expected] : cases) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(expected), std::string::npos)
        << "wanted: " << expected << "\ngot: " << error;
    EXPECT_NE(error.find("x.npy"), std::string::npos) << error;
  }
}

TEST(Npy, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_npy(folder / "missing.npy").ok());
  EXPECT_FALSE(read_npy(folder / ".").ok());
}

TEST(Npy, LeavesTheOldFileWhenWritingFails) {
  const TemporaryFolder folder;
  const Array array = make_array(DType::f32, {2}).value();
  const Status status = write_npy(folder / "no/such/folder.npy", array.info, array.data.data());
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(folder.listing(), "");
}

}  // namespace
}  // namespace fovea::io
