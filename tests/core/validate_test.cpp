// From arguments to a Problem and from one set of pointers to the next.
#include "core/validate.h"

#include "../api/call.h"

namespace fovea::test {
namespace {

/// The view as four segments along its rows.
template <class Operands, class View>
Operands in_four(const View& view) {
  Operands operand;
  std::int64_t begin = 0;
  for (int n = 0; n < kMaxSegments; ++n) {
    View part = view;
    part.shape[2] = n < kMaxSegments - 1 ? 1 : view.shape[2] - begin;
    part.data =
        static_cast<std::conditional_t<std::is_same_v<View, TensorView>, const float*, float*>>(
            view.data) +
        begin * view.strides[2];
    operand.add(part);
    begin += part.shape[2];
  }
  return operand;
}

/// Backward with all the views that a call can have.
struct LargestCall {
  Call call;
  std::vector<float> mask = std::vector<float>(Call::kQLen * Call::kKvLen), dmask = mask;
  std::vector<float> sinks = std::vector<float>(Call::kQHeads), dsinks = sinks;

  BackwardArgs args() {
    BackwardArgs args = call.backward_args();
    for (Operand* operand : {&args.params.q, &args.params.k, &args.params.v, &args.out, &args.dout})
      *operand = in_four<Operand>(operand->segments[0].tensor);
    for (MutableOperand* operand : {&args.dq, &args.dk, &args.dv})
      *operand = in_four<MutableOperand>(operand->segments[0].tensor);
    args.params.mask = TensorView(mask.data(), DType::f32, {Call::kQLen, Call::kKvLen});
    args.dmask = MutableTensorView(dmask.data(), DType::f32, {Call::kQLen, Call::kKvLen});
    args.params.sinks = TensorView(sinks.data(), DType::f32, {Call::kQHeads});
    args.dsinks = MutableTensorView(dsinks.data(), DType::f32, {Call::kQHeads});
    return args;
  }
};

TEST(Rebind, FindsThePointersOfTheLargestCall) {
  LargestCall planned, other;
  Result<Problem> problem = validate(planned.args());
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const BackwardArgs args = other.args();
  const Status status = rebind(*problem, args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(problem->params.q.segments[0].tensor.data, other.call.q.data());
  EXPECT_EQ(problem->dv.segments[3].tensor.data, args.dv.segments[3].tensor.data);
  EXPECT_EQ(problem->dmask.data, other.dmask.data());
  EXPECT_EQ(problem->dmask4.data, other.dmask.data());
  EXPECT_EQ(problem->dsinks.data, other.dsinks.data());
}

TEST(Rebind, ChecksTheMemoryOfTheLargestCall) {
  LargestCall planned, other;
  Result<Problem> problem = validate(planned.args());
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  BackwardArgs args = other.args();
  args.dsinks.data = other.dmask.data();
  expect_error(rebind(*problem, args), StatusCode::invalid,
               "[backward] output dmask overlaps dsinks");
}

}  // namespace
}  // namespace fovea::test
