// cuDNN's graphs of attention: what one is made for, and running it.
//
// A graph is built when a plan asks whether cuDNN serves a call, never in a run, and kept as long
// as the process lives: a plan may need it any time. Building takes from milliseconds to seconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <fovea/status.h>

#include "contract/problem.h"

namespace fovea::cudnn {

/// Tensors of a graph by their place in GraphSpec and in a run's pointers.
enum Tensor : std::uint8_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };
inline constexpr std::size_t kForwardTensors = 5, kBackwardTensors = 9;

/// [batch, heads, rows, columns]; strides in elements, positive.
struct Layout {
  std::array<std::int64_t, 4> shape{}, strides{};
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// All that shapes a graph.
struct GraphSpec {
  int device = 0;
  Direction direction = Direction::forward;
  DType dtype = DType::none;
  bool has_lse = false;        ///< forward: lse is wanted
  bool deterministic = false;  ///< backward
  int anchor = 0;              ///< 0: no band; else Anchor
  std::int64_t left = 0;       ///< keys before the diagonal; kUnbounded: no limit
  std::int64_t right = 0;
  float scale = 0;
  std::array<Layout, kBackwardTensors> tensors;
  friend bool operator==(const GraphSpec&, const GraphSpec&) = default;
};

class Graph;  ///< cuDNN's

struct BuiltGraph {
  std::string trouble;  ///< why there is none, in cuDNN's words
  std::size_t workspace_bytes = 0;
  const Graph* graph = nullptr;
};

/// The graph, built now unless it was before. Lives as long as the process.
const BuiltGraph& graph_for(const GraphSpec& spec);

/// The graph if it has been built, else null.
const BuiltGraph* find_graph(const GraphSpec& spec);

using Pointers = std::array<void*, kBackwardTensors>;

/// Queues it on the stream.
Status run_graph(const BuiltGraph& built, const GraphSpec& spec, const Pointers& pointers,
                 void* workspace, void* stream);

}  // namespace fovea::cudnn
