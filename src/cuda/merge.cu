// cuda merge: partial results over disjoint sets of keys become one.
//
//   lse = log( sum_n exp lse_n + [exp sink] ),  out = sum_n exp(lse_n - lse) out_n       (f64)
//   out_n, out [batch, heads, rows, width], lse_n, lse [batch, heads, rows], any strides
//
// merge: a warp owns a row, 256 columns at a time. merge_splits, where O_n, l_n and m_n of f32 come
// from one forward: 4 to 32 lanes hold a row, and as many groups of lanes as there are splits, up
// to a block, add up theirs, since few rows are split into many parts; then the first adds the
// groups.
//
// Budget: 2 KB of shared memory (merge), up to 8 KB or 16 KB (merge_splits). Moves each partial
// result in once, the result out once.
#include "cuda/device/shared.h"
#include "cuda/merge.h"
#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = kMergeThreads;
constexpr double kLowest = -__builtin_inf();

FOVEA_DEVICE double load_wide(const void* data, plain::Element element, std::int64_t at) {
  return element == plain::Element::f64 ? static_cast<const double*>(data)[at]
                                        : static_cast<double>(load_element(data, element, at));
}
FOVEA_DEVICE void store_wide(void* data, plain::Element element, std::int64_t at, double x) {
  if (element == plain::Element::f64)
    static_cast<double*>(data)[at] = x;
  else
    store_element(data, element, at, static_cast<float>(x));
}

/// The larger; NaN is kept.
FOVEA_DEVICE double larger(double a, double b) { return a != a || a > b ? a : b; }

FOVEA_DEVICE double sum_over(double x, int lanes) {
  for (int mask = lanes >> 1; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
  return x;
}

// The public merge.

/// One row, by a warp. weights [parts]: of this warp.
struct MergeRow {
  const MergeArgs& args;
  std::int64_t b, h, i;
  Shared<double> weights;

  FOVEA_DEVICE std::int64_t place(const MergeTensor& t) const {
    return b * t.strides[0] + h * t.strides[1] + i * t.strides[2];
  }
  FOVEA_DEVICE double lse_of(int part) const {
    const MergeTensor& lse = args.parts[part].lse;
    return load_wide(lse.data, lse.element, place(lse));
  }
  // Fills weights; returns lse.
  FOVEA_DEVICE double weigh() const {
    const bool has = lane() < args.count;
    const double own = has ? lse_of(lane()) : kLowest;
    const double sink = args.sinks.data == nullptr
                            ? kLowest
                            : load_wide(args.sinks.data, args.sinks.element, h * args.sinks.stride);
    double largest = own;
    for (int mask = 16; mask > 0; mask >>= 1) largest = larger(largest, shuffle_xor(largest, mask));
    largest = larger(largest, sink);
    const double sum = ::exp(sink - largest) + sum_over(has ? ::exp(own - largest) : 0, 32);
    const double lse = largest - largest == 0 ? largest + ::log(sum) : largest;
    warp_barrier();
    if (has) weights[lane()] = lse == kLowest ? 0 : ::exp(own - lse);
    warp_barrier();
    return lse;
  }
  FOVEA_DEVICE void add(int column, int count) const {
    double sums[kPiece] = {};
    for (int n = 0; n < args.count; ++n) {
      const double weight = weights[n];
      if (weight == 0) continue;  // an empty part may hold anything
      const MergeTensor& t = args.parts[n].out;
      const std::int64_t at = place(t);
      if (t.element == plain::Element::f64) {
        FOVEA_UNROLL
        for (int e = 0; e < kPiece; ++e)
          if (e < count)
            sums[e] += weight * load_wide(t.data, t.element, at + (column + e) * t.strides[3]);
        continue;
      }
      float x[kPiece];
      load_piece(static_cast<const char*>(t.data) + at * plain::size_of(t.element), t.element,
                 t.strides[3], column, count, x);
      FOVEA_UNROLL
      for (int e = 0; e < kPiece; ++e) sums[e] += weight * static_cast<double>(x[e]);
    }
    store(column, count, sums);
  }
  FOVEA_DEVICE void store(int column, int count, const double (&sums)[kPiece]) const {
    const MergeTensor& t = args.out;
    const std::int64_t at = place(t);
    if (t.element == plain::Element::f64) {
      FOVEA_UNROLL
      for (int e = 0; e < kPiece; ++e)
        if (e < count) store_wide(t.data, t.element, at + (column + e) * t.strides[3], sums[e]);
      return;
    }
    float x[kPiece];
    FOVEA_UNROLL
    for (int e = 0; e < kPiece; ++e) x[e] = static_cast<float>(sums[e]);
    store_piece(static_cast<char*>(t.data) + at * plain::size_of(t.element), t.element,
                t.strides[3], column, count, x);
  }
};

FOVEA_DEVICE void merge_parts(const MergeArgs& args) {
  const std::int64_t tiles = ceil_div(args.rows, kMergeRows);
  const std::int64_t tasks = args.batch * args.heads * tiles;
  const Shared<double> weights = shared_array<double>(0, kThreads / 32 * kMostMergeParts)
                                     .from(warp() * kMostMergeParts, kMostMergeParts);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const std::int64_t pair = task / tiles, first = task % tiles * kMergeRows;
    const std::int64_t end = plain::lesser(first + kMergeRows, args.rows);
    for (std::int64_t i = first + warp(); i < end; i += kThreads / 32) {
      const MergeRow row{args, pair / args.heads, pair % args.heads, i, weights};
      const double lse = row.weigh();
      if (lane() == 0 && args.lse.data != nullptr)
        store_wide(args.lse.data, args.lse.element, row.place(args.lse), lse);
      for (std::int64_t d = lane() * kPiece; d < args.width; d += 32 * kPiece)
        row.add(static_cast<int>(d), static_cast<int>(plain::lesser(args.width - d, kPiece)));
    }
  }
}

