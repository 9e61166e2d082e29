// cuda mask_tiles: one byte for each tile of 64 x 64 elements of a mask.
//
//   mask [batch, q_heads, q_len, kv_len], bool or additive, any strides, 0 where it is broadcast
//   to [planes, tiles of rows, tiles of keys] = hidden, visible or mixed
//
// A warp owns a tile, which it reads once, by the widest pieces that are aligned in every line of
// the mask: 16 bytes, 4, or an element. A tile is as high as it is wide, so lines go along the
// dimension whose elements adjoin, whichever it is.
//
// Budget: 32 bytes of shared memory, for the count; 64 registers. Moves the distinct part of the
// mask in once.
#include "cuda/device/atomic.h"
#include "cuda/device/copy.h"
#include "cuda/device/shared.h"
#include "cuda/device/thread.h"
#include "cuda/mask_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = kMaskRows;
static_assert(kMaskRows == kMaskKeys);

/// Which kinds of elements a tile has.
constexpr std::uint32_t kHidden = 1, kPlain = 2, kOther = 4;

/// A tile as lines of adjoining elements; strides in bytes.
struct Lines {
  const char* data;
  std::int64_t line, element;
  int lines, elements;
};

/// Kinds of the elements of a word, all of them of kSize bytes. A bool has no other kind.
template <int kSize>
FOVEA_DEVICE std::uint32_t kinds_of_word(std::uint32_t word, std::uint32_t hidden) {
  if constexpr (kSize == 1) {
    // A zero byte borrows from the one above it.
    const bool some_zero = ((word - 0x01010101u) & ~word & 0x80808080u) != 0;
    return (some_zero ? kHidden : 0) | (word != 0 ? kPlain : 0);
  } else if constexpr (kSize == 2) {
    const std::uint32_t low = word & 0xFFFFu, high = word >> 16;
    const auto kind = [hidden](std::uint32_t x) {
      return x == hidden ? kHidden : (x & 0x7FFFu) == 0 ? kPlain : kOther;
    };
    return kind(low) | kind(high);
  } else {
    return word == hidden ? kHidden : (word & 0x7FFFFFFFu) == 0 ? kPlain : kOther;
  }
}
FOVEA_DEVICE std::uint32_t kind_of_double(std::uint32_t low, std::uint32_t high) {
  if (low == 0 && high == 0xFFF00000u) return kHidden;
  return low == 0 && (high & 0x7FFFFFFFu) == 0 ? kPlain : kOther;
}

template <int kSize>
FOVEA_DEVICE std::uint32_t kind_of_element(const char* at, std::uint32_t hidden) {
  if constexpr (kSize == 1) {
    return *at == 0 ? kHidden : kPlain;
  } else if constexpr (kSize == 2) {
    return kinds_of_word<4>(*reinterpret_cast<const std::uint16_t*>(at) << 16, hidden << 16);
  } else if constexpr (kSize == 4) {
    return kinds_of_word<4>(*reinterpret_cast<const std::uint32_t*>(at), hidden);
  } else {
    const std::uint64_t bits = *reinterpret_cast<const std::uint64_t*>(at);
    return kind_of_double(static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32));
  }
}

/// Kinds of a piece of kBytes, which is aligned.
template <int kSize, int kBytes>
FOVEA_DEVICE std::uint32_t kinds_of_piece(const char* at, std::uint32_t hidden) {
  if constexpr (kBytes == kSize) {
    return kind_of_element<kSize>(at, hidden);
  } else if constexpr (kBytes == 4) {
    return kinds_of_word<kSize>(*reinterpret_cast<const std::uint32_t*>(at), hidden);
  } else {
    const Words4 words = load_16(at);
    if constexpr (kSize == 8)
      return kind_of_double(words.w[0], words.w[1]) | kind_of_double(words.w[2], words.w[3]);
    else
      return kinds_of_word<kSize>(words.w[0], hidden) | kinds_of_word<kSize>(words.w[1], hidden) |
             kinds_of_word<kSize>(words.w[2], hidden) | kinds_of_word<kSize>(words.w[3], hidden);
  }
}

/// What this lane sees of the tile.
template <int kSize, int kBytes>
FOVEA_DEVICE std::uint32_t kinds_of_tile(const Lines& tile, std::uint32_t hidden) {
  constexpr int kElements = kBytes / kSize, kPiecesOfLine = kTile / kElements;
  constexpr int kAbreast = 8;
  std::uint32_t kinds = 0;
  for (int first = 0; first < tile.lines * kPiecesOfLine; first += 32 * kAbreast) {
    FOVEA_UNROLL
    for (int n = 0; n < kAbreast; ++n) {
      const int piece = first + n * 32 + lane();
      const int line = piece / kPiecesOfLine, element = piece % kPiecesOfLine * kElements;
      if (line >= tile.lines || element >= tile.elements) continue;
      const char* at = tile.data + line * tile.line + element * tile.element;
      if (element + kElements <= tile.elements) {
        kinds |= kinds_of_piece<kSize, kBytes>(at, hidden);
      } else {
        for (int e = 0; e < tile.elements - element; ++e)
          kinds |= kind_of_element<kSize>(at + e * kSize, hidden);
      }
    }
  }
  return kinds;
}

