#include "cuda/backward_steps.h"

#include <algorithm>

#include "cuda/woven_sums.h"

namespace fovea::cuda {
namespace {

/// Of sums of rows: woven ones go by groups of rows.
std::int64_t elements_of(const RowSpace& space, std::int64_t width) {
  return ceil_div(space.array_rows(), kWovenRows) * kWovenRows * width;
}

/// Sums of a gradient in the workspace.
Sums take_sums(const RowSpace& space, std::int64_t width, Workspace& workspace) {
  const std::int64_t rows = space.packed ? space.total() : space.rows();
  Sums sums{workspace.take<float>(elements_of(space, width)), 0, rows * width, width, 1};
  if (!space.packed) sums.batch = space.heads() * sums.head;
  return sums;
}

}  // namespace

FinishArgs& BackwardSteps::add_finish(const MutableOperand& gradient, const plain::Source& input,
                                      const RowSpace& space, const Sums& sums,
                                      Workspace& workspace) {
  FinishArgs& to = finish[finishes++];
  to.input = input;
  to.space = space;
  to.sums = sums.data;
  to.padded = sums.row;
  to.sink = plain::sink_of_gradient(gradient, input);
  name_weights(gradient, to.weights);
  if (any_wanted(to.weights))
    to.shares = workspace.take<float>(
        static_cast<std::int64_t>(finish_bytes(space, input.width) / sizeof(float)));
  return to;
}

void BackwardSteps::plan(const Problem& p, const BackwardTile& tile, BackwardArgs& args,
                         Workspace& workspace) {
  static_cast<plain::Call&>(args) = plain::plain_call(p);
  const RowSpace queries = rows_by_queries(args), keys = rows_by_keys(args);
  args.lse = plain::rows_of_heads<const float*>(p, p.saved_lse);
  args.dout = plain::source_like_out(p, p.dout_segments);
  args.score_scale = static_cast<float>(p.scale);
  args.bent = is_bent(p);

  // delta, dsinks
  prepare.space = queries;
  prepare.out = plain::source_like_out(p, p.saved_out_segments);
  prepare.dout = args.dout;
  prepare.lse = args.lse;
  prepare.dlse = args.dlse = plain::rows_of_heads<const float*>(p, p.dlse);
  args.delta = take_sums(queries, 1, workspace);
  prepare.delta = args.delta.data;
  prepare.band = args.band;
  prepare.sinks = args.scores.sinks;
  if (p.dsinks.present()) {
    prepare.dsinks = p.dsinks.data;
    prepare.dsinks_element = plain::element_of(p.dsinks.dtype);
    prepare.dsinks_stride = p.dsinks.strides[0];
    prepare.shares = workspace.take<double>(
        static_cast<std::int64_t>(prepare_bytes(queries, true) / sizeof(double)));
  }

  // q, k, v, dout as the kernels read them
  const plain::Source q = args.q, k = args.k, v = args.v;
  staging.add(args.q, queries, workspace);
  staging.add(args.k, keys, workspace);
  staging.add(args.v, keys, workspace);
  staging.add(args.dout, queries, workspace);
  mask = MaskLook(args, workspace);
  args.mask_tiles = mask.tiles();

  // gradients
  args.key_tiles = ceil_div(args.shape.kv_len, tile.keys);
  args.row_tiles = ceil_div(p.q_len, tile.rows);
  args.column_tiles = ceil_div(std::max(p.head_dim, p.v_head_dim), tile.columns);
  args.tasks = p.batch * p.kv_heads * args.key_tiles * args.column_tiles;
  if (plain::wanted(p.dq)) {
    const std::int64_t width =
        tile.woven ? ceil_div(p.head_dim, kWovenColumns) * kWovenColumns : padded_width(p.head_dim);
    args.dq = take_sums(queries, width, workspace);
    prepare.zeros[0] = {args.dq.data,
                        static_cast<std::size_t>(elements_of(queries, width)) * sizeof(float)};
    FinishArgs& last = add_finish(p.dq, q, queries, args.dq, workspace);
    last.factor = args.score_scale;
    last.woven = tile.woven;
    if (p.deterministic) {
      const std::int64_t turns =
          ceil_div(p.batch * p.q_heads * args.row_tiles * args.column_tiles, 4) * 4;
      args.turns = workspace.take<std::uint32_t>(turns);
      prepare.zeros[1] = {args.turns, static_cast<std::size_t>(turns) * sizeof(std::uint32_t)};
    }
  }
  if (plain::wanted(p.dk)) {
    if (k.prologue.norm || k.prologue.rotate) {
      args.dk_sums = take_sums(keys, padded_width(p.head_dim), workspace);
      add_finish(p.dk, k, keys, args.dk_sums, workspace);
    } else {
      args.dk = plain::sink_of_gradient(p.dk, k);
    }
  }
  if (plain::wanted(p.dv)) args.dv = plain::sink_of_gradient(p.dv, v);
}

Status BackwardSteps::before(int device, const Launch& on) const {
  if (Status status = cuda::prepare(device, prepare, on.stream); !status.ok()) return status;
  if (Status status = staging.run(device, on.stream); !status.ok()) return status;
  return mask.run(device, on);
}

Status BackwardSteps::after(int device, const Launch& on) const {
  for (int n = 0; n < finishes; ++n)
    if (Status status = cuda::finish(device, finish[n], on.stream); !status.ok()) return status;
  return {};
}

}  // namespace fovea::cuda
