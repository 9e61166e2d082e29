// The phases of the unfused kernels (unfused_forward.cpp, unfused_backward.cpp): blocked matrix
// products and the row operations between them. Compiled for each instruction set.
//
// A task is a block of 192 rows of one head's result. A product packs its right operand in blocks
// of 256 x 256 and runs the register tiles of tile_matmul.h over it.
#include "cpu/tile_pack.h"
#include "cpu/unfused_args.h"

namespace fovea::cpu {
namespace {

/// Which terms of a row's sums count: all, keys that queries see, queries that see keys.
enum class Terms { all, keys, queries };

struct Product {
  std::int64_t rows, columns, depth;
  const float* a;  ///< A(r, k) at a[r * a_row + k * a_step]
  std::int64_t a_row, a_step;
  const float* b;  ///< B(k, n) at b[k * b_row + n * b_column]
  std::int64_t b_row, b_column;
  float* c;  ///< C(r, n) at c[r * c_row + n * c_column]
  std::int64_t c_row, c_column;
  float factor = 1;
  Terms terms = Terms::all;
  std::int64_t first_row = 0;  ///< position of row 0, for `terms`
};

class Multiplier {
 public:
  Multiplier(const UnfusedArgs& args, float* scratch)
      : band_{args.band.below, args.band.above}, packed_(scratch) {}

  /// C = factor A B, or C += factor A B.
  void run(const Product& x, bool add = false) const {
    if (!add) clear(x);
    for (std::int64_t n = 0; n < x.columns; n += kUnfusedColumns)
      for (std::int64_t k = 0; k < x.depth; k += kUnfusedDepth)
        block(x, {n, lesser(n + kUnfusedColumns, x.columns)},
              {k, lesser(k + kUnfusedDepth, x.depth)});
  }

 private:
  static void clear(const Product& x) {
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t n = 0; n < x.columns; ++n) x.c[r * x.c_row + n * x.c_column] = 0;
  }

  Span terms_of(const Product& x, std::int64_t row, std::int64_t rows) const {
    const Span positions = {x.first_row + row, x.first_row + row + rows};
    if (x.terms == Terms::keys) return band_.keys_of_some(positions);
    if (x.terms == Terms::queries) return band_.rows_of_some(positions);
    return {0, x.depth};
  }

  void block(const Product& x, Span columns, Span depth) const {
    const std::int64_t width = columns.end - columns.begin, terms = depth.end - depth.begin;
    const float* b = x.b + depth.begin * x.b_row + columns.begin * x.b_column;
    if (x.b_column == 1)
      pack_columns({b, x.b_row, 1}, terms, width, packed_, terms);
    else
      pack_across({b, x.b_column, x.b_row}, width, terms, packed_, round_up(width, kTileCols));
    // A weight of 0 does not silence a value that is not finite: then go row by row.
    const bool finite = x.terms == Terms::all || columns_are_finite(packed_, width, terms, terms);
    const std::int64_t step = finite ? kTileRows : 1;
    for (std::int64_t r = 0; r < x.rows; r += step) {
      const std::int64_t height = lesser(step, x.rows - r);
      const Span seen = meet(terms_of(x, r, height), depth);
      if (seen.empty()) continue;
      for (std::int64_t n = 0; n < width; n += kTileCols)
        tile_at(x, r, height, columns.begin + n, lesser(kTileCols, width - n), seen,
                packed_ + n * terms + (seen.begin - depth.begin) * kTileCols);
    }
  }

