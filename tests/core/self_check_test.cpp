// The self-check judges the kernel, whatever the size of the numbers in the call that came first.
#include "core/self_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/kernel_table.h"
#include "core/small_case.h"
#include "core/validate.h"

namespace fovea {
namespace {

struct Shape {
  std::int64_t head_dim;
  double scale;
};

/// A valid call of the wanted shape on memory that nothing reads.
class Example {
 public:
  explicit Example(const Shape& shape) : shape_(shape), memory_(1 << 14) {}

  Problem problem(Direction direction) {
    AttentionParams params;
    params.q = tensor(0), params.k = tensor(1), params.v = tensor(2);
    params.scale = shape_.scale;
    const MutableTensorView out = tensor(3);
    const MutableTensorView lse(memory_.data() + 7 * kPiece, DType::f32, {1, 2, 3});
    if (direction == Direction::forward) return validate(ForwardArgs{params, out, lse}).value();
    BackwardArgs args;
    args.params = params;
    args.out = TensorView(out), args.lse = lse, args.dout = TensorView(tensor(3));
    args.dq = tensor(4), args.dk = tensor(5), args.dv = tensor(6);
    return validate(args).value();
  }

 private:
  static constexpr std::int64_t kPiece = 2048;
  MutableTensorView tensor(std::int64_t piece) {
    return bhsd(memory_.data() + piece * kPiece, DType::f32, 1, 2, 3, shape_.head_dim);
  }

  Shape shape_;
  std::vector<float> memory_;
};

template <class Call>
void for_each_kernel(Call&& call) {
  for (const Kernel* kernel : kernel_table()) {
    // Specialists serve other calls than these.
    if (!kernel->explicit_only && !kernel->specialist && kernel->available(Device{}).serves())
      call(*kernel);
  }
}

TEST(SelfCheckOf, EveryKernelPassesWhateverTheScale) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for_each_kernel([&](const Kernel& kernel) {
      double positive = -1;
      for (const double scale : {10.0, 1e3, 1e30, 1e-6, 1e-30, 0.0, -30.0, -1e-6}) {
        Example example({head_dim, scale});
        const Problem problem = example.problem(kernel.direction);
        const Kernel* oracle =
            find_kernel(std::string("cpu.reference.") + name_of(kernel.direction));
        const double error = SmallCase(problem, 5).compare(kernel, *oracle).value();
        EXPECT_LE(error, 1e-5) << kernel.id << " head_dim " << head_dim << " scale " << scale;
        if (positive < 0) positive = error;
        if (scale >= 0) EXPECT_EQ(error, positive) << kernel.id << " scale " << scale;
      }
    });
  }
}

TEST(SelfCheckOf, OrderOfScalesDoesNotMatter) {
  for (const std::int64_t head_dim : {64, 128}) {
    std::vector<double> scales = {1e3, 0.125, -30, 1e-6, 10, 0};
    if (head_dim == 128) std::reverse(scales.begin(), scales.end());
    for_each_kernel([&](const Kernel& kernel) {
      for (const double scale : scales) {
        Example example({head_dim, scale});
        const Refusal refusal = check_instantiation(kernel, example.problem(kernel.direction));
        EXPECT_TRUE(refusal.serves()) << kernel.id << " scale " << scale << ": " << render(refusal);
      }
    });
  }
}

}  // namespace
}  // namespace fovea
