#include "lm/checkpoint.h"

#include <cstring>
#include <functional>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

using nlohmann::json;
using test::read_file;
using test::ScratchFolder;
using test::write_file;

Gpt2Config tiny() {
  Gpt2Config config;
  config.vocab_size = 5;
  config.n_positions = 4;
  config.n_embd = 4;
  config.n_layer = 1;
  config.n_head = 2;
  return config;
}

Gpt2 tiny_model() {
  Rng rng(1);
  return {tiny(), rng};
}

// A checkpoint file taken apart: its header as JSON, its data as bytes.
struct Parts {
  json header;
  std::string data;

  static Parts of(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    return {json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
  }
  [[nodiscard]] std::string bytes() const { return with_header(header.dump()); }
  [[nodiscard]] std::string with_header(const std::string& text) const {
    const std::uint64_t length = text.size();
    std::string result(8, '\0');
    std::memcpy(result.data(), &length, 8);
    return result + text + data;
  }
};

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    const AdamW optimizer(model_.parameters(), {});
    save_checkpoint(file_, model_, &optimizer, {{"step", 3}});
    good_ = read_file(file_);
  }

  // The message about a file with these bytes.
  std::string refusal(const std::string& bytes) {
    write_file(file_, bytes);
    const std::int64_t before = tensor_memory().peak_bytes;
    const std::string message = test::error_of([&] { const CheckpointFile file(file_); });
    EXPECT_EQ(tensor_memory().peak_bytes, before) << "allocated before the check was complete";
    EXPECT_NE(message.find("[checkpoint"), std::string::npos) << message;
    EXPECT_NE(message.find(file_.string()), std::string::npos) << message;
    return message;
  }
  std::string refusal(const std::function<void(Parts&)>& change) {
    Parts parts = Parts::of(good_);
    change(parts);
    return refusal(parts.bytes());
  }

  ScratchFolder folder_;
  std::filesystem::path file_ = folder_ / "c.safetensors";
  Gpt2 model_ = tiny_model();
  std::string good_;
};

#define EXPECT_HAS(message, text) \
  EXPECT_NE(std::string(message).find(text), std::string::npos) << (message)

TEST_F(Checkpoint, weights_moments_and_state_go_round_bit_for_bit) {
  AdamW optimizer(model_.parameters(), {});
  Rng rng(5);
  for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
    for (float& m : optimizer.first_moment(i).values()) m = static_cast<float>(rng.normal());
    for (float& v : optimizer.second_moment(i).values()) v = static_cast<float>(rng.uniform());
  }
  const json state = {{"step", 12345678901}, {"note", "\"quoted\""}};
  save_checkpoint(file_, model_, &optimizer, state);
  const CheckpointFile file(file_);
  EXPECT_EQ(file.config(), tiny());
  EXPECT_EQ(file.trainer(), state);
  const Gpt2 loaded = file.load_model();
  const AdamW loaded_optimizer(loaded.parameters(), {});
  file.load_optimizer(loaded, loaded_optimizer);
  for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
    EXPECT_EQ(test::values_of(loaded.parameters()[i].var.value()),
              test::values_of(model_.parameters()[i].var.value()));
    EXPECT_EQ(test::values_of(loaded_optimizer.first_moment(i)),
              test::values_of(optimizer.first_moment(i)));
    EXPECT_EQ(test::values_of(loaded_optimizer.second_moment(i)),
              test::values_of(optimizer.second_moment(i)));
  }
  save_checkpoint(folder_ / "again", loaded, &loaded_optimizer, state);
  EXPECT_EQ(read_file(folder_ / "again"), read_file(file_));
}

TEST_F(Checkpoint, weights_alone_have_no_training_state) {
  save_checkpoint(file_, model_, nullptr, nullptr);
  const CheckpointFile file(file_);
  EXPECT_FALSE(file.has_training_state());
  EXPECT_EQ(file.load_model().parameter_count(), model_.parameter_count());
}

TEST_F(Checkpoint, I7_half_and_bf16_weights_are_widened) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<io::SafetensorsTensor> tensors;
    // -1.5 and the smallest subnormal of f16
    const std::uint16_t first = dtype == DType::f16 ? 0xbe00 : 0xbfc0;
    std::vector<std::uint16_t> bits(64, first);
    bits[1] = 1;
    for (const Gpt2::ParameterShape& p : Gpt2::parameter_shapes(tiny())) {
      tensors.push_back({p.name, dtype, p.shape, bits.data()});
    }
    ASSERT_TRUE(
        io::write_safetensors(file_.string(), tensors,
                              {{"format", "fovea-lm-1"}, {"config", tiny().to_json().dump()}})
            .ok());
    const Gpt2 model = CheckpointFile(file_).load_model();
    const std::span<float> wte = model.parameters()[0].var.value().values();
    EXPECT_EQ(wte[0], -1.5F);
    EXPECT_EQ(wte[1], dtype == DType::f16 ? 0x1p-24F : 0x1p-133F);
  }
}

TEST_F(Checkpoint, every_truncation_is_refused) {
  for (std::size_t size = 0; size < good_.size(); size += size < 600 ? 13 : 97) {
    (void)refusal(good_.substr(0, size));
  }
  (void)refusal(good_ + "x");
}