  static void tile_at(const Product& x, std::int64_t r, std::int64_t height, std::int64_t n,
                      std::int64_t width, Span seen, const float* packed) {
    alignas(64) float sums[kTileRows * kTileCols];
    const int vecs = static_cast<int>((width + kLanes - 1) / kLanes);
    float* c = x.c + r * x.c_row + n * x.c_column;
    TileArgs t{};
    t.a = x.a + r * x.a_row + seen.begin * x.a_step;
    t.a_row = x.a_row;
    t.a_step = x.a_step;
    t.b = packed;
    t.b_row = kTileCols;
    t.depth = seen.end - seen.begin;
    if (x.c_column == 1 && width == vecs * kLanes) {
      t.c = c;
      t.c_row = x.c_row;
      t.factor = x.factor;
      add_pieces<Into::kFactorAdd>(t, static_cast<int>(height), vecs);
      return;
    }
    // Pieces are added to C one by one, as above, so that sums do not depend on the width.
    for (float& s : sums) s = 0;
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t m = 0; m < width; ++m)
        sums[i * kTileCols + m] = c[i * x.c_row + m * x.c_column];
    t.c = sums;
    t.c_row = kTileCols;
    t.factor = x.factor;
    add_pieces<Into::kFactorAdd>(t, static_cast<int>(height), vecs);
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t m = 0; m < width; ++m)
        c[i * x.c_row + m * x.c_column] = sums[i * kTileCols + m];
  }

  template <Into kInto>
  static void add_pieces(TileArgs t, int height, int vecs) {
    const std::int64_t depth = t.depth;
    for (std::int64_t done = 0; done < depth; done += kPieceOfDot) {
      t.depth = lesser(kPieceOfDot, depth - done);
      tile_function<kInto>(height, vecs)(t);
      t.a += kPieceOfDot * t.a_step;
      t.b += kPieceOfDot * t.b_row;
    }
  }

  const Band band_;
  float* const packed_;
};

/// One task: rows of one head.
struct Block {
  std::int64_t batch, head, kv_head;
  Span rows;
};

Block query_block(const Shape& shape, std::int64_t task) {
  const std::int64_t blocks = (shape.q_len + kUnfusedRows - 1) / kUnfusedRows;
  const std::int64_t pair = task / blocks, begin = task % blocks * kUnfusedRows;
  const std::int64_t head = pair % shape.q_heads;
  return {pair / shape.q_heads,
          head,
          head / (shape.q_heads / shape.kv_heads),
          {begin, lesser(begin + kUnfusedRows, shape.q_len)}};
}

/// Row i of a matrix [batch, q_heads, q_len, kv_len].
float* matrix_row(const Shape& shape, float* matrix, std::int64_t b, std::int64_t h,
                  std::int64_t i) {
  return matrix + ((b * shape.q_heads + h) * shape.q_len + i) * shape.kv_len;
}

template <class Work>
void claim_query_blocks(void* opaque, Work&& work) {
  auto& args = *static_cast<UnfusedArgs*>(opaque);
  const FlushSubnormals flush;
  const std::int64_t blocks = (args.shape.q_len + kUnfusedRows - 1) / kUnfusedRows;
  const std::int64_t tasks = args.shape.batch * args.shape.q_heads * blocks;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= tasks) return;
    work(args, query_block(args.shape, n));
  }
}

/// X Y^T of a block of rows into a matrix.
void cross_products(const UnfusedArgs& args, const Input& x, const Input& y, std::int64_t width,
                    float* matrix, int worker, const Block& block) {
  const Rows rows = rows_of(x, block.batch, block.head).from(block.rows.begin);
  const Rows others = rows_of(y, block.batch, block.kv_head);
  Product p{};
  p.rows = block.rows.end - block.rows.begin;
  p.columns = args.shape.kv_len;
  p.depth = width;
  p.a = rows.data;
  p.a_row = rows.row;
  p.a_step = rows.column;
  p.b = others.data;
  p.b_row = others.column;
  p.b_column = others.row;
  p.c = matrix_row(args.shape, matrix, block.batch, block.head, block.rows.begin);
  p.c_row = args.shape.kv_len;
  p.c_column = 1;
  Multiplier(args, args.scratch + worker * kUnfusedScratch).run(p);
}

void scores(void* opaque, int worker) {
  claim_query_blocks(opaque, [worker](const UnfusedArgs& args, const Block& block) {
    cross_products(args, args.q, args.k, args.shape.head_dim, args.probabilities, worker, block);
  });
}
void value_scores(void* opaque, int worker) {
  claim_query_blocks(opaque, [worker](const UnfusedArgs& args, const Block& block) {
    cross_products(args, args.dout, args.v, args.shape.v_head_dim, args.gradients, worker, block);
  });
}

