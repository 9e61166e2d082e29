#include "lm/data.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

using test::ScratchFolder;
using test::write_file;

std::vector<std::uint8_t> counting(std::size_t size) {
  std::vector<std::uint8_t> text(size);
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<std::uint8_t>(i % 251);
  return text;
}

std::string as_string(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(LoadText, folders_are_sorted_filtered_and_joined) {
  const ScratchFolder folder;
  write_file(folder / "b.md", "second");
  write_file(folder / "a/z.cpp", "first");
  write_file(folder / "c.txt", "third");
  write_file(folder / "image.png", "not text by its name");
  write_file(folder / "binary.txt", std::string("\x7f"
                                                "ELF\0\0",
                                                6));
  write_file(folder / "empty.txt", "");
  write_file(folder / "build/generated.cpp", "generated");
  write_file(folder / "build-release/generated.cpp", "generated");
  write_file(folder / ".git/config.txt", "hidden");
  write_file(folder / "__pycache__/x.py", "cache");
  std::filesystem::create_symlink(folder.path(), folder / "loop");
  const TextData data = load_text({folder.path()}, {.validation_fraction = 0});
  EXPECT_EQ(as_string(data.train), std::string("first\0second\0third", 18));
  EXPECT_EQ(data.files.size(), 3U);
  EXPECT_EQ(data.skipped, 1);
  EXPECT_TRUE(data.validation.empty());
}

TEST(LoadText, a_file_named_directly_is_taken_whatever_its_ending) {
  const ScratchFolder folder;
  write_file(folder / "notes.log", "hello");
  EXPECT_EQ(as_string(load_text({folder / "notes.log"}, {.validation_fraction = 0}).train),
            "hello");
}

TEST(LoadText, missing_empty_and_oversized_texts_are_errors) {
  const ScratchFolder folder;
  EXPECT_ERROR_HAS((void)load_text({folder / "none"}, {}), "no file or folder at");
  EXPECT_ERROR_HAS((void)load_text({folder.path()}, {}), "no text found");
  EXPECT_ERROR_HAS((void)load_text({}, {}), "no text found");
  write_file(folder / "a.txt", "12345");
  write_file(folder / "b.txt", "12345");
  EXPECT_ERROR_HAS((void)load_text({folder.path()}, {.max_bytes = 9}), "the limit of 9 bytes");
  EXPECT_ERROR_HAS((void)load_text({folder.path()}, {.validation_fraction = 0.6}), "got 0.6");
  EXPECT_ERROR_HAS((void)load_text({folder.path()}, {.validation_fraction = NAN}), "got nan");
}

TEST(SplitText, parts_are_disjoint_and_complete) {
  const std::vector<std::uint8_t> text = counting(10007);
  const TextData data = split_text(text, 0.1);
  EXPECT_EQ(data.train.size() + data.validation.size(), text.size());
  EXPECT_NEAR(static_cast<double>(data.validation.size()), 1000, 10);
  EXPECT_TRUE(std::equal(data.train.begin(), data.train.begin() + 1000, text.begin()));
  EXPECT_EQ(data.validation.back(), text.back());
}

TEST(SplitText, fingerprint_depends_on_every_byte) {
  std::vector<std::uint8_t> text = counting(1000);
  const std::string before = split_text(text, 0).fingerprint();
  EXPECT_EQ(before, split_text(text, 0).fingerprint());
  text[500] ^= 1;
  EXPECT_NE(before, split_text(text, 0).fingerprint());
}

TEST(BatchIterator, an_epoch_visits_every_window_once_and_targets_follow) {
  const std::vector<std::uint8_t> text = counting(5 * 7 + 4);
  BatchIterator batches(text, 1, 7, 3);
  ASSERT_EQ(batches.windows_per_epoch(), 5);
  std::vector<std::int32_t> first_order;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<std::int32_t> starts;
    std::vector<std::int32_t> order;
    for (int i = 0; i < 5; ++i) {
      const Batch batch = batches.next();
      EXPECT_EQ(batches.epoch(), epoch);
      for (std::size_t j = 0; j < 7; ++j) {
        EXPECT_EQ(batch.targets[j], batch.tokens[j] + 1);
        EXPECT_LT(static_cast<std::size_t>(batch.targets[j]), text.size());
      }
      starts.insert(batch.tokens[0]);
      order.push_back(batch.tokens[0]);
    }
    EXPECT_EQ(starts.size(), 5U);
    if (epoch == 0) first_order = order;
    if (epoch == 3) {
      EXPECT_NE(order, first_order);
    }
  }
}

