// cuda finish: gradients of rows of q^, k^ or v^ become those of q, k or v.
//
//   g = factor sums                                  [batch, heads, rows, padded] or packed, f32
//   a' = a cos + b sin, b' = b cos - a sin           RoPE transposed
//   dw_d += g_d x_d r,  dx_d = r (w_d g_d - x_d r^2 mean_e(w_e g_e x_e))        QK-norm, r = 1 /
//   rms sink = g in its own type, at any strides, in segments or packed
//
// Blocks own tiles and lanes pieces as in stage.cu. A lane's columns are the same in every row, so
// it adds up the weights' gradients in registers; where the segment changes, the block's groups are
// added in their order to the block's share [segments, width]. Which tiles a block walks over
// depends on the shape alone, and a second kernel adds the shares in f64: the sum has one order.
//
// Budget: 8 or 16 KB of shared memory where weights' gradients are wanted, else none; 64 registers,
// 80 with a prologue, 128 above a width of 256. Moves sums in once, inputs once under QK-norm,
// gradients out once.
#include "cuda/device/shared.h"
#include "cuda/finish.h"
#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = kFinishThreads;

/// One row on its way back.
template <int kPieces>
struct GradientRow {
  bool exists = false;  ///< is to be written
  plain::Place place;
  std::int64_t row;
  Row<kPieces> g;
};

// Load g, rotate it back. All lanes of the warp take part.
template <int kPieces, bool kPrologue>
FOVEA_DEVICE void load_gradient(const FinishArgs& args, const RowLanes& lanes, bool reads,
                                GradientRow<kPieces>& row) {
  RowReader sums;
  sums.width = static_cast<int>(args.input.width);
  sums.factor = args.factor;
  sums.woven = args.woven;
  if (reads) {
    const std::int64_t at = args.space.place(row.place, row.row);
    sums.data = args.sums + (args.woven ? woven_row(at, args.padded) : at * args.padded);
  }
  read_row(sums, lanes, reads, row.g);
  const plain::Prologue& prologue = args.input.prologue;
  if (!kPrologue || !prologue.rotate || !reads) return;
  const AngleRows angles = angle_rows(prologue, row.place.batch, row.row);
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p)
    rotate_piece(prologue, angles, sums, lanes.column(p), -1, row.g.at[p]);
}

template <int kPieces>
FOVEA_DEVICE bool some_gradient(const Row<kPieces>& g, const RowLanes& lanes) {
  bool some = false;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) some = some || !(g.at[p][n] == 0);
  }
  return any_lane(some, lanes.count);
}

// Back through QK-norm; adds to the weights' gradients dw. All lanes of the warp take part.
template <int kPieces, bool kWeights>
FOVEA_DEVICE void reverse_norm(const FinishArgs& args, const RowLanes& lanes, bool reads,
                               GradientRow<kPieces>& row, Row<kPieces>& dw) {
  const plain::Prologue& prologue = args.input.prologue;
  const int width = static_cast<int>(args.input.width);
  // A row that nobody sees may hold NaN, which 0 x would carry into its gradient.
  const bool some = some_gradient(row.g, lanes);
  RowReader input;
  plain::Floats weights;
  if (reads && some) {
    const plain::Run<const char*> run = plain::source_run(args.input, row.place, row.row, 1);
    input = reader_of(run, width);
    weights = prologue.weights[run.segment];
  }
  Row<kPieces> x;
  read_row(input, lanes, reads && some, x);
  const float r = inverse_rms(x, lanes, width, prologue.eps);
  float along = 0;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    float w[kPiece];
    if (weights.data != nullptr)
      load_piece(weights.data, weights.element, weights.stride, column, width - column, w);
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) {
      if (!some) break;
      if constexpr (kWeights) dw.at[p][n] = fma(r * x.at[p][n], row.g.at[p][n], dw.at[p][n]);
      if (weights.data != nullptr) row.g.at[p][n] *= w[n];
      along = fma(x.at[p][n], row.g.at[p][n], along);
    }
  }
  along = sum_lanes(along, lanes.count) * r * r / static_cast<float>(width);
  if (!some) return;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) row.g.at[p][n] = r * (row.g.at[p][n] - x.at[p][n] * along);
  }
}