template <int kSize>
FOVEA_DEVICE std::uint32_t kinds_by_widest(const Lines& tile, std::uint32_t hidden) {
  const auto places = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tile.data)) |
                      static_cast<std::uint64_t>(tile.line);
  if (tile.element == kSize) {
    if ((places & 15) == 0) return kinds_of_tile<kSize, 16>(tile, hidden);
    if constexpr (kSize < 4)
      if ((places & 3) == 0) return kinds_of_tile<kSize, 4>(tile, hidden);
  }
  return kinds_of_tile<kSize, kSize>(tile, hidden);
}

FOVEA_DEVICE std::uint32_t kinds_in(const MaskTilesArgs& args, const Lines& tile) {
  if (!args.mask.additive) return kinds_by_widest<1>(tile, 0);
  switch (args.mask.element) {
    case plain::Element::f32:
      return kinds_by_widest<4>(tile, 0xFF800000u);
    case plain::Element::f16:
      return kinds_by_widest<2>(tile, 0xFC00u);
    case plain::Element::bf16:
      return kinds_by_widest<2>(tile, 0xFF80u);
    default:
      return kinds_by_widest<8>(tile, 0);
  }
}

FOVEA_DEVICE Lines lines_of(const MaskTilesArgs& args, const MaskTileCounts& counts,
                            std::int64_t tile) {
  const plain::MaskArgs& mask = args.mask;
  const plain::Shape& shape = args.shape;
  const std::int64_t size = mask.additive ? plain::size_of(mask.element) : 1;
  const std::int64_t key = tile % counts.keys * kMaskKeys;
  const std::int64_t row = tile / counts.keys % counts.rows * kMaskRows;
  const std::int64_t plane = tile / (counts.keys * counts.rows);
  const auto left = [](std::int64_t stride, std::int64_t all, std::int64_t from) {
    return stride == 0 ? 1 : static_cast<int>(plain::lesser(all - from, kTile));
  };
  const char* data = static_cast<const char*>(mask.data) +
                     (plane / counts.heads * mask.batch + plane % counts.heads * mask.head +
                      row * mask.row + key * mask.column) *
                         size;
  const int rows = left(mask.row, shape.q_len, row), keys = left(mask.column, shape.kv_len, key);
  if (mask.column != 1 && mask.row == 1)
    return {data, mask.column * size, mask.row * size, keys, rows};
  return {data, mask.row * size, mask.column * size, rows, keys};
}

FOVEA_DEVICE void classify(const MaskTilesArgs& args) {
  const MaskTileCounts counts = mask_tile_counts(args.mask, args.shape);
  const std::int64_t tiles = counts.all();
  std::uint32_t visible = 0;
  for (std::int64_t first = block_index() * kWarps; first < tiles;
       first += grid_blocks() * kWarps) {
    const std::int64_t tile = first + warp();
    if (tile >= tiles) break;
    const std::uint32_t own = kinds_in(args, lines_of(args, counts, tile));
    const bool hidden = any((own & kHidden) != 0), plain = any((own & kPlain) != 0);
    const bool other = any((own & kOther) != 0);
    const int kind = other || (hidden && plain) ? kTileMixed : hidden ? kTileHidden : kTileVisible;
    if (lane() == 0) args.to[tile] = static_cast<std::uint8_t>(kind);
    visible += kind == kTileVisible ? 1 : 0;
  }
  if (args.visible == nullptr) return;
  // add the block's count
  const Shared<std::uint32_t> by_warp = shared_array<std::uint32_t>(0, kWarps);
  if (lane() == 0) by_warp[warp()] = visible;
  barrier();
  if (thread_index() != 0) return;
  unsigned long long sum = 0;
  for (int n = 0; n < kWarps; ++n) sum += by_warp[n];
  if (sum > 0) atomic_add(reinterpret_cast<unsigned long long*>(args.visible), sum);
}

FOVEA_CUDA_ENTRY(entry, MaskTilesArgs, kThreads, 4, classify)

}  // namespace

const Entry* mask_tiles_entry() { return &entry; }

}  // namespace fovea::cuda::FOVEA_WORLD
