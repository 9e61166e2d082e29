// cuda.reference, rows: through the prologue into f64, and gradients back.
//
//   x [batch, heads, rows, width] in any element type, at any strides, in segments, pages or packed
//   load       y = x w / rms(x), x^ = R y rounded once to the compute type      (f64)
//   give back  dy = R^T dx^, dx = r (w dy) - x r^3 / D sum_d(x w dy),  r = 1 / rms(x)
//   weights    dw_d = sum over rows of r x_d dy_d
//
// The formulas stand in contract/reference_formulas.h. A lane owns a row, a warp 32 rows of one
// head. A warp sums one element of a weight's gradient over all rows, lanes in turn: the sum has
// one order.
//
// Budget: no shared memory. Chosen for clarity: lanes read rows of their own.
#include "cuda/device/thread.h"
#include "cuda/reference_elements.h"
#include "cuda/reference_rows.h"
#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

/// The row of one lane.
struct LaneRow {
  bool exists = false;  ///< the sequence has it
  bool counts = false;  ///< and it is within its length
  std::int64_t row = 0;
  plain::Place place;
};

/// All lanes of the warp take part.
FOVEA_DEVICE LaneRow lane_row(const RowSpace& space, std::int64_t task) {
  const std::int64_t tiles = ceil_div(space.rows(), 32), pair = task / tiles;
  const plain::Sequence s = sequence_by_warp(space.shape, space.lengths, pair / space.heads());
  LaneRow lane_row;
  lane_row.row = task % tiles * 32 + lane();
  lane_row.exists = lane_row.row < space.capacity(s);
  lane_row.counts = lane_row.row < space.length(s);
  lane_row.place = {s.batch, pair % space.heads(), space.first_row(s)};
  return lane_row;
}

template <class Work>
FOVEA_DEVICE void for_each_lane_row(const RowSpace& space, Work&& work) {
  for_each_warp_task(lane_row_tasks(space),
                     [&](std::int64_t task) { work(lane_row(space, task)); });
}

FOVEA_DEVICE reference::Rotation rotation_at(const plain::Prologue& p, std::int64_t b,
                                             std::int64_t row) {
  const AngleRows rows = angle_rows(p, b, row);
  return {{rows.cos, dtype_of(p.cos.element), 0, p.cos.column},
          {rows.sin, dtype_of(p.sin.element), 0, p.sin.column},
          p.rotary_dim,
          p.interleaved,
          p.duplicated};
}

FOVEA_DEVICE void load(const LoadRowsArgs& args) {
  const plain::Prologue& prologue = args.from.prologue;
  const std::int64_t width = args.from.width;
  for_each_lane_row(args.space, [&](const LaneRow& at) {
    if (!at.counts) return;
    const plain::Run<const char*> run = plain::source_run(args.from, at.place, at.row, 1);
    const reference::Elements from = elements_of(run);
    double* x = args.to + args.space.place(at.place, at.row) * width;
    for (std::int64_t d = 0; d < width; ++d) x[d] = from.at(d);
    if (prologue.norm)
      reference::normalise(width, args.eps, elements_of(prologue.weights[run.segment]), x);
    if (prologue.rotate) reference::rotate(rotation_at(prologue, at.place.batch, at.row), false, x);
    for (std::int64_t d = 0; d < width; ++d)
      x[d] = reference::round_to(dtype_of(args.from.compute), x[d]);
  });
}

// Back through the prologue, in place.
FOVEA_DEVICE void reverse(const GiveBackRowsArgs& args, const LaneRow& at, double* gradient) {
  const plain::Prologue& prologue = args.input.prologue;
  const std::int64_t width = args.input.width;
  if (prologue.rotate)
    reference::rotate(rotation_at(prologue, at.place.batch, at.row), true, gradient);
  if (!prologue.norm) return;
  const plain::Run<const char*> run = plain::source_run(args.input, at.place, at.row, 1);
  const reference::Elements input = elements_of(run);
  const std::int64_t first = args.space.place(at.place, at.row) * width;
  double* x = args.x + first;
  for (std::int64_t d = 0; d < width; ++d) x[d] = input.at(d);
  reference::reverse_normalise(x, width, args.eps, elements_of(prologue.weights[run.segment]),
                               gradient, args.terms == nullptr ? nullptr : args.terms + first);
}

FOVEA_DEVICE void give_back(const GiveBackRowsArgs& args) {
  const std::int64_t width = args.input.width;
  for_each_lane_row(args.space, [&](const LaneRow& at) {
    if (!at.exists) return;
    const std::int64_t first = args.space.place(at.place, at.row) * width;
    double* gradient = args.gradient + first;
    // A row that nobody sees may hold NaN, which 0 * x would carry into its gradient.
    bool some = false;
    for (std::int64_t d = 0; at.counts && d < width; ++d) some = some || !(gradient[d] == 0);
    if (some)
      reverse(args, at, gradient);
    else if (args.terms != nullptr)
      for (std::int64_t d = 0; d < width; ++d) args.terms[first + d] = 0;
    if (args.sink.segments.count == 0) return;
    const plain::Run<char*> to = plain::run_at(args.sink.segments, at.place, at.row, 1);
    if (to.data == nullptr) return;
    for (std::int64_t d = 0; d < width; ++d)
      store(to.data, to.element, d * to.column, at.counts ? gradient[d] : 0);
  });
}

FOVEA_DEVICE void sum_weights(const GiveBackRowsArgs& args) {
  const RowSpace& space = args.space;
  const std::int64_t width = args.input.width;
  for_each_warp_task(args.input.segments.count * width, [&](std::int64_t task) {
    const std::int64_t n = task / width, d = task % width;
    const WeightGradient& to = args.weights[n];
    if (to.data == nullptr) return;
    const plain::Segment<const char*>& segment = args.input.segments.at[n];
    const bool last = n + 1 == args.input.segments.count;
    double sum = 0;
    for (std::int64_t b = 0; b < space.shape.batch; ++b) {
      const plain::Sequence s = sequence_by_warp(space.shape, space.lengths, b);
      const std::int64_t length = space.length(s);
      const std::int64_t end = last ? length : plain::lesser(length, segment.end);
      for (std::int64_t h = 0; h < space.heads(); ++h) {
        const plain::Place place{b, h, space.first_row(s)};
        for (std::int64_t row = segment.begin + lane(); row < end; row += 32)
          sum += args.terms[space.place(place, row) * width + d];
      }
    }
    sum = sum_warp(sum);
    if (lane() == 0) store(to.data, to.element, d * to.stride, sum);
  });
}

FOVEA_CUDA_ENTRY(load_rows, LoadRowsArgs, kReferenceThreads, 1, load)
FOVEA_CUDA_ENTRY(give_back_rows, GiveBackRowsArgs, kReferenceThreads, 1, give_back)
FOVEA_CUDA_ENTRY(weights, GiveBackRowsArgs, kReferenceThreads, 1, sum_weights)

}  // namespace

const Entry* load_rows_entry() { return &load_rows; }
const Entry* give_back_rows_entry() { return &give_back_rows; }
const Entry* sum_weights_entry() { return &weights; }

}  // namespace fovea::cuda::FOVEA_WORLD