// The end of a forward that splits keys.

/// What a row's sums come to.
struct Total {
  float lse;
  float share;  ///< of O in out
};
/// weight: the sum of exp(s - top) over the keys; sink: a score without a value.
FOVEA_DEVICE Total sum_up(double top, double weight, float sink) {
  if (sink != kNegativeInfinity) {
    if (weight == 0 || sink == kInfinity) return {sink, 0};
    if (sink != sink) return {sink, sink};
    const double wide = static_cast<double>(sink), most = wide > top ? wide : top;
    const double shrink = ::exp(top - most);
    const double all = weight * shrink + ::exp(wide - most);
    return {static_cast<float>(most + ::log(all)), static_cast<float>(shrink / all)};
  }
  if (weight == 0) return {kNegativeInfinity, 0};
  const auto share = static_cast<float>(1 / weight);
  if (top == static_cast<double>(kInfinity)) return {kInfinity, share};
  return {static_cast<float>(top + ::log(weight)), share};
}

/// What all splits know of a row.
struct SplitRow {
  float base;  ///< the largest m, or 0
  Total total;
};
// All lanes of the warp take part.
FOVEA_DEVICE SplitRow weigh_splits(const MergeSplitsArgs& args, const RowLanes& lanes, bool exists,
                                   std::int64_t at, std::int64_t head) {
  const std::int64_t step = args.space.array_rows();
  const int splits = exists ? args.splits : 0;
  float top = kNegativeInfinity;
  for (int n = lanes.lane; n < splits; n += lanes.count) {
    const float m = args.maxima[at + n * step];
    if (m > top) top = m;
  }
  for (int mask = lanes.count >> 1; mask > 0; mask >>= 1) {
    const float other = shuffle_xor(top, mask);
    if (other > top) top = other;
  }
  const float base = top == kNegativeInfinity ? 0 : top;
  double weight = 0;
  for (int n = lanes.lane; n < splits; n += lanes.count) {
    const float l = args.weights[at + n * step];
    if (l != 0)
      weight += static_cast<double>(exp2((args.maxima[at + n * step] - base) * kLog2e)) *
                static_cast<double>(l);
  }
  weight = sum_over(weight, lanes.count);
  float sink = kNegativeInfinity;
  if (exists && args.sinks.data != nullptr)
    sink = load_element(args.sinks.data, args.sinks.element, head * args.sinks.stride);
  return {base, sum_up(static_cast<double>(top), weight, sink)};
}