TEST(BatchIterator, a_batch_spans_two_epochs) {
  const std::vector<std::uint8_t> text = counting(3 * 4 + 1);
  BatchIterator batches(text, 2, 4, 1);
  std::vector<int> seen(3);
  for (int i = 0; i < 3; ++i) {
    const Batch batch = batches.next();
    ASSERT_EQ(batch.tokens.size(), 8U);
    ++seen[static_cast<std::size_t>(batch.tokens[0] / 4)];
    ++seen[static_cast<std::size_t>(batch.tokens[4] / 4)];
  }
  EXPECT_EQ(seen, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(batches.epoch(), 1);
  EXPECT_EQ(batches.position(), 3);
}

TEST(BatchIterator, text_shorter_than_one_batch_is_an_error) {
  EXPECT_ERROR_HAS(BatchIterator(counting(16), 4, 4, 1), "16 bytes give 3 windows of 4 + 1");
  EXPECT_ERROR_HAS(BatchIterator({}, 1, 4, 1), "0 bytes give 0 windows");
  EXPECT_ERROR_HAS(BatchIterator(counting(16), 0, 4, 1), "got 0 and 4");
  const std::vector<std::uint8_t> enough = counting(17);
  BatchIterator batches(enough, 4, 4, 1);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(batches.next().tokens.size(), 16U);
}

TEST(BatchIterator, cursor_continues_with_the_same_batches) {
  const std::vector<std::uint8_t> text = counting(997);
  BatchIterator whole(text, 3, 10, 5);
  for (int i = 0; i < 47; ++i) whole.next();
  const std::string saved = whole.state().dump();
  BatchIterator resumed(text, 3, 10, 999);
  resumed.restore(nlohmann::json::parse(saved));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(whole.next().tokens, resumed.next().tokens);
  EXPECT_EQ(whole.state(), resumed.state());
}

TEST(BatchIterator, malformed_cursors_are_refused) {
  const std::vector<std::uint8_t> text = counting(100);
  BatchIterator batches(text, 1, 10, 5);
  const nlohmann::json good = batches.state();
  const auto with = [&](const char* key, nlohmann::json value) {
    nlohmann::json state = good;
    state[key] = std::move(value);
    batches.restore(state);
  };
  EXPECT_ERROR_HAS(with("text_bytes", 99), "saved for 99 bytes");
  EXPECT_ERROR_HAS(with("context", 11), "context 11");
  EXPECT_ERROR_HAS(with("position", 10), "got 0 and 10");
  EXPECT_ERROR_HAS(with("epoch", -1), "got -1");
  EXPECT_ERROR_HAS(with("epoch", 1.5), "64-bit integer");
  EXPECT_ERROR_HAS(with("epoch_rng", "123"), "hexadecimal");
  EXPECT_ERROR_HAS(with("extra", 1), "unknown key 'extra'");
  EXPECT_EQ(batches.state(), good);
}

TEST(SequentialBatches, in_order_with_a_short_last_batch) {
  const std::vector<std::uint8_t> text = counting(5 * 4 + 3);
  const std::vector<Batch> batches = sequential_batches(text, 2, 4, 100);
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(batches[2].tokens, (std::vector<std::int32_t>{16, 17, 18, 19}));
  EXPECT_EQ(sequential_batches(text, 2, 4, 3).size(), 2U);
  EXPECT_TRUE(sequential_batches(counting(4), 2, 4, 3).empty());
  EXPECT_TRUE(sequential_batches({}, 2, 4, 3).empty());
}

}  // namespace
}  // namespace fovea::lm