/// A block of rows of a matrix times Y, into a result.
void matrix_products(const UnfusedArgs& args, float* matrix, const Input& y, std::int64_t width,
                     const Output& to, float factor, int worker, const Block& block) {
  const Rows others = rows_of(y, block.batch, block.kv_head);
  Product p{};
  p.rows = block.rows.end - block.rows.begin;
  p.columns = width;
  p.depth = args.shape.kv_len;
  p.a = matrix_row(args.shape, matrix, block.batch, block.head, block.rows.begin);
  p.a_row = args.shape.kv_len;
  p.a_step = 1;
  p.b = others.data;
  p.b_row = others.row;
  p.b_column = others.column;
  p.c = to.data + block.batch * to.batch + block.head * to.head + block.rows.begin * to.row;
  p.c_row = to.row;
  p.c_column = to.column;
  p.factor = factor;
  p.terms = Terms::keys;
  p.first_row = block.rows.begin;
  Multiplier(args, args.scratch + worker * kUnfusedScratch).run(p);
}

void values(void* opaque, int worker) {
  claim_query_blocks(opaque, [worker](const UnfusedArgs& args, const Block& block) {
    matrix_products(args, args.probabilities, args.v, args.shape.v_head_dim, args.out, 1, worker,
                    block);
  });
}
void query_gradients(void* opaque, int worker) {
  claim_query_blocks(opaque, [worker](const UnfusedArgs& args, const Block& block) {
    matrix_products(args, args.gradients, args.k, args.shape.head_dim, args.dq,
                    static_cast<float>(args.scale), worker, block);
  });
}

constexpr float kLeastScore = static_cast<float>(-static_cast<double>(kFloatMax) / kLog2e);

/// score * scale; finite scores are raised to the least that the contract tells apart.
FOVEA_INLINE Vec scaled(Vec score, Vec scale) {
  const Vec s = score * scale;
  return select(equal(s, splat(-kInfinity)), s, max(splat(kLeastScore), s));
}
FOVEA_INLINE Vec exponential(Vec x) { return exp2(x * splat(static_cast<float>(kLog2e))); }

/// f(place, lanes) for the vectors of a span of a row.
template <class F>
FOVEA_INLINE void for_vectors(Span span, F&& f) {
  for (std::int64_t j = span.begin; j < span.end; j += kLanes)
    f(j, first_lanes(static_cast<int>(lesser(kLanes, span.end - j))));
}

void clear_hidden(float* row, Span seen, std::int64_t n) {
  for (std::int64_t j = 0; j < lesser(seen.begin, n); ++j) row[j] = 0;
  for (std::int64_t j = greater(seen.end, 0); j < n; ++j) row[j] = 0;
}

/// P of a row of scores, and its lse.
float softmax_row(float* s, Span seen, float factor) {
  const Vec scale = splat(factor);
  Vec top = splat(-kInfinity);
  for_vectors(seen, [&](std::int64_t j, Mask m) {
    const Vec x = scaled(load(s + j, m), scale);
    top = select(m, max(top, x), top);
    store(s + j, x, m);
  });
  float largest = -kInfinity;
  for (int i = 0; i < kLanes; ++i) largest = top[i] > largest ? top[i] : largest;
  const float base = largest == -kInfinity ? 0 : largest;
  Vec weights = zero();
  for_vectors(seen, [&](std::int64_t j, Mask m) {
    const Vec x = load(s + j, m);
    const Vec e = select(equal(x, splat(-kInfinity)), zero(), exponential(x - splat(base)));
    weights = weights + select(m, e, zero());
    store(s + j, e, m);
  });
  const float weight = sum(weights);
  if (weight == 0) return -kInfinity;
  for_vectors(seen,
              [&](std::int64_t j, Mask m) { store(s + j, load(s + j, m) / splat(weight), m); });
  if (base == kInfinity) return base;
  return static_cast<float>(static_cast<double>(base) + __builtin_log(static_cast<double>(weight)));
}

void softmax(void* opaque, int) {
  claim_query_blocks(opaque, [](const UnfusedArgs& args, const Block& block) {
    const Band band{args.band.below, args.band.above};
    for (std::int64_t i = block.rows.begin; i < block.rows.end; ++i) {
      float* s = matrix_row(args.shape, args.probabilities, block.batch, block.head, i);
      Span seen = meet(band.keys_of(i), {0, args.shape.kv_len});
      if (seen.empty()) seen = {0, 0};
      clear_hidden(s, seen, args.shape.kv_len);
      const float lse = softmax_row(s, seen, static_cast<float>(args.scale));
      if (args.lse.data != nullptr)
        args.lse
            .data[block.batch * args.lse.batch + block.head * args.lse.head + i * args.lse.row] =
            lse;
    }
  });
}