template <int kPieces>
FOVEA_DEVICE void store_out(const MergeSplitsArgs& args, const RowLanes& lanes,
                            const plain::Place& place, std::int64_t row, const Total& total,
                            Row<kPieces>& o) {
  const plain::Output& lse = args.lse;
  if (lanes.lane == 0 && lse.data != nullptr)
    lse.data[place.batch * lse.batch + place.head * lse.head + (place.first_row + row) * lse.row] =
        total.lse;
  const plain::Run<char*> run = plain::run_at(args.out.segments, place, row, 1);
  if (run.data == nullptr) return;
  const int width = static_cast<int>(args.out.width);
  const float share = total.share * args.keep_scale;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) o.at[p][n] *= share;
    if (column < width)
      store_piece(run.data, run.element, run.column, column, width - column, o.at[p]);
  }
}

template <int kPieces>
FOVEA_DEVICE void merge_split_rows(const MergeSplitsArgs& args) {
  const RowSpace& space = args.space;
  const RowLanes lanes = row_lanes(static_cast<int>(args.padded));
  const SplitTiles tiles = split_tiles(args.padded, args.splits);
  const int member = lanes.group % tiles.groups, slot = lanes.group / tiles.groups;
  const std::int64_t row_tiles = ceil_div(space.rows(), tiles.rows);
  const std::int64_t tasks = space.shape.batch * space.heads() * row_tiles;
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const std::int64_t pair = task / row_tiles;
    const plain::Sequence s = sequence_by_warp(space.shape, space.lengths, pair / space.heads());
    const plain::Place place{s.batch, pair % space.heads(), s.q_begin};
    const std::int64_t row = task % row_tiles * tiles.rows + slot;
    const bool exists = row < s.q_len;
    const std::int64_t at = exists ? space.place(place, row) : 0;
    const SplitRow split = weigh_splits(args, lanes, exists, at, place.head);
    // add up this group's splits
    Row<kPieces> o{};
    const std::int64_t step = space.array_rows();
    for (int n = member; exists && n < args.splits; n += tiles.groups) {
      if (args.weights[at + n * step] == 0) continue;
      const float factor = exp2((args.maxima[at + n * step] - split.base) * kLog2e);
      FOVEA_UNROLL
      for (int p = 0; p < kPieces; ++p) {
        const int column = lanes.column(p);
        if (column >= args.padded) continue;
        float x[kPiece];
        load_piece(args.sums + (at + n * step) * args.padded, plain::Element::f32, 1, column,
                   kPiece, x);
        FOVEA_UNROLL
        for (int e = 0; e < kPiece; ++e) o.at[p][e] = fma(x[e], factor, o.at[p][e]);
      }
    }
    if (tiles.groups > 1) {
      // add the groups
      const int columns = lanes.count * kPieces * kPiece;
      const Shared<float> all = shared_array<float>(0, kThreads * kPieces * kPiece);
      barrier();
      FOVEA_UNROLL
      for (int p = 0; p < kPieces; ++p) {
        FOVEA_UNROLL
        for (int e = 0; e < kPiece; ++e)
          all[lanes.group * columns + lanes.column(p) + e] = o.at[p][e];
      }
      barrier();
      if (member != 0) continue;
      for (int g = 1; g < tiles.groups; ++g) {
        FOVEA_UNROLL
        for (int p = 0; p < kPieces; ++p) {
          FOVEA_UNROLL
          for (int e = 0; e < kPiece; ++e)
            o.at[p][e] += all[(lanes.group + g) * columns + lanes.column(p) + e];
        }
      }
    }
    if (exists) store_out(args, lanes, place, row, split.total, o);
  }
}

FOVEA_CUDA_ENTRY(parts, MergeArgs, kThreads, 2, merge_parts)
const Entry narrow = entry_of<MergeSplitsArgs, kThreads, 4, merge_split_rows<1>>("merge splits");
const Entry wide = entry_of<MergeSplitsArgs, kThreads, 2, merge_split_rows<2>>("merge splits wide");

}  // namespace

const Entry* merge_entry() { return &parts; }
const Entry* merge_splits_entry(std::int64_t padded) { return padded <= 256 ? &narrow : &wide; }

}  // namespace fovea::cuda::FOVEA_WORLD
