// SmallCase: a tiny call of the same class as a given problem, to compare a kernel with the oracle.
// The oracle is the CPU's: tensors lie in host memory, and a kernel of another device gets copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <fovea/status.h>

#include "contract/backend.h"
#include "contract/kernel.h"

namespace fovea {

/// Random data (fixed), odd lengths, the problem's dtypes, head dims and score features.
class SmallCase {
 public:
  static constexpr std::int64_t kKeys = 75;

  SmallCase(const Problem& like, std::int64_t queries);

  /// Whether the kernel serves it: some serve a few query rows only.
  bool served_by(const Kernel& kernel);

  /// Runs both kernels of one direction and gives the largest relative L2 error over their results
  /// (LSE: absolute). NaN counts as infinite.
  Result<double> compare(const Kernel& kernel, const Kernel& oracle);

 private:
  struct Results {
    MutableTensorView out, lse, dq, dk, dv;
  };

  template <class View = MutableTensorView>
  View tensor(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView random(DType dtype, std::initializer_list<std::int64_t> shape, double deviation);
  Results make_results();
  Result<Problem> forward_problem(const Results& results) const;
  Result<Problem> backward_problem(const Results& saved, const Results& results) const;
  Status run_forward(const Kernel& kernel, const Results& results);
  Status run_backward(const Kernel& kernel, const Results& saved, const Results& results);
  Status execute(const Kernel& kernel, const Problem& problem);
  Status execute_on(const DeviceQueue& queue, const Kernel& kernel, const Problem& problem);

  struct Block {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes;
  };

  const Problem& like_;
  std::vector<Block> storage_;
  std::uint64_t random_state_ = 0x2545F4914F6CDD1Du;
  AttentionParams params_;
  TensorView dout_, dlse_;
  std::int64_t queries_, q_heads_, kv_heads_;
};

}  // namespace fovea
