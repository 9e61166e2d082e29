// cuda prepare: delta, by rows and by tiles, the sinks' gradient, and zeros.
//
//   out, dout [batch, q_heads, q_len, v_head_dim], lse, dlse, delta [batch, q_heads, q_len]; packed
//   delta_i = sum_d out_id dout_id - dlse_i                                              (f32)
//   dsink_h = -sum_{b, i} exp(sink_h - lse_i) delta_i                                    (f64)
//
// A block owns 64 rows of one head; 4 to 32 lanes share a row. The sum over rows has one order:
// each block leaves its share, and a second kernel adds those of a head, a warp to a head.
//
// Budget: 512 bytes of shared memory, 64 registers. Moves out and dout in once.
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

template <int kPieces>
FOVEA_DEVICE void read(const plain::Source& source, const plain::Place& place, std::int64_t row,
                       bool reads, const RowLanes& lanes, Row<kPieces>& to) {
  RowReader reader;
  if (reads)
    reader =
        reader_of(plain::run_at(source.segments, place, row, 1), static_cast<int>(source.width));
  read_row(reader, lanes, reads, to);
}

FOVEA_DEVICE void clear(const Zeros& zeros) {
  const auto count = static_cast<std::int64_t>(zeros.bytes / sizeof(Words4));
  for (std::int64_t n = block_index() * kThreads + thread_index(); n < count;
       n += grid_blocks() * kThreads)
    store_16(static_cast<Words4*>(zeros.data) + n, {});
}

/// Row `n` of a tile; live: the sequence has it, as `row`.
FOVEA_DEVICE void store_in_tile(const PrepareArgs& args, const plain::Sequence& s,
                                const plain::Place& place, float* tile, int n, bool live,
                                std::int64_t row, float delta, bool sink) {
  float lse = kInfinity, share = 1;
  if (live) {
    const plain::Band band = plain::band_of(args.band, s);
    const std::int64_t first = plain::Band::before(row, band.below);
    const std::int64_t behind = plain::lesser(plain::Band::behind(row, band.above), s.kv_len);
    const float saved = at(args.lse, place, row);
    if (saved != kNegativeInfinity) lse = saved * kLog2e;
    if (!sink && behind - (first > 0 ? first : 0) == 1) {
      share = 0;
      delta = args.dlse.data == nullptr ? 0 : -at(args.dlse, place, row);
    }
  }
  tile[n] = lse;
  tile[kPrepareRows + n] = live ? delta : 0;
  tile[2 * kPrepareRows + n] = share;
}

template <int kPieces>
FOVEA_DEVICE void prepare_rows(const PrepareArgs& args) {
  for (const Zeros& zeros : args.zeros) clear(zeros);
  const RowSpace& space = args.space;
  const RowLanes lanes = row_lanes(static_cast<int>(args.out.width));
  const std::int64_t tiles = prepare_tiles(space), tasks = prepare_tasks(space);
  const Shared<double> terms = shared_array<double>(0, kPrepareRows);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const std::int64_t pair = task / tiles;
    const plain::Sequence s = sequence_by_warp(space.shape, space.lengths, pair / space.heads());
    const plain::Place place{s.batch, pair % space.heads(), s.q_begin};
    const std::int64_t first = task % tiles * kPrepareRows;
    const float sink =
        args.sinks.data == nullptr
            ? kNegativeInfinity
            : load_element(args.sinks.data, args.sinks.element, place.head * args.sinks.stride);
    float* const tile =
        args.tiles.data != nullptr && task % tiles < RowTiles::of_rows(s.q_len)
            ? args.tiles.at(place, task % tiles)
            : nullptr;
    // Rows of two rounds are read before either is summed up, so that more is on its way.
    constexpr int kAbreast = kPieces == 1 ? 4 : 1;
    for (int n = lanes.group; n - lanes.group < kPrepareRows; n += kAbreast * lanes.groups) {
      Row<kPieces> out[kAbreast], dout[kAbreast];
      const auto is_there = [&](int k) {
        return n + k * lanes.groups < kPrepareRows && first + n + k * lanes.groups < s.q_len;
      };
      FOVEA_UNROLL
      for (int k = 0; k < kAbreast; ++k) {
        read(args.out, place, first + n + k * lanes.groups, is_there(k), lanes, out[k]);
        read(args.dout, place, first + n + k * lanes.groups, is_there(k), lanes, dout[k]);
      }
      FOVEA_UNROLL
      for (int k = 0; k < kAbreast; ++k) {
        const float sum = dot(out[k], dout[k], lanes);
        const int at_row = n + k * lanes.groups;
        if (lanes.lane != 0 || at_row >= kPrepareRows) continue;
        const std::int64_t row = first + at_row;
        double term = 0;
        float delta = 0;
        if (is_there(k)) {
          delta = args.dlse.data == nullptr ? sum : sum - at(args.dlse, place, row);
          args.delta[space.place(place, row)] = delta;
          if (args.dsinks != nullptr && sink != kNegativeInfinity)
            term =
                -::exp(static_cast<double>(sink) - static_cast<double>(at(args.lse, place, row))) *
                static_cast<double>(delta);
        }
        if (tile != nullptr)
          store_in_tile(args, s, place, tile, at_row, is_there(k), row, delta,
                        sink != kNegativeInfinity);
        terms[at_row] = term;
      }
    }
    if (args.dsinks == nullptr) continue;
    // add up the tile's share
    barrier();
    if (warp() == 0) {
      const double sum = sum_warp(terms[lane()] + terms[lane() + 32]);
      if (lane() == 0) args.shares[task] = sum;
    }
    barrier();
  }
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

const Entry narrow = entry_of<PrepareArgs, kThreads, 2, prepare_rows<1>>("prepare");
const Entry wide = entry_of<PrepareArgs, kThreads, 4, prepare_rows<2>>("prepare wide");
FOVEA_CUDA_ENTRY(dsinks, PrepareArgs, 32, 1, store_dsinks)

}  // namespace

const Entry* prepare_entry(std::int64_t v_head_dim) { return v_head_dim <= 256 ? &narrow : &wide; }
const Entry* store_dsinks_entry() { return &dsinks; }

}  // namespace fovea::cuda::FOVEA_WORLD
