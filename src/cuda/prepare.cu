// cuda prepare: delta, by rows and by tiles, the sinks' gradient, and zeros.
//
//   out, dout [batch, q_heads, q_len, v_head_dim], lse, dlse, delta [batch, q_heads, q_len]; packed
//   delta_i = sum_d out_id dout_id - dlse_i                                              (f32)
//   dsink_h = -sum_{b, i} exp(sink_h - lse_i) delta_i                                    (f64)
//
// A block owns 64 rows of one head; 4 to 32 lanes share a row. The sum over rows has one order:
// each block leaves its share, and a second kernel adds those of a head, a warp to a head.
//
// Budget: 768 bytes of shared memory, 64 registers. Moves out and dout in once.
#include "cuda/device/shared.h"
#include "cuda/prepare.h"
#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = 256;

FOVEA_DEVICE float at(const plain::Input& x, const plain::Place& place, std::int64_t row) {
  return x.data[place.batch * x.batch + place.head * x.head + (place.first_row + row) * x.row];
}

template <int kPieces>
FOVEA_DEVICE float dot(const Row<kPieces>& x, const Row<kPieces>& y, const RowLanes& lanes) {
  float sum = 0;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) sum = fma(x.at[p][n], y.at[p][n], sum);
  }
  return sum_lanes(sum, lanes.count);
}

/// Rows of a tile: one run where no segment ends in it.
struct TileRows {
  const plain::Source& source;
  const plain::Place& place;
  const std::int64_t first;
  const plain::Run<const char*> run;

  FOVEA_DEVICE TileRows(const plain::Source& from, const plain::Place& at, std::int64_t row)
      : source(from),
        place(at),
        first(row),
        run(plain::run_at(from.segments, at, row, kPrepareRows)) {}

  template <int kPieces>
  FOVEA_DEVICE void read(int n, bool reads, const RowLanes& lanes, Row<kPieces>& to) const {
    plain::Run<const char*> row = run;
    if (n < run.count)
      row.data += n * run.row * plain::size_of(run.element);
    else if (reads)
      row = plain::run_at(source.segments, place, first + n, 1);
    read_row(reader_of(row, static_cast<int>(source.width)), lanes, reads, to);
  }
};

/// Whether rows can be read 16 bytes at a time, all of them as one run.
FOVEA_DEVICE bool is_plain(const plain::Run<const char*>& run, int width, int rows) {
  return (run.element == plain::Element::bf16 || run.element == plain::Element::f16) &&
         run.column == 1 && run.row % 8 == 0 && width % kPiece == 0 && rows <= run.count &&
         aligned_16(run.data);
}
// Sums of plain rows: of several at once, so that more is on its way.
template <class T>
FOVEA_DEVICE void sum_plain(const TileRows& outs, const TileRows& douts, int rows,
                            const RowLanes& lanes, const Shared<float>& sums) {
  constexpr int kAbreast = 4;
  const int column = lanes.column(0);
  const bool reads = column < static_cast<int>(outs.source.width);
  const char *out = outs.run.data + 2 * column, *dout = douts.run.data + 2 * column;
  for (int n = lanes.group; n - lanes.group < rows; n += kAbreast * lanes.groups) {
    Words4 x[kAbreast] = {}, y[kAbreast] = {};
    FOVEA_UNROLL
    for (int k = 0; k < kAbreast; ++k) {
      const int row = n + k * lanes.groups;
      if (!reads || row >= rows) continue;
      x[k] = load_16(out + 2 * row * outs.run.row);
      y[k] = load_16(dout + 2 * row * douts.run.row);
    }
    FOVEA_UNROLL
    for (int k = 0; k < kAbreast; ++k) {
      float sum = 0;
      FOVEA_UNROLL
      for (int w = 0; w < 4; ++w) {
        sum = fma(low_half<T>(x[k].w[w]), low_half<T>(y[k].w[w]), sum);
        sum = fma(high_half<T>(x[k].w[w]), high_half<T>(y[k].w[w]), sum);
      }
      sum = sum_lanes(sum, lanes.count);
      const int row = n + k * lanes.groups;
      if (lanes.lane == 0 && row < rows) sums[row] = sum;
    }
  }
}
template <int kPieces>
FOVEA_DEVICE void sum_rows(const TileRows& outs, const TileRows& douts, int rows,
                           const RowLanes& lanes, const Shared<float>& sums) {
  const auto width = static_cast<int>(outs.source.width);
  if (kPieces == 1 && outs.run.element == douts.run.element && is_plain(outs.run, width, rows) &&
      is_plain(douts.run, width, rows)) {
    if (outs.run.element == plain::Element::bf16)
      return sum_plain<Bf16>(outs, douts, rows, lanes, sums);
    return sum_plain<F16>(outs, douts, rows, lanes, sums);
  }
  for (int n = lanes.group; n - lanes.group < rows; n += lanes.groups) {
    Row<kPieces> out, dout;
    outs.read(n, n < rows, lanes, out);
    douts.read(n, n < rows, lanes, dout);
    const float sum = dot(out, dout, lanes);
    if (lanes.lane == 0 && n < rows) sums[n] = sum;
  }
}