template <int kPieces>
FOVEA_DEVICE void store(const FinishArgs& args, const RowLanes& lanes,
                        const GradientRow<kPieces>& row) {
  if (!row.exists || args.sink.segments.count == 0) return;
  const plain::Run<char*> run = plain::run_at(args.sink.segments, row.place, row.row, 1);
  if (run.data == nullptr) return;
  const int width = static_cast<int>(args.sink.width);
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    if (column < width)
      store_piece(run.data, run.element, run.column, column, width - column, row.g.at[p]);
  }
}

/// The segment that holds a row, and where it ends.
struct SegmentRows {
  int segment;
  std::int64_t end;
};
FOVEA_DEVICE SegmentRows segment_at(const plain::Source& source, std::int64_t row) {
  int n = 0;
  while (n + 1 < source.segments.count && row >= source.segments.at[n].end) ++n;
  return {n, n + 1 < source.segments.count ? source.segments.at[n].end : INT64_MAX};
}

/// The block's share of the weights' gradients.
template <int kPieces>
class WeightShare {
 public:
  FOVEA_DEVICE WeightShare(const FinishArgs& args, const RowLanes& lanes)
      : lanes_(lanes),
        width_(static_cast<int>(args.input.width)),
        share_(args.shares + block_index() * plain::kMostSegments * width_) {
    clear();
    for (int n = thread_index(); n < plain::kMostSegments * width_; n += kThreads) share_[n] = 0;
    barrier();
  }
  FOVEA_DEVICE void enter(int segment) {
    if (segment == segment_) return;
    flush();
    segment_ = segment;
  }
  // Add the groups to the share.
  FOVEA_DEVICE void flush() {
    if (segment_ < 0) return;
    const Shared<float> all = shared_array<float>(0, kThreads * kPieces * kPiece);
    const int columns = lanes_.count * kPieces * kPiece;
    barrier();
    FOVEA_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      FOVEA_UNROLL
      for (int n = 0; n < kPiece; ++n)
        all[lanes_.group * columns + lanes_.column(p) + n] = dw.at[p][n];
    }
    barrier();
    for (int d = thread_index(); d < width_; d += kThreads) {
      float sum = 0;
      for (int g = 0; g < lanes_.groups; ++g) sum += all[g * columns + d];
      share_[segment_ * width_ + d] += sum;
    }
    clear();
  }

  Row<kPieces> dw;

 private:
  FOVEA_DEVICE void clear() {
    FOVEA_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      FOVEA_UNROLL
      for (int n = 0; n < kPiece; ++n) dw.at[p][n] = 0;
    }
  }
  const RowLanes& lanes_;
  int width_, segment_ = -1;
  float* share_;
};

/// Rows [rows.begin, rows.end) of the tile.
template <int kPieces, bool kPrologue, bool kWeights>
FOVEA_DEVICE void finish_rows(const FinishArgs& args, const RowLanes& lanes, const RowTile& tile,
                              plain::Span rows, Row<kPieces>& dw) {
  constexpr int kAbreast = kPrologue ? 1 : 2;
  const RowSpace& space = args.space;
  for (int first = 0; first < tile.items(); first += kAbreast * lanes.groups) {
    GradientRow<kPieces> row[kAbreast];
    FOVEA_UNROLL
    for (int n = 0; n < kAbreast; ++n) {
      const int item = first + n * lanes.groups + lanes.group;
      row[n].row = tile.row(item);
      row[n].exists = item < tile.items() && row[n].row >= rows.begin && row[n].row < rows.end;
      row[n].place = tile.place(space, item);
      const bool reads = row[n].exists && row[n].row < space.length(tile.sequence);
      load_gradient<kPieces, kPrologue>(args, lanes, reads, row[n]);
      if constexpr (kPrologue)
        if (args.input.prologue.norm)
          reverse_norm<kPieces, kWeights>(args, lanes, reads, row[n], dw);
    }
    FOVEA_UNROLL
    for (int n = 0; n < kAbreast; ++n) store(args, lanes, row[n]);
  }
}

