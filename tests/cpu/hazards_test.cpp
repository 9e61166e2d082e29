// Values that the tiling of the f32 kernels could trip over, against the f64 reference.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cpu/dense_call.h"

namespace fovea::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void set_row(std::vector<float>& tensor, std::int64_t row, std::int64_t width, float value) {
  std::fill_n(tensor.begin() + row * width, width, value);
}
void scale_row(std::vector<float>& tensor, std::int64_t row, std::int64_t width, float factor) {
  for (std::int64_t d = 0; d < width; ++d)
    tensor[static_cast<std::size_t>(row * width + d)] *= factor;
}

void expect_near_reference(const DenseCall& call, double tolerance) {
  const DenseResults want = call.run("cpu.reference");
  for_each_prefix(
      [&](const std::string& prefix) { expect_near(call.run(prefix), want, tolerance); });
}

/// out and lse of the kernels that compute in bf16.
void expect_pairs_near_reference(DenseCall call) {
  call.dtype_policy = DTypePolicy::cast(DType::bf16);
  const DenseResults want = call.run("cpu.reference");
  for_each_pairs_prefix([&](const std::string& prefix) {
    const DenseResults got = call.run(prefix);
    EXPECT_LE(relative_error(got.out, want.out), 5e-3) << "out";
    EXPECT_LE(relative_error(got.lse, want.lse), 1e-5) << "lse";
  });
}

TEST(Hazards, scores_that_rise_from_tile_to_tile) {
  // The reference of the softmax has to move again and again, in some rows and not in others.
  DenseCall call(1, 150, 700, 24, 20);
  for (std::int64_t j = 0; j < call.kv_len; ++j)
    scale_row(call.k, j, call.dim, 1 + static_cast<float>(j) / 20);
  for (std::int64_t i = 0; i < call.q_len; i += 3) scale_row(call.q, i, call.dim, 0.01f);
  expect_near_reference(call, 2e-5);
  expect_pairs_near_reference(call);
}

TEST(Hazards, one_tile_outweighs_what_came_before) {
  // The weights are found to be too heavy once they are there, and the tile is done again.
  for (const std::int64_t first : {32, 96, 130, 290}) {
    DenseCall call(1, 130, 420, 24, 20);
    for (std::int64_t j = first; j < first + 40; ++j) scale_row(call.k, j, call.dim, 60);
    expect_near_reference(call, 2e-5);
    expect_pairs_near_reference(call);
  }
}

TEST(Hazards, scores_that_fall_from_tile_to_tile) {
  DenseCall call(1, 70, 700, 24, 20);
  for (std::int64_t j = 0; j < call.kv_len; ++j)
    scale_row(call.k, j, call.dim, 40 - static_cast<float>(j) / 20);
  expect_near_reference(call, 2e-5);
}

TEST(Hazards, one_key_outweighs_all_others) {
  for (const std::int64_t j : {0, 95, 96, 200, 299}) {
    DenseCall call(1, 66, 300, 16, 16);
    std::fill(call.q.begin(), call.q.end(), 1.0f);
    set_row(call.k, j, call.dim, 50.0f);
    expect_near_reference(call, 1e-5);
  }
}

TEST(Hazards, scores_at_the_end_of_f32) {
  // Beyond FLT_MAX / log2(e) in size: finite scores are raised to that bound, so the softmax of
  // such rows is uniform. What f32 can hold of lse no longer tells how many keys there are, so
  // backward cannot know it (docs/known-gaps.md).
  DenseCall call(1, 67, 200, 4, 8);
  std::fill(call.q.begin(), call.q.end(), -1e19f);
  std::fill(call.k.begin(), call.k.end(), 0.8e19f);
  call.scale = 1.0;
  const DenseResults want = call.run("cpu.reference");
  for_each_prefix([&](const std::string& prefix) {
    const DenseResults got = call.run(prefix);
    EXPECT_LE(relative_error(got.out, want.out), 1e-5);
    EXPECT_LE(relative_error(got.lse, want.lse), 1e-5);
  });
}

