#include "cuda/merge.h"

#include <string>

#include "cuda/runtime.h"

namespace fovea::cuda {
namespace {

plain::Element element_of(DType dtype) {
  return dtype == DType::f64    ? plain::Element::f64
         : dtype == DType::f16  ? plain::Element::f16
         : dtype == DType::bf16 ? plain::Element::bf16
                                : plain::Element::f32;
}

template <class View>
MergeTensor tensor(const View& view) {
  MergeTensor t;
  if (!view.present()) return t;
  t.data = const_cast<void*>(static_cast<const void*>(view.data));
  t.element = element_of(view.dtype);
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d)
    t.strides[d] = view.strides[d];
  return t;
}

}  // namespace

Status merge(int device, const MergeProblem& problem, void* stream) {
  if (problem.parts.size() > kMostMergeParts)
    return {StatusCode::unsupported, "[merge] at most " + std::to_string(kMostMergeParts) +
                                         " partial results on a CUDA device; got " +
                                         std::to_string(problem.parts.size())};
  MergeArgs args;
  const auto& shape = problem.out.shape;
  args.batch = shape[0];
  args.heads = shape[1];
  args.rows = shape[2];
  args.width = shape[3];
  args.out = tensor(problem.out);
  args.lse = tensor(problem.lse);
  if (problem.sinks.present())
    args.sinks = {problem.sinks.data, element_of(problem.sinks.dtype), problem.sinks.strides[0]};
  args.count = static_cast<int>(problem.parts.size());
  for (std::size_t n = 0; n < problem.parts.size(); ++n)
    args.parts[n] = {tensor(problem.parts[n].out), tensor(problem.parts[n].lse)};
  const std::int64_t tasks = args.batch * args.heads * ceil_div(args.rows, kMergeRows);
  const LaunchShape grid{blocks_for(tasks), kMergeThreads / 32 * kMostMergeParts * sizeof(double)};
  return launch(device, *FOVEA_CUDA_PICK(merge_entry)(), grid, args, stream);
}

std::size_t merge_splits_bytes(const RowSpace& space, int splits, std::int64_t padded) {
  return static_cast<std::size_t>(splits * space.array_rows() * (padded + 2)) * sizeof(float);
}

Status merge_splits(int device, const MergeSplitsArgs& args, void* stream) {
  const SplitTiles tiles = split_tiles(args.padded, args.splits);
  const std::int64_t tasks =
      args.space.shape.batch * args.space.heads() * ceil_div(args.space.rows(), tiles.rows);
  const int pieces = args.padded <= 256 ? 1 : 2;
  const LaunchShape grid{
      blocks_for(tasks),
      tiles.groups == 1 ? 0 : static_cast<std::size_t>(kMergeThreads * pieces * 8) * sizeof(float)};
  return launch(device, *FOVEA_CUDA_PICK(merge_splits_entry)(args.padded), grid, args, stream);
}

}  // namespace fovea::cuda
