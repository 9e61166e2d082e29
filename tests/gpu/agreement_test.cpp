// CPU and GPU agree on what is dropped, hidden and summed up. Scores are all 0 and V is the
// identity, so that out is the matrix of weights; with dout the identity, dv is its transpose.
#include <algorithm>

#include "gpu.h"

namespace fovea::gpu {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3;

struct Weights {
  std::vector<float> forward, backward, lse;  ///< [batch, heads, q_len, kv_len] and its transpose
};

/// A mask [batch, 1, q_len, kv_len] of which some rows are all hidden.
std::vector<std::uint8_t> random_mask(std::int64_t q_len, std::int64_t kv_len) {
  cases::RandomNumbers random(5);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kBatch * q_len * kv_len));
  for (std::size_t n = 0; n < mask.size(); ++n) {
    const auto row = static_cast<std::int64_t>(n) / kv_len % q_len;
    mask[n] = row % 7 != 3 && random.chance(0.6);
  }
  return mask;
}

std::vector<float> identities(std::int64_t rows, std::int64_t columns) {
  std::vector<float> values(static_cast<std::size_t>(kBatch * kHeads * rows * columns));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto at = static_cast<std::int64_t>(n) % (rows * columns);
    values[n] = at / columns == at % columns ? 1.0f : 0.0f;
  }
  return values;
}

struct Setting {
  DType dtype = DType::f32;
  std::int64_t q_len = 200, kv_len = 200;
  double dropout = 0;
  bool masked = false;
};

Weights weights_on(const Device& device, const Setting& s) {
  DenseCall call(device, s.dtype, kBatch, kHeads, s.q_len, s.kv_len, 200);
  const std::vector<float> zeros(call.q.elements());
  call.q.upload(zeros);
  call.k.upload(random_values(call.k.elements(), 3));
  call.v.upload(identities(s.kv_len, 200));
  call.dout.upload(identities(s.q_len, 200));
  DeviceBuffer mask;
  if (s.masked) {
    const std::vector<std::uint8_t> values = random_mask(s.q_len, s.kv_len);
    mask = DeviceBuffer::make(device, values.size()).value();
    throw_if_error(mask.upload(values.data(), values.size()));
    call.params.mask = {mask.data(), DType::boolean, {kBatch, 1, s.q_len, s.kv_len}, device};
  }
  call.params.dropout.probability = s.dropout;
  call.params.dropout.seed = 1234567890123;
  call.params.dropout.offset = 5'000'000'000;
  call.params.dropout.row_origin = 1000;
  call.params.dropout.column_origin = 77;
  throw_if_error(forward(call.forward_args()));
  throw_if_error(backward(call.backward_args()));
  throw_if_error(synchronize(device));
  return {call.out.download(), call.dv.download(), call.lse.download()};
}

void expect_same_zeros(const std::vector<float>& cpu, const std::vector<float>& gpu) {
  ASSERT_EQ(cpu.size(), gpu.size());
  std::size_t different = 0, zeros = 0;
  for (std::size_t n = 0; n < cpu.size(); ++n) {
    different += (cpu[n] == 0) != (gpu[n] == 0);
    zeros += gpu[n] == 0;
  }
  EXPECT_EQ(different, 0u) << "of " << cpu.size() << " weights";
  EXPECT_GT(zeros, cpu.size() / 20) << "the setting hides or drops something";
  EXPECT_LT(difference(cpu, gpu), 1e-2);
}

class Agreement : public OnGpu, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, Agreement, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& dtype) { return name_of(dtype.param); });

TEST_P(Agreement, dropped_weights) {
  Setting setting;
  setting.dtype = GetParam();
  setting.dropout = 0.3;
  const Weights cpu = weights_on(kCpu, setting), gpu = weights_on(kGpu, setting);
  expect_same_zeros(cpu.forward, gpu.forward);
  expect_same_zeros(cpu.backward, gpu.backward);
}

TEST_P(Agreement, dropped_weights_of_few_queries) {
  Setting setting;
  setting.dtype = GetParam();
  setting.q_len = 5;
  setting.dropout = 0.3;
  const Weights cpu = weights_on(kCpu, setting), gpu = weights_on(kGpu, setting);
  expect_same_zeros(cpu.forward, gpu.forward);
}

TEST_P(Agreement, hidden_weights_and_lse) {
  Setting setting;
  setting.dtype = GetParam();
  setting.masked = true;
  const Weights cpu = weights_on(kCpu, setting), gpu = weights_on(kGpu, setting);
  expect_same_zeros(cpu.forward, gpu.forward);
  expect_same_zeros(cpu.backward, gpu.backward);
  // The log of the number of keys that a row sees; none: -inf.
  int empty = 0;
  for (std::size_t row = 0; row < cpu.lse.size(); ++row) {
    const float wanted = cpu.lse[row], found = gpu.lse[row];
    empty += std::isinf(wanted);
    if (std::isinf(wanted))
      EXPECT_EQ(found, wanted) << "row " << row;
    else
      EXPECT_NEAR(found, wanted, 2e-6) << "row " << row;
  }
  EXPECT_GT(empty, 0);
}

}  // namespace
}  // namespace fovea::gpu
