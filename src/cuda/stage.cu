// cuda stage: rows of q, k, v, out or dout as the products want them.
//
//   x [batch, heads, rows, width] in any element type, at any strides, in segments, pages or packed
//   y = x w / sqrt(mean(x^2) + eps),  a' = a cos - b sin,  b' = a sin + b cos     (f32)
//   to [batch, heads, rows, padded] or [heads, total, padded] = y rounded to the compute type
//
// A block owns 16 rows of up to 8 heads, which so read a row of cos and sin from L1. 4 to 32 lanes
// share a row, two rows at a time; a row is read once from memory, in pieces of 16 bytes where they
// are aligned. The other half of a pair (style half) is read again, from L1.
//
// Budget: no shared memory; 64 registers a thread, 1024 threads a multiprocessor. Moves each row
// once in, once out; tables once per 8 heads.
#include "cuda/stage.h"

#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = 256;
constexpr int kAbreast = 2;

/// One row on its way.
template <int kPieces>
struct StagedRow {
  std::int64_t to = -1;  ///< row of the result; -1: none
  bool reads = false;    ///< else zeros
  std::int64_t batch, row;
  RowReader reader;
  plain::Floats weights;
  Row<kPieces> x;
};

template <int kPieces>
FOVEA_DEVICE void read(const StageArgs& args, const RowTile& tile, const RowLanes& lanes, int item,
                       StagedRow<kPieces>& to) {
  const RowSpace& space = args.space;
  to.row = tile.row(item);
  const std::int64_t capacity = space.packed ? space.capacity(tile.sequence) : space.rows();
  if (item < tile.items() && to.row < capacity) {
    const plain::Place place = tile.place(space, item);
    to.to = space.place(place, to.row);
    to.batch = place.batch;
    to.reads = to.row < space.length(tile.sequence);
    if (to.reads) {
      const plain::Run<const char*> run = plain::source_run(args.from, place, to.row, 1);
      to.reader = reader_of(run, static_cast<int>(args.from.width));
      to.weights = args.from.prologue.weights[run.segment];
    }
  }
  read_row(to.reader, lanes, to.reads, to.x);
}

template <int kPieces>
FOVEA_DEVICE void finish(const StageArgs& args, const RowLanes& lanes, StagedRow<kPieces>& row) {
  const plain::Prologue& prologue = args.from.prologue;
  const int width = static_cast<int>(args.from.width);
  if (prologue.norm) {
    const float r = inverse_rms(row.x, lanes, width, prologue.eps);
    row.reader.factor = r;
    row.reader.weights = row.weights;
    FOVEA_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (row.reads && lanes.column(p) < width) row.reader.multiply(lanes.column(p), row.x.at[p]);
  }
  if (row.to < 0) return;
  AngleRows angles{};
  const bool rotates = prologue.rotate && row.reads;
  if (rotates) angles = angle_rows(prologue, row.batch, row.row);
  const int padded = static_cast<int>(args.padded);
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    if (column >= padded) continue;
    if (rotates) rotate_piece(prologue, angles, row.reader, column, 1, row.x.at[p]);
    store_piece(args.to, args.from.compute, 1, row.to * padded + column, kPiece, row.x.at[p]);
  }
}

template <int kPieces>
FOVEA_DEVICE void stage_rows(const StageArgs& args) {
  const RowLanes lanes = row_lanes(static_cast<int>(args.padded));
  const std::int64_t tasks = row_tile_tasks(args.space);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const RowTile tile = row_tile(args.space, task);
    for (int item = 0; item < tile.items(); item += kAbreast * lanes.groups) {
      StagedRow<kPieces> rows[kAbreast];
      FOVEA_UNROLL
      for (int n = 0; n < kAbreast; ++n)
        read(args, tile, lanes, item + n * lanes.groups + lanes.group, rows[n]);
      FOVEA_UNROLL
      for (int n = 0; n < kAbreast; ++n) finish(args, lanes, rows[n]);
    }
  }
}

const Entry narrow = entry_of<StageArgs, kThreads, 4, stage_rows<1>>("stage");
const Entry wide = entry_of<StageArgs, kThreads, 4, stage_rows<2>>("stage wide");

}  // namespace

const Entry* stage_entry(std::int64_t padded) { return padded <= 256 ? &narrow : &wide; }

}  // namespace fovea::cuda::FOVEA_WORLD
