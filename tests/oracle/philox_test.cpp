// The generator against its published vectors, the layout against its statement, and dropout.
#include "contract/philox.h"

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

void expect_words(std::uint64_t key, philox::Words counter, const philox::Words& expected) {
  const philox::Words got = philox::philox4x32_10(key, counter);
  for (int n = 0; n < 4; ++n) EXPECT_EQ(got.w[n], expected.w[n]) << n;
}

// Known answers of Random123 1.14, tests/kat_vectors, "philox4x32 10".
TEST(Philox, known_answers) {
  expect_words(0, {{0, 0, 0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_words(0xffffffffffffffff, {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  expect_words(0x299f31d0a4093822, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, every_element_has_its_own_decision) {
  // (row block, column block, index) names an element once, also near the limits of 64-bit
  // positions.
  for (const std::uint64_t origin : {std::uint64_t{0}, philox::kRowLimit - 48}) {
    std::set<std::tuple<std::uint32_t, std::uint32_t, int>> seen;
    for (std::uint64_t i = origin; i < origin + 48; ++i)
      for (std::uint64_t j = 0; j < 48; ++j)
        seen.emplace(philox::row_block(i), philox::column_block(j), philox::decision_index(i, j));
    EXPECT_EQ(seen.size(), 48u * 48u);
  }
  // All of the counter is used: block indices of the last row and column are 2^32 - 1.
  EXPECT_EQ(philox::row_block(philox::kRowLimit - 1), 0xFFFFFFFFu);
  EXPECT_EQ(philox::column_block(philox::kColumnLimit - 1), 0xFFFFFFFFu);
}

TEST(Philox, a_call_decides_rows_i_and_i_plus_8_at_four_columns) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<std::pair<int, int>>> cells;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < 32; ++j)
      cells[{philox::row_block(static_cast<std::uint64_t>(i)),
             philox::column_block(static_cast<std::uint64_t>(j))}]
          .insert({i, j});
  EXPECT_EQ(cells.size(), 128u);
  const auto& cell = cells[{philox::row_block(3), philox::column_block(4)}];
  EXPECT_EQ(cell, (std::set<std::pair<int, int>>{
                      {3, 4}, {3, 5}, {3, 12}, {3, 13}, {11, 4}, {11, 5}, {11, 12}, {11, 13}}));
}

TEST(Philox, decision_is_the_stated_16_bits) {
  const philox::Stream stream{7, 11, 13};
  for (std::uint64_t i = 0; i < 32; ++i)
    for (std::uint64_t j = 0; j < 32; ++j) {
      const std::uint64_t row = i / 16 * 8 + i % 8, column = j / 16 * 4 + j % 8 / 2;
      const philox::Words words = philox::philox4x32_10(
          7, {{static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column), 11, 13}});
      const std::uint64_t index = i / 8 % 2 * 4 + j / 8 % 2 * 2 + j % 2;
      EXPECT_EQ(philox::decide(stream, i, j),
                index % 2 == 0 ? words.w[index / 2] & 0xFFFFu : words.w[index / 2] >> 16);
    }
}

TEST(Philox, threshold_and_keep_scale) {
  EXPECT_EQ(philox::threshold(0), 0u);
  EXPECT_EQ(philox::threshold(1), 65536u);
  EXPECT_EQ(philox::threshold(0.5), 32768u);
  EXPECT_EQ(philox::threshold(0.1), 6554u);  // 6553.6
  EXPECT_EQ(philox::keep_scale(32768), 2.0);
  EXPECT_EQ(philox::keep_scale(0), 1.0);
  EXPECT_EQ(philox::keep_scale(65536), 0.0);
}

TEST(Philox, keep_rate) {
  // The number dropped of n has standard deviation sqrt(n p (1 - p)).
  for (const double p : {0.1, 0.5, 0.9}) {
    constexpr std::uint64_t kRows = 512, kColumns = 1024;
    std::uint64_t dropped = 0;
    for (std::uint64_t i = 0; i < kRows; ++i)
      for (std::uint64_t j = 0; j < kColumns; ++j)
        dropped += philox::decide({42, 1, 2}, i, j) < philox::threshold(p) ? 1 : 0;
    constexpr double kTotal = kRows * kColumns;
    EXPECT_NEAR(static_cast<double>(dropped), kTotal * p, 5 * std::sqrt(kTotal * p * (1 - p)));
  }
}

/// One head over `keys` keys of equal score and v = unit vectors: out[i, j] * keys = drop(i, j).
class DropoutCall {
 public:
  DropoutCall(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t keys)
      : q_(Tensor::filled(DType::f64, {batch, heads, rows, 1}, 0)),
        k_(Tensor::filled(DType::f64, {batch, heads, keys, 1}, 0)),
        v_(Tensor::filled(DType::f64, {batch, heads, keys, keys}, 0)),
        keys_(keys) {
    for (std::int64_t n = 0; n < batch * heads * keys; ++n) v_.set(n * keys + n % keys, 1);
    params.q = q_.view();
    params.k = k_.view();
    params.v = v_.view();
  }
  /// [batch, heads, rows, keys]
  [[nodiscard]] std::vector<double> drops() const {
    std::vector<double> drops = forward_of(params).out.values();
    for (double& x : drops) x *= static_cast<double>(keys_);
    return drops;
  }
  AttentionParams params;

 private:
  Tensor q_, k_, v_;
  std::int64_t keys_;
};

TEST(Dropout, follows_the_stream_of_its_batch_and_head) {
  DropoutCall call(2, 3, 5, 20);
  call.params.dropout = {0.25, 99, 5, {}, {}, {}, 0, 0};
  const std::vector<double> drops = call.drops();
  std::size_t n = 0;
  for (std::uint32_t stream = 0; stream < 6; ++stream)  // b * q_heads + h
    for (std::uint64_t i = 0; i < 5; ++i)
      for (std::uint64_t j = 0; j < 20; ++j) {
        const bool dropped = philox::decide({99, stream, 5}, i, j) < 16384;
        EXPECT_NEAR(drops[n++], dropped ? 0 : 4.0 / 3, 1e-14);
      }
}

TEST(Dropout, origins_shift_rows_and_columns) {
  DropoutCall whole(1, 1, 40, 50), shard(1, 1, 7, 9);
  whole.params.dropout = {0.5, 1234567890123, 17, {}, {}, {}, 0, 0};
  shard.params.dropout = whole.params.dropout;
  shard.params.dropout.row_origin = 30;
  shard.params.dropout.column_origin = 40;
  const std::vector<double> all = whole.drops(), part = shard.drops();
  for (std::size_t i = 0; i < 7; ++i)
    for (std::size_t j = 0; j < 9; ++j)
      EXPECT_NEAR(part[i * 9 + j], all[(30 + i) * 50 + 40 + j], 1e-12);
}

TEST(Dropout, seed_offset_and_streams_from_memory) {
  DropoutCall call(2, 1, 4, 30);
  call.params.dropout = {0.5, 77, 3, {}, {}, {}, 0, 0};
  const std::vector<double> plain = call.drops();
  const Tensor seed(DType::i64, {1}, {77}), offset(DType::i64, {1}, {2}),
      streams(DType::i64, {2, 1}, {1, 0});
  call.params.dropout.seed = 1;
  call.params.dropout.offset = 1;  // the tensor's 2 is added
  call.params.dropout.seed_tensor = seed.view();
  call.params.dropout.offset_tensor = offset.view();
  EXPECT_EQ(call.drops(), plain);
  call.params.dropout.streams = streams.view();
  const std::vector<double> swapped = call.drops();
  for (std::size_t n = 0; n < 120; ++n) EXPECT_EQ(swapped[n], plain[(n + 120) % 240]);
}

TEST(Dropout, the_offset_has_64_bits) {
  DropoutCall call(1, 1, 8, 40);
  const auto drops_at = [&](std::uint64_t offset) {
    call.params.dropout = {0.5, 77, offset, {}, {}, {}, 0, 0};
    return call.drops();
  };
  EXPECT_NE(drops_at(std::uint64_t{1} << 32), drops_at(0));
  EXPECT_NE(drops_at((std::uint64_t{1} << 32) + 5), drops_at(5));
  EXPECT_EQ(drops_at(5), drops_at(5));
}

TEST(Dropout, a_number_equal_to_the_threshold_keeps) {
  constexpr std::uint32_t kThreshold = 32768;
  std::int64_t i = 0, j = 0;
  const auto number = [&] {
    return philox::decide({8, 0, 0}, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j));
  };
  while (number() != kThreshold) {
    ++j;
    if (j == 1000) {
      j = 0;
      ++i;
    }
  }
  DropoutCall call(1, 1, 1, 1);
  call.params.dropout = {0.5, 8, 0, {}, {}, {}, i, j};
  EXPECT_EQ(call.drops(), (std::vector<double>{2}));
}

TEST(Dropout, all_dropped_gives_zero_and_leaves_lse) {
  DropoutCall call(1, 1, 2, 4);
  call.params.dropout.probability = 1;
  const Outputs result = forward_of(call.params);
  for (const double x : result.out.values()) EXPECT_EQ(x, 0);
  for (const double x : result.lse.values()) EXPECT_NEAR(x, std::log(4.0), 1e-15);
}

}  // namespace
}  // namespace fovea::oracle