template <int kPieces, bool kPrologue>
FOVEA_DEVICE void finish_all(const FinishArgs& args) {
  const RowLanes lanes = row_lanes(static_cast<int>(args.padded));
  const std::int64_t tasks = row_tile_tasks(args.space);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const RowTile tile = row_tile(args.space, task);
    const plain::Span all{0, args.space.capacity(tile.sequence)};
    Row<kPieces> none{};
    finish_rows<kPieces, kPrologue, false>(args, lanes, tile, all, none);
  }
}

template <int kPieces>
FOVEA_DEVICE void finish_with_weights(const FinishArgs& args) {
  const RowLanes lanes = row_lanes(static_cast<int>(args.padded));
  const std::int64_t tasks = row_tile_tasks(args.space);
  WeightShare<kPieces> share(args, lanes);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const RowTile tile = row_tile(args.space, task);
    const std::int64_t end =
        plain::lesser(tile.first_row + kTileRows, args.space.capacity(tile.sequence));
    for (std::int64_t row = tile.first_row; row < end;) {
      const SegmentRows at = segment_at(args.input, row);
      const plain::Span rows{row, plain::lesser(end, at.end)};
      share.enter(at.segment);
      finish_rows<kPieces, true, true>(args, lanes, tile, rows, share.dw);
      row = rows.end;
    }
  }
  share.flush();
}

/// A block adds 32 columns of one segment, each warp an eighth of the shares.
FOVEA_DEVICE void store_weights(const FinishArgs& args) {
  constexpr int kWarps = kThreads / 32;
  const auto width = static_cast<int>(args.input.width);
  const int strips = (width + 31) / 32;
  const Shared<double> sums = shared_array<double>(0, kThreads);
  const std::int64_t shares = finish_shares(args.space);
  for (std::int64_t task = block_index(); task < plain::kMostSegments * strips;
       task += grid_blocks()) {
    const auto segment = static_cast<int>(task / strips);
    const int d = static_cast<int>(task % strips) * 32 + lane();
    const WeightGradient& to = args.weights[segment];
    double sum = 0;
    if (to.data != nullptr && d < width)
      for (std::int64_t n = warp(); n < shares; n += kWarps)
        sum += static_cast<double>(args.shares[(n * plain::kMostSegments + segment) * width + d]);
    barrier();
    sums[thread_index()] = sum;
    barrier();
    if (warp() != 0 || to.data == nullptr || d >= width) continue;
    for (int n = 1; n < kWarps; ++n) sum += sums[n * 32 + lane()];
    if (to.element == plain::Element::f64)
      static_cast<double*>(to.data)[d * to.stride] = sum;
    else
      store_element(to.data, to.element, d * to.stride, static_cast<float>(sum));
  }
}

template <int kPieces, bool kPrologue>
Entry make(const char* name) {
  constexpr int kBlocks = kPieces == 2 ? 2 : kPrologue ? 3 : 4;
  return entry_of<FinishArgs, kThreads, kBlocks, finish_all<kPieces, kPrologue>>(name);
}
const Entry narrow = make<1, false>("finish"), wide = make<2, false>("finish wide");
const Entry narrow_prologue = make<1, true>("finish prologue");
const Entry wide_prologue = make<2, true>("finish prologue wide");
const Entry narrow_weights =
    entry_of<FinishArgs, kThreads, 3, finish_with_weights<1>>("finish weights");
const Entry wide_weights =
    entry_of<FinishArgs, kThreads, 2, finish_with_weights<2>>("finish weights wide");
FOVEA_CUDA_ENTRY(sums, FinishArgs, kThreads, 1, store_weights)

}  // namespace

const Entry* finish_entry(std::int64_t padded, bool prologue, bool weights) {
  const bool fits = padded <= 256;
  if (weights) return fits ? &narrow_weights : &wide_weights;
  if (prologue) return fits ? &narrow_prologue : &wide_prologue;
  return fits ? &narrow : &wide;
}
const Entry* store_weights_entry() { return &sums; }

}  // namespace fovea::cuda::FOVEA_WORLD