FOVEA_DEVICE void clear(const Zeros& zeros) {
  const auto count = static_cast<std::int64_t>(zeros.bytes / sizeof(Words4));
  for (std::int64_t n = block_index() * kThreads + thread_index(); n < count;
       n += grid_blocks() * kThreads)
    store_16(static_cast<Words4*>(zeros.data) + n, {});
}

/// What is known of a row before its sum.
struct SavedRow {
  bool live = false;  ///< the sequence has it
  std::int64_t row = 0;
  float lse = 0, dlse = 0;
};

FOVEA_DEVICE void store_in_tile(const PrepareArgs& args, const plain::Sequence& s, float* tile,
                                const SavedRow& saved, float delta, bool sink) {
  float lse = kInfinity, share = 1;
  if (saved.live) {
    const plain::Band band = plain::band_of(args.band, s);
    const std::int64_t first = plain::Band::before(saved.row, band.below);
    const std::int64_t behind = plain::lesser(plain::Band::behind(saved.row, band.above), s.kv_len);
    if (saved.lse != kNegativeInfinity) lse = saved.lse * kLog2e;
    if (!sink && behind - (first > 0 ? first : 0) == 1) {
      share = 0;
      delta = -saved.dlse;
    }
  }
  const int n = thread_index();
  tile[n] = lse;
  tile[kPrepareRows + n] = delta;
  tile[2 * kPrepareRows + n] = share;
}

template <int kPieces>
FOVEA_DEVICE void prepare_rows(const PrepareArgs& args) {
  const RowSpace& space = args.space;
  const RowLanes lanes = row_lanes(static_cast<int>(args.out.width));
  const std::int64_t tiles = prepare_tiles(space), tasks = prepare_tasks(space);
  const Shared<double> terms = shared_array<double>(0, kPrepareRows);
  const Shared<float> sums = shared_array<float>(kPrepareRows * sizeof(double), kPrepareRows);
  const int mine = thread_index();
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const std::int64_t pair = task / tiles, tile = task - pair * tiles;
    const plain::Sequence s = sequence_by_warp(space.shape, space.lengths, pair / space.heads());
    const plain::Place place{s.batch, pair % space.heads(), s.q_begin};
    const std::int64_t first = tile * kPrepareRows;
    const auto live =
        static_cast<int>(plain::clamp(s.q_len - first, 0, static_cast<std::int64_t>(kPrepareRows)));
    SavedRow saved;
    if (mine < live) {
      saved = {true, first + mine, at(args.lse, place, first + mine), 0};
      if (args.dlse.data != nullptr) saved.dlse = at(args.dlse, place, first + mine);
    }
    sum_rows<kPieces>({args.out, place, first}, {args.dout, place, first}, live, lanes, sums);
    barrier();
    if (mine < kPrepareRows) {
      const float sink =
          args.sinks.data == nullptr
              ? kNegativeInfinity
              : load_element(args.sinks.data, args.sinks.element, place.head * args.sinks.stride);
      const float delta = saved.live ? sums[mine] - saved.dlse : 0;
      double term = 0;
      if (saved.live) {
        args.delta[space.place(place, saved.row)] = delta;
        if (args.dsinks != nullptr && sink != kNegativeInfinity)
          term = -::exp(static_cast<double>(sink) - static_cast<double>(saved.lse)) *
                 static_cast<double>(delta);
      }
      terms[mine] = term;
      if (args.tiles.data != nullptr && tile < RowTiles::of_rows(s.q_len))
        store_in_tile(args, s, args.tiles.at(place, tile), saved, delta, sink != kNegativeInfinity);
    }
    barrier();
    if (args.dsinks == nullptr || warp() != 0) continue;
    // Add up the tile's share; the next tile's terms are behind a barrier.
    const double sum = sum_warp(terms[lane()] + terms[lane() + 32]);
    if (lane() == 0) args.shares[task] = sum;
  }
  for (const Zeros& zeros : args.zeros) clear(zeros);
}

FOVEA_DEVICE void store_dsinks(const PrepareArgs& args) {
  const std::int64_t heads = args.space.heads(), tiles = prepare_tiles(args.space);
  for (std::int64_t h = block_index(); h < heads; h += grid_blocks()) {
    double sum = 0;
    for (std::int64_t n = lane(); n < args.space.shape.batch * tiles; n += 32)
      sum += args.shares[(n / tiles * heads + h) * tiles + n % tiles];
    sum = sum_warp(sum);
    if (lane() != 0) continue;
    if (args.dsinks_element == plain::Element::f64)
      static_cast<double*>(args.dsinks)[h * args.dsinks_stride] = sum;
    else
      store_element(args.dsinks, args.dsinks_element, h * args.dsinks_stride,
                    static_cast<float>(sum));
  }
}

const Entry narrow = entry_of<PrepareArgs, kThreads, 4, prepare_rows<1>>("prepare");
const Entry wide = entry_of<PrepareArgs, kThreads, 4, prepare_rows<2>>("prepare wide");
FOVEA_CUDA_ENTRY(dsinks, PrepareArgs, 32, 1, store_dsinks)

}  // namespace

const Entry* prepare_entry(std::int64_t v_head_dim) { return v_head_dim <= 256 ? &narrow : &wide; }
const Entry* store_dsinks_entry() { return &dsinks; }

}  // namespace fovea::cuda::FOVEA_WORLD