float delta_of(const UnfusedArgs& args, const Block& block, std::int64_t i) {
  const float* out = rows_of(args.saved_out, block.batch, block.head).at(i);
  const float* dout = rows_of(args.dout, block.batch, block.head).at(i);
  float delta = 0;
  dots_as_tile<1>(&out, args.saved_out.column, &dout, args.dout.column, args.shape.v_head_dim,
                  &delta);
  if (args.dlse.data != nullptr) delta -= *rows_of(args.dlse, block.batch, block.head).at(i);
  return delta;
}

void differentiate(void* opaque, int) {
  claim_query_blocks(opaque, [](const UnfusedArgs& args, const Block& block) {
    const Band band{args.band.below, args.band.above};
    const Vec scale = splat(static_cast<float>(args.scale));
    for (std::int64_t i = block.rows.begin; i < block.rows.end; ++i) {
      float* s = matrix_row(args.shape, args.probabilities, block.batch, block.head, i);
      float* g = matrix_row(args.shape, args.gradients, block.batch, block.head, i);
      const float lse = *rows_of(args.saved_lse, block.batch, block.head).at(i);
      Span seen = meet(band.keys_of(i), {0, args.shape.kv_len});
      if (seen.empty() || lse == -kInfinity) seen = {0, 0};
      clear_hidden(s, seen, args.shape.kv_len);
      clear_hidden(g, seen, args.shape.kv_len);
      const Vec delta = splat(delta_of(args, block, i));
      for_vectors(seen, [&](std::int64_t j, Mask m) {
        const Vec p = exponential(scaled(load(s + j, m), scale) - splat(lse));
        store(s + j, p, m);
        store(g + j, p * (load(g + j, m) - delta), m);
      });
    }
  });
}

/// Adds a block of columns of a matrix, transposed, times X of each head of the group.
void transposed_products(const UnfusedArgs& args, float* matrix, const Input& x, std::int64_t width,
                         const Output& to, float factor, int worker, const Block& block) {
  const Shape& shape = args.shape;
  const std::int64_t group = shape.q_heads / shape.kv_heads;
  for (std::int64_t h = block.kv_head * group; h < (block.kv_head + 1) * group; ++h) {
    const Rows others = rows_of(x, block.batch, h);
    Product p{};
    p.rows = block.rows.end - block.rows.begin;
    p.columns = width;
    p.depth = shape.q_len;
    p.a = matrix_row(shape, matrix, block.batch, h, 0) + block.rows.begin;
    p.a_row = 1;
    p.a_step = shape.kv_len;
    p.b = others.data;
    p.b_row = others.row;
    p.b_column = others.column;
    p.c = to.data + block.batch * to.batch + block.kv_head * to.head + block.rows.begin * to.row;
    p.c_row = to.row;
    p.c_column = to.column;
    p.factor = factor;
    p.terms = Terms::queries;
    p.first_row = block.rows.begin;
    Multiplier(args, args.scratch + worker * kUnfusedScratch).run(p, h > block.kv_head * group);
  }
}

void key_gradients(void* opaque, int worker) {
  auto& args = *static_cast<UnfusedArgs*>(opaque);
  const FlushSubnormals flush;
  const Shape& shape = args.shape;
  const std::int64_t blocks = (shape.kv_len + kUnfusedRows - 1) / kUnfusedRows;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= shape.batch * shape.kv_heads * blocks) return;
    const std::int64_t pair = n / blocks, begin = n % blocks * kUnfusedRows;
    const Block block = {pair / shape.kv_heads,
                         0,
                         pair % shape.kv_heads,
                         {begin, lesser(begin + kUnfusedRows, shape.kv_len)}};
    if (args.dv.data != nullptr)
      transposed_products(args, args.probabilities, args.dout, shape.v_head_dim, args.dv, 1, worker,
                          block);
    if (args.dk.data != nullptr)
      transposed_products(args, args.gradients, args.q, shape.head_dim, args.dk,
                          static_cast<float>(args.scale), worker, block);
  }
}

}  // namespace

extern const UnfusedWorkers FOVEA_ISA_NAME(unfused_workers);
const UnfusedWorkers FOVEA_ISA_NAME(unfused_workers) = {
    scores, softmax, values, value_scores, differentiate, query_gradients, key_gradients};

}  // namespace fovea::cpu