TEST_F(Checkpoint, flipped_header_bytes_never_crash) {
  std::uint64_t length = 0;
  std::memcpy(&length, good_.data(), 8);
  for (std::size_t at = 0; at < 8 + length; at += 5) {
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x11);
    write_file(file_, bytes);
    try {
      (void)CheckpointFile(file_).load_model();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  }
}

TEST_F(Checkpoint, header_lengths_that_lie) {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{good_.size()}, UINT64_MAX,
                                     UINT64_MAX - 7, std::uint64_t{1} << 62}) {
    std::string bytes = good_;
    std::memcpy(bytes.data(), &length, 8);
    (void)refusal(bytes);
  }
}

TEST_F(Checkpoint, malformed_tensors) {
  const std::string name = "wpe.weight";
  (void)refusal([&](Parts& p) { p.header[name]["data_offsets"] = {0, 1}; });
  (void)refusal([&](Parts& p) { p.header[name]["data_offsets"] = {10, 0}; });
  (void)refusal([&](Parts& p) { p.header[name]["data_offsets"] = {-1, 63}; });
  (void)refusal([&](Parts& p) { p.header[name]["data_offsets"] = {0, UINT64_MAX}; });
  (void)refusal(
      [&](Parts& p) { p.header[name]["data_offsets"] = p.header["wte.weight"]["data_offsets"]; });
  (void)refusal([&](Parts& p) { p.header[name]["shape"] = {INT64_MAX, INT64_MAX, 16}; });
  (void)refusal([&](Parts& p) { p.header[name]["shape"] = {4, -4}; });
  (void)refusal([&](Parts& p) { p.header[name]["shape"] = {4, 4.0}; });
  (void)refusal([&](Parts& p) { p.header[name]["shape"] = "4x4"; });
  (void)refusal([&](Parts& p) { p.header[name].erase("shape"); });
  (void)refusal([&](Parts& p) { p.header[name] = 3; });
  EXPECT_HAS(refusal([&](Parts& p) { p.header[name]["dtype"] = "F31"; }), "F31");
  EXPECT_HAS(refusal([&](Parts& p) { p.header[name]["dtype"] = "I32"; }), "is I32; F32 is wanted");
  EXPECT_HAS(refusal([&](Parts& p) {
               p.header[name]["shape"] = {2, 8};
             }),
             "has shape [2, 8]; its configuration makes [4, 4]");
  EXPECT_HAS(refusal([&](Parts& p) {
               p.header["wpe.wait"] = p.header[name];
               p.header.erase(name);
             }),
             "tensor 'wpe.weight' is missing");
  (void)refusal([&](Parts& p) { p.header.erase(name); });
}

TEST_F(Checkpoint, doubled_names_and_broken_json) {
  const Parts parts = Parts::of(good_);
  const std::string text = parts.header.dump();
  EXPECT_HAS(refusal(parts.with_header("{\"wte.weight\":{}," + text.substr(1))), "wte.weight");
  (void)refusal(parts.with_header(text.substr(0, text.size() - 1)));
  (void)refusal(parts.with_header("[]"));
  (void)refusal(parts.with_header(std::string(100000, '[')));
}

TEST_F(Checkpoint, wrong_metadata) {
  const auto with = [&](const char* key, const json& value) {
    return refusal([&](Parts& p) { p.header["__metadata__"][key] = value; });
  };
  EXPECT_HAS(with("format", "pt"), "the format is 'pt'");
  (void)with("format", 3);
  EXPECT_HAS(with("config", "{"), "config] invalid JSON");
  EXPECT_HAS(with("trainer", "[1]"), "trainer] a JSON object is wanted");
  EXPECT_HAS(refusal([](Parts& p) { p.header["__metadata__"].erase("config"); }),
             "the metadata have no 'config'");
  EXPECT_HAS(refusal([](Parts& p) { p.header.erase("__metadata__"); }), "no 'format'");
  // More layers than the file has tensors: refused by their number, nothing is made of it.
  Gpt2Config deep = tiny();
  deep.n_layer = 4096;
  EXPECT_HAS(with("config", deep.to_json().dump()), "its configuration makes 147468");
}

TEST_F(Checkpoint, missing_files_and_folders_are_errors) {
  EXPECT_ERROR_HAS(CheckpointFile(folder_ / "none"), "none");
  EXPECT_ERROR_HAS(CheckpointFile(folder_.path()), folder_.path().string());
}

TEST_F(Checkpoint, a_failed_save_leaves_the_old_file_and_no_other) {
  EXPECT_ERROR_HAS(save_checkpoint(folder_ / "no/such/folder/c", model_, nullptr, nullptr),
                   "no/such/folder");
  json invalid = {{"text", "\xff"}};
  const AdamW optimizer(model_.parameters(), {});
  EXPECT_ANY_THROW(save_checkpoint(file_, model_, &optimizer, invalid));
  EXPECT_EQ(read_file(file_), good_);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1U);
}

}  // namespace
}  // namespace fovea::lm