TEST(Hazards, hidden_rows_that_are_not_finite) {
  // Keys and values beyond the band, and queries that see nothing, reach no result.
  for (const float poison : {kNaN, kInfinity, -kInfinity}) {
    for (const Band band : {Band::causal(Anchor::top_left), Band::causal(Anchor::bottom_right),
                            Band::window(Anchor::top_left, 30, 11)}) {
      DenseCall call(2, 130, 170, 20, 12);
      call.band = band;
      const DenseResults clean = call.run("cpu.reference");
      DenseCall spoiled = call;
      for (std::int64_t j = 0; j < call.kv_len; ++j) {
        bool seen = false;
        for (std::int64_t i = 0; i < call.q_len; ++i) {
          const std::int64_t at = i + (band.anchor == Anchor::bottom_right ? 40 : 0);
          seen = seen || (j <= at + band.right && (band.left == kUnbounded || j >= at - band.left));
        }
        if (seen) continue;
        for (std::int64_t h = 0; h < call.heads; ++h) {
          set_row(spoiled.k, h * call.kv_len + j, call.dim, poison);
          set_row(spoiled.v, h * call.kv_len + j, call.v_dim, poison);
        }
      }
      for_each_prefix(
          [&](const std::string& prefix) { expect_near(spoiled.run(prefix), clean, 1e-5); });
    }
  }
}

TEST(Hazards, values_that_are_not_finite_reach_only_rows_that_see_them) {
  // Within the blocks on the diagonal a weight of 0 meets them.
  for (const float poison : {kNaN, kInfinity}) {
    DenseCall call(1, 200, 200, 8, 8);
    call.band = Band::causal(Anchor::top_left);
    set_row(call.v, 133, call.v_dim, poison);
    set_row(call.k, 171, call.dim, poison);
    set_row(call.q, 150, call.dim, poison);
    set_row(call.dout, 30, call.v_dim, poison);
    const auto judge = [&](const std::string& prefix) {
      const DenseResults want = call.run("cpu.reference"), got = call.run(prefix);
      const auto same_kind = [](const std::vector<float>& a, const std::vector<float>& b,
                                std::int64_t width, const char* name) {
        for (std::size_t n = 0; n < a.size(); ++n)
          ASSERT_EQ(std::isfinite(a[n]), std::isfinite(b[n]))
              << name << " row " << n / static_cast<std::size_t>(width);
      };
      same_kind(got.out, want.out, call.v_dim, "out");
      same_kind(got.dq, want.dq, call.dim, "dq");
      same_kind(got.dk, want.dk, call.dim, "dk");
      same_kind(got.dv, want.dv, call.v_dim, "dv");
    };
    for_each_prefix(judge);
    call.dtype_policy = DTypePolicy::cast(DType::bf16);
    for_each_pairs_prefix(judge);
  }
}

TEST(Hazards, more_queries_than_keys_at_the_bottom_right) {
  DenseCall call(2, 300, 40, 72, 33);
  call.band = Band::causal(Anchor::bottom_right);
  expect_near_reference(call, 1e-5);
}

TEST(Hazards, limits_of_windows_saturate) {
  constexpr std::int64_t kHuge = kUnbounded - 1;
  for (const Band band :
       {Band::window(Anchor::bottom_right, kHuge, 0), Band::window(Anchor::top_left, kHuge, kHuge),
        Band::window(Anchor::bottom_right, 0, kHuge)}) {
    DenseCall call(1, 100, 70, 8, 8);
    call.band = band;
    expect_near_reference(call, 1e-5);
  }
}

TEST(Hazards, scale_zero_and_negative) {
  for (const double scale : {0.0, -0.7}) {
    DenseCall call(1, 130, 300, 40, 24);
    call.scale = scale;
    expect_near_reference(call, 1e-5);
  }
}

TEST(Hazards, head_dims_around_the_widths_of_tiles) {
  for (const std::int64_t dim : {1, 3, 15, 16, 17, 31, 63, 65, 127, 129, 255, 257, 512}) {
    SCOPED_TRACE(dim);
    DenseCall call(1, 101, 103, dim, 513 - dim);
    call.band = Band::causal(Anchor::bottom_right);
    expect_near_reference(call, 1e-5);
  }
}

}  // namespace
}  // namespace fovea::test
