// cuda stage: rows of q, k, v, out or dout as the products want them.
//
//   x [batch, heads, rows, width] in any element type, at any strides, in segments, pages or packed
//   y = x w / sqrt(mean(x^2) + eps),  a' = a cos - b sin,  b' = a sin + b cos     (f32)
//   to [batch, heads, rows, padded] or [heads, total, padded] = y rounded to the compute type
//
// A block owns 16 rows of up to 8 heads, which so read a row of cos and sin from L1. 4 to 32 lanes
// share a row, two rows at a time without a prologue; a row is read once from memory, in pieces of
// 16 bytes where they are aligned. The other half of a pair (style half) is read again, from L1.
//
// Budget: no shared memory; 64 registers, 80 with a prologue, 128 above a width of 256. Moves each
// row once in, once out; tables once per 8 heads.
#include "cuda/row_lanes.h"
#include "cuda/row_tiles.h"
#include "cuda/stage.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = 256;

/// One row on its way.
template <int kPieces>
struct StagedRow {
  std::int64_t to = -1;  ///< row of the result; -1: none
  bool reads = false;    ///< else zeros
  int segment = 0;
  RowReader reader;
  Row<kPieces> x;
};

template <int kPieces>
FOVEA_DEVICE void read(const StageArgs& args, const RowTile& tile, const RowLanes& lanes, int item,
                       StagedRow<kPieces>& to) {
  const RowSpace& space = args.space;
  const std::int64_t row = tile.row(item);
  const std::int64_t capacity = space.packed ? space.capacity(tile.sequence) : space.rows();
  if (item < tile.items() && row < capacity) {
    const plain::Place place = tile.place(space, item);
    to.to = space.place(place, row);
    to.reads = row < space.length(tile.sequence);
    if (to.reads) {
      const plain::Run<const char*> run = plain::source_run(args.from, place, row, 1);
      to.reader = reader_of(run, static_cast<int>(args.from.width));
      to.segment = run.segment;
    }
  }
  read_row(to.reader, lanes, to.reads, to.x);
}

template <int kPieces>
FOVEA_DEVICE void store(const StageArgs& args, const RowLanes& lanes,
                        const StagedRow<kPieces>& row) {
  const int padded = static_cast<int>(args.padded);
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    if (row.to >= 0 && column < padded)
      store_piece(args.to, args.from.compute, 1, row.to * padded + column, kPiece, row.x.at[p]);
  }
}

// All lanes of the warp take part.
template <int kPieces>
FOVEA_DEVICE void apply_prologue(const plain::Prologue& prologue, const RowLanes& lanes, int width,
                                 std::int64_t b, std::int64_t position, StagedRow<kPieces>& row) {
  if (prologue.norm) {
    row.reader.factor = inverse_rms(row.x, lanes, width, prologue.eps);
    row.reader.weights = prologue.weights[row.segment];
    FOVEA_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (row.reads && lanes.column(p) < width) row.reader.multiply(lanes.column(p), row.x.at[p]);
  }
  if (!prologue.rotate || !row.reads) return;
  const AngleRows angles = angle_rows(prologue, b, position);
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p)
    rotate_piece(prologue, angles, row.reader, lanes.column(p), 1, row.x.at[p]);
}

template <int kPieces, bool kPrologue>
FOVEA_DEVICE void stage_rows(const StageArgs& args) {
  constexpr int kAbreast = kPrologue ? 1 : 2;
  const RowLanes lanes = row_lanes(static_cast<int>(args.padded));
  const std::int64_t tasks = row_tile_tasks(args.space);
  for (std::int64_t task = block_index(); task < tasks; task += grid_blocks()) {
    const RowTile tile = row_tile(args.space, task);
    for (int first = 0; first < tile.items(); first += kAbreast * lanes.groups) {
      const int item = first + lanes.group;
      StagedRow<kPieces> rows[kAbreast];
      FOVEA_UNROLL
      for (int n = 0; n < kAbreast; ++n) read(args, tile, lanes, item + n * lanes.groups, rows[n]);
      if constexpr (kPrologue)
        apply_prologue(args.from.prologue, lanes, static_cast<int>(args.from.width),
                       tile.sequence.batch, tile.row(item), rows[0]);
      FOVEA_UNROLL
      for (int n = 0; n < kAbreast; ++n) store(args, lanes, rows[n]);
    }
  }
}

template <int kPieces, bool kPrologue>
Entry make(const char* name) {
  constexpr int kBlocks = kPieces == 2 ? 2 : kPrologue ? 3 : 4;
  return entry_of<StageArgs, kThreads, kBlocks, stage_rows<kPieces, kPrologue>>(name);
}
const Entry narrow = make<1, false>("stage"), wide = make<2, false>("stage wide");
const Entry narrow_prologue = make<1, true>("stage prologue");
const Entry wide_prologue = make<2, true>("stage prologue wide");

}  // namespace

const Entry* stage_entry(std::int64_t padded, bool prologue) {
  if (prologue) return padded <= 256 ? &narrow_prologue : &wide_prologue;
  return padded <= 256 ? &narrow : &wide;
}

}  // namespace fovea::cuda::FOVEA_WORLD
