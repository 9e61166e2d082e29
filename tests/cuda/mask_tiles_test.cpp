// Classes of mask tiles against every element looked at.
#include "cuda/mask_tiles.h"

#include "tests/cuda/operands.h"

namespace fovea::cuda {
namespace {

using namespace test;

/// What a tile is to hold: every element hidden, plain or of any kind.
double draw_element(Random& random, int kind) {
  if (kind == 0) return -INFINITY;
  if (kind == 1) return chance(random, 50) ? 0.0 : -0.0;
  constexpr double kOthers[] = {0, 1.5, -INFINITY, INFINITY, -2.25, 1e-7};
  return chance(random, 3) ? NAN : kOthers[draw(random, 0, 5)];
}

class Mask : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Mask, classes_are_those_of_the_elements) {
  Random random(GetParam());
  for (int n = 0; n < 10; ++n) {
    SCOPED_TRACE(n);
    plain::Shape shape{};
    shape.batch = draw(random, 1, 2);
    shape.q_heads = draw(random, 1, 3);
    shape.q_len = draw(random, 1, 150);
    shape.kv_len = chance(random, 30) ? 64 * draw(random, 1, 3) : draw(random, 1, 200);
    plain::MaskArgs mask;
    mask.additive = chance(random, 60);
    mask.element = random_element(random);
    const std::int64_t size = mask.additive ? plain::size_of(mask.element) : 1;
    const std::int64_t all[4] = {shape.batch, shape.q_heads, shape.q_len, shape.kv_len};
    std::int64_t sizes[4], strides[4];
    for (int d = 0; d < 4; ++d) sizes[d] = chance(random, 30) ? 1 : all[d];
    std::int64_t elements = 0;
    if (chance(random, 50)) {
      elements = random_strides(random, false, sizes, strides);
    } else {
      // [.., rows, keys] as they are mostly, rows with or without a gap
      strides[3] = 1;
      strides[2] = chance(random, 50) ? (sizes[3] + 15) / 16 * 16 : sizes[3];
      strides[1] = strides[2] * sizes[2];
      strides[0] = strides[1] * sizes[1];
      elements = strides[0] * sizes[0];
    }
    const std::size_t offset = chance(random, 70) ? 0 : static_cast<std::size_t>(size);
    Buffer memory(static_cast<std::size_t>(elements * size), offset);
    mask.data = memory.at<void>();
    std::int64_t* at[4] = {&mask.batch, &mask.head, &mask.row, &mask.column};
    for (int d = 0; d < 4; ++d) *at[d] = sizes[d] == 1 ? 0 : strides[d];

    const MaskTileCounts counts = mask_tile_counts(mask, shape);
    const int style = static_cast<int>(draw(random, 0, 3));
    const auto place = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      return b * mask.batch + h * mask.head + i * mask.row + j * mask.column;
    };
    for (std::int64_t b = 0; b < sizes[0]; ++b)
      for (std::int64_t h = 0; h < sizes[1]; ++h)
        for (std::int64_t row = 0; row < sizes[2]; row += kMaskRows)
          for (std::int64_t key = 0; key < sizes[3]; key += kMaskKeys) {
            const int kind = style < 3 ? style : static_cast<int>(draw(random, 0, 2));
            // Now and then a single element differs.
            const bool odd = chance(random, 30);
            const std::int64_t i_end = std::min(row + kMaskRows, sizes[2]);
            const std::int64_t j_end = std::min(key + kMaskKeys, sizes[3]);
            const std::int64_t odd_i = draw(random, row, i_end - 1),
                               odd_j = draw(random, key, j_end - 1);
            for (std::int64_t i = row; i < i_end; ++i)
              for (std::int64_t j = key; j < j_end; ++j) {
                const bool differs = odd && i == odd_i && j == odd_j;
                const double x = draw_element(random, differs ? 2 : kind);
                if (mask.additive)
                  memory.set(mask.element, place(b, h, i, j), x);
                else
                  memory.as<unsigned char>()[place(b, h, i, j)] = x == -INFINITY       ? 0
                                                                  : chance(random, 90) ? 1
                                                                                       : 0x80;
              }
          }
    memory.send();
    Buffer to(static_cast<std::size_t>(counts.all()));
    to.send();
    Buffer visible = buffer_of(std::vector<std::uint64_t>{7});
    const MaskTilesArgs args{mask, shape, to.at<std::uint8_t>(), visible.at<std::uint64_t>()};
    const Status status = mask_tiles(0, args, stream());
    ASSERT_TRUE(status.ok()) << status.message();
    to.fetch();
    visible.fetch();

    const MaskTiles tiles = mask_tiles_in(mask, shape, to.as<std::uint8_t>());
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.q_heads; ++h)
        for (std::int64_t row = 0; row < shape.q_len; row += kMaskRows)
          for (std::int64_t key = 0; key < shape.kv_len; key += kMaskKeys) {
            bool hidden = false, plain = false, other = false;
            for (std::int64_t i = row; i < std::min(row + kMaskRows, shape.q_len); ++i)
              for (std::int64_t j = key; j < std::min(key + kMaskKeys, shape.kv_len); ++j) {
                if (!mask.additive) {
                  const bool set = memory.as<unsigned char>()[place(b, h, i, j)] != 0;
                  (set ? plain : hidden) = true;
                  continue;
                }
                const double x = memory.get(mask.element, place(b, h, i, j));
                (x == -INFINITY ? hidden : x == 0 ? plain : other) = true;
              }
            const int want = other || (hidden && plain) ? kTileMixed
                             : hidden                   ? kTileHidden
                                                        : kTileVisible;
            ASSERT_EQ(tile_class(tiles, b, h, row / kMaskRows, key / kMaskKeys), want)
                << "batch " << b << " head " << h << " row " << row << " key " << key;
          }
    const auto ones = std::count(to.as<unsigned char>(), to.as<unsigned char>() + counts.all(),
                                 static_cast<unsigned char>(kTileVisible));
    EXPECT_EQ(visible.as<std::uint64_t>()[0], 7 + static_cast<std::uint64_t>(ones));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Mask, ::testing::Range<std::uint64_t>(1, 11));

TEST(MaskTiles, no_mask_hides_nothing) { EXPECT_EQ(tile_class({}, 3, 2, 1, 0), kTileVisible); }

TEST(MaskTiles, a_mask_without_elements_has_no_tiles) {
  MaskTilesArgs args;
  args.shape = {2, 2, 2, 0, 7, 8, 8};
  const char none = 0;
  args.mask.data = &none;
  EXPECT_EQ(mask_tile_counts(args.mask, args.shape).all(), 0);
  EXPECT_TRUE(mask_tiles(0, args, stream()).ok());
}

}  // namespace
}  // namespace fovea::cuda
