#include "lm/gemm.h"

#include <algorithm>

#include "lm/parallel.h"

namespace fovea::lm {
namespace {

// A block of 256 x 256 packs 512 elements for every 65,536 multiply-adds: below a tenth of the
// time.
constexpr std::int64_t kLargestBlock = 256;
// A smaller one no longer pays for its packing ...
constexpr std::int64_t kSmallestBlock = 96;
// ... but is taken rather than leave threads idle.
constexpr std::int64_t kWantedTasks = 8;
// Waking a thread costs about as much as this many operations.
constexpr std::int64_t kSerialWork = 1 << 20;

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

// The block size that cuts `size` into equal blocks of at most `limit`, in whole registers of 16.
std::int64_t even_block(std::int64_t size, std::int64_t limit) {
  const std::int64_t count = blocks_of(size, limit);
  return (blocks_of(size, count) + 15) / 16 * 16;
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return;
  std::int64_t rows = args.m;
  std::int64_t columns = args.n;
  if (args.m * args.n * std::max<std::int64_t>(args.k, 1) > kSerialWork) {
    rows = even_block(args.m, kLargestBlock);
    columns = even_block(args.n, kLargestBlock);
    while (blocks_of(args.m, rows) * blocks_of(args.n, columns) < kWantedTasks &&
           std::max(rows, columns) > kSmallestBlock) {
      std::int64_t& larger = rows > columns ? rows : columns;
      larger = even_block(larger, (larger + 1) / 2);
    }
  }
  const std::int64_t across = blocks_of(args.n, columns);
  parallel_tasks(blocks_of(args.m, rows) * across, [&](std::int64_t task) {
    const std::int64_t i = task / across * rows;
    const std::int64_t j = task % across * columns;
    GemmArgs block = args;
    block.m = std::min(rows, args.m - i);
    block.n = std::min(columns, args.n - j);
    block.a += args.a_transposed ? i : i * args.lda;
    block.b += args.b_transposed ? j * args.ldb : j;
    block.c += i * args.ldc + j;
    if (args.bias != nullptr) {
      for (std::int64_t row = 0; row < block.m; ++row) {
        std::copy_n(args.bias + j, block.n, block.c + row * args.ldc);
      }
      block.accumulate = true;
    }
    serial_gemm(block);
  });
}

}  // namespace fovea::lm
