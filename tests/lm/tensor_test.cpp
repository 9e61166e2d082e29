#include "lm/tensor.h"

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

using test::error_of;

TEST(Tensor, shape_strides_and_elements) {
  const Tensor t = Tensor::zeros({2, 3, 4});
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.strides(), (Shape{12, 4, 1}));
  EXPECT_EQ(t.dim(-1), 4);
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 64, 0U);
  EXPECT_ERROR_HAS((void)t.dim(3), "shape [2, 3, 4] has no dimension 3");
}

TEST(Tensor, bad_shapes_are_refused_before_allocation) {
  EXPECT_ERROR_HAS((void)Tensor::empty({2, -1}), "got shape [2, -1]");
  EXPECT_ERROR_HAS((void)Tensor::empty({INT64_MAX, INT64_MAX}), "exceeds 64 bits");
  EXPECT_ERROR_HAS((void)Tensor::empty({INT64_MAX / 4}), "exceeds 64 bits");
  EXPECT_ERROR_HAS((void)Tensor::empty({2}, DType::none), "must not be none");
  EXPECT_ERROR_HAS((void)Tensor::from(std::vector<float>{1, 2}, {3}), "needs 3 values; got 2");
}

TEST(Tensor, impossible_allocation_is_out_of_memory) {
  try {
    (void)Tensor::empty({std::int64_t{1} << 50});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::out_of_memory);
  }
}

TEST(Tensor, empty_shapes_have_no_elements) {
  EXPECT_EQ(Tensor::empty({0, INT64_MAX}).numel(), 0);
  EXPECT_TRUE(Tensor::empty({3, 0}).contiguous());
  EXPECT_EQ(Tensor::empty({}).numel(), 1);
}

TEST(Tensor, views_share_the_storage) {
  const Tensor t = Tensor::zeros({2, 6});
  t.view({3, 4}).data()[5] = 7;
  EXPECT_EQ(t.data()[5], 7);
  const Tensor column = t.strided(5, {2}, {6});
  EXPECT_EQ(test::values_of(column), (std::vector<float>{7, 0}));
  EXPECT_FALSE(column.contiguous());
  EXPECT_ERROR_HAS((void)t.view({5}), "cannot view shape [2, 6]");
  EXPECT_ERROR_HAS((void)t.strided(0, {1 << 20}, {1}), "leaves a storage");
  EXPECT_ERROR_HAS((void)t.strided(-1, {1}, {1}), "leaves a storage");
}

TEST(Tensor, strided_copy_and_zero) {
  const Tensor t = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor transposed = t.strided(0, {3, 2}, {1, 3});
  EXPECT_EQ(test::values_of(transposed), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  const Tensor target = Tensor::zeros({3, 2});
  copy_into(target, transposed);
  copy_into(target, transposed, true);
  EXPECT_EQ(test::values_of(target), (std::vector<float>{2, 8, 4, 10, 6, 12}));
  t.strided(1, {2}, {3}).zero();
  EXPECT_EQ(test::values_of(t), (std::vector<float>{1, 0, 3, 4, 0, 6}));
  EXPECT_ERROR_HAS(copy_into(target, t), "cannot copy shape [2, 3] into [3, 2]");
}

TEST(Tensor, memory_is_accounted) {
  const std::int64_t before = tensor_memory().current_bytes;
  reset_peak_tensor_memory();
  {
    const Tensor a = Tensor::empty({1 << 18});
    const Tensor b = a;  // shared: counted once
    EXPECT_EQ(tensor_memory().current_bytes, before + (1 << 20));
    const Tensor c = Tensor::empty({1 << 18});
    EXPECT_EQ(tensor_memory().peak_bytes, before + (2 << 20));
  }
  EXPECT_EQ(tensor_memory().current_bytes, before);
  EXPECT_EQ(tensor_memory().peak_bytes, before + (2 << 20));
  EXPECT_GE(tensor_memory().cached_bytes, 2 << 20);
  reset_peak_tensor_memory();
  EXPECT_EQ(tensor_memory().peak_bytes, before);
  release_cached_tensor_memory();
  EXPECT_EQ(tensor_memory().cached_bytes, 0);
}

TEST(Tensor, undefined_and_wrong_dtype_are_errors) {
  EXPECT_ERROR_HAS((void)Tensor().raw(), "undefined");
  EXPECT_ERROR_HAS((void)Tensor::empty({1}, DType::bf16).data(), "f32 elements wanted; got bf16");
  EXPECT_ERROR_HAS((void)Tensor::empty({2}).item(), "one element wanted");
}

}  // namespace
}  // namespace fovea::lm
