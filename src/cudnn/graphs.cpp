// The only file that includes cudnn-frontend, which takes long to compile.
//
// It is used in its dynamic mode: NVIDIA's libraries are reached by name. Ours stands behind its
// calls of dlopen and dlsym, so that libcudnn is the one of library.h, and the CUDA run time the
// one that is linked into this program: no second one is opened.
#include "cudnn/graphs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "contract/format.h"
#include "cudnn/library.h"

namespace fovea::cudnn {
namespace {

// Stands for the CUDA run time that is linked.
char linked_runtime;

void* open_library(const char* name, int flags) {
  const std::string_view wanted = name;
  if (wanted.find("libcudart") == std::string_view::npos) return ::dlopen(name, flags);
  // It asks for every version that it knows, and complains when there are two.
  return wanted.find("libcudart.so.12") != std::string_view::npos ? &linked_runtime : nullptr;
}

/// What attention's graphs need of the CUDA run time.
void* find_symbol(void* library, const char* name) {
  if (library != &linked_runtime) return ::dlsym(library, name);
#define FOVEA_RUNTIME(function) \
  { #function, reinterpret_cast < void*>(&function) }
  static const std::pair<std::string_view, void*> known[] = {
    FOVEA_RUNTIME(cudaGetDevice),
    FOVEA_RUNTIME(cudaDeviceGetAttribute),
    FOVEA_RUNTIME(cudaMemsetAsync),
    FOVEA_RUNTIME(cudaGetErrorString),
    FOVEA_RUNTIME(cudaRuntimeGetVersion),
    FOVEA_RUNTIME(cudaGetLastError),
    FOVEA_RUNTIME(cudaStreamIsCapturing),
    FOVEA_RUNTIME(cudaStreamSynchronize),
    FOVEA_RUNTIME(cudaThreadExchangeStreamCaptureMode),
    FOVEA_RUNTIME(cudaUserObjectCreate),
    FOVEA_RUNTIME(cudaUserObjectRelease),
    FOVEA_RUNTIME(cudaGraphRetainUserObject),
#if CUDART_VERSION >= 13000
    FOVEA_RUNTIME(cudaStreamGetCaptureInfo),
#else
    FOVEA_RUNTIME(cudaStreamGetCaptureInfo_v2),
#endif
#if CUDART_VERSION >= 12080
    FOVEA_RUNTIME(cudaGetDriverEntryPointByVersion),
#else
    FOVEA_RUNTIME(cudaGetDriverEntryPoint),
#endif
    {"cudaMemcpyAsync",
     reinterpret_cast<void*>(
         static_cast<cudaError_t (*)(void*, const void*, std::size_t, cudaMemcpyKind,
                                     cudaStream_t)>(&cudaMemcpyAsync))},
    {"cudaGetDeviceProperties",
     reinterpret_cast<void*>(
         static_cast<cudaError_t (*)(cudaDeviceProp*, int)>(&cudaGetDeviceProperties))},
  };
#undef FOVEA_RUNTIME
  for (const auto& [known_name, function] : known)
    if (known_name == name) return function;
  return nullptr;
}

}  // namespace
}  // namespace fovea::cudnn

#define dlopen(name, flags) ::fovea::cudnn::open_library(name, flags)
#define dlsym(library, name) ::fovea::cudnn::find_symbol(library, name)
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#undef dlopen
#undef dlsym

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace fovea::cudnn {

namespace fe = cudnn_frontend;

class Graph {
 public:
  fe::graph::Graph graph;
};

namespace {

/// Graphs beyond this many are refused: each holds memory for as long as the process lives.
constexpr std::size_t kMostGraphs = 1024;

/// A device's handle: made when the first graph is, used by one thread at a time. A run holds it
/// while it queues its work, some microseconds.
struct Handle {
  std::mutex mutex;
  cudnnHandle_t handle = nullptr;
};

Handle& handle_of(int device) {
  static std::mutex mutex;
  static auto& handles = *new std::map<int, std::unique_ptr<Handle>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Handle>& handle = handles[device];
  if (!handle) handle = std::make_unique<Handle>();
  return *handle;
}

/// cuDNN's account of this thread's last failure, or empty.
std::string last_error() {
  using Function = void (*)(char*, std::size_t);
  static const auto function =
      reinterpret_cast<Function>(::dlsym(library().handle, "cudnnGetLastErrorString"));
  if (function == nullptr) return {};
  char text[1024] = {};
  function(text, sizeof text);
  return text;
}

/// The first line of an account, and the first reason of each engine that it lists: the rest, a
/// page or two, says what follows from these.
std::string shorten(std::string_view text) {
  constexpr std::size_t kMostReasons = 6;
  constexpr std::string_view kReason = "Reason: ";
  std::string line(text.substr(0, text.find('\n')));
  std::vector<std::string_view> reasons;
  bool first = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view next = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (next.starts_with("{")) first = true;
    const std::size_t reason = next.find(kReason);
    if (!first || reason == std::string_view::npos) continue;
    first = false;
    const std::string_view why = next.substr(reason + kReason.size());
    if (reasons.size() < kMostReasons &&
        std::find(reasons.begin(), reasons.end(), why) == reasons.end())
      reasons.push_back(why);
  }
  for (const std::string_view why : reasons) line += formatted("; {}", why);
  return line;
}

std::string explain(const std::string& what) {
  const std::string more = last_error();
  std::string text = shorten(what);
  if (!more.empty() && what.find(more) == std::string::npos) text += " (" + shorten(more) + ")";
  return library().name + ": " + (text.empty() ? "no reason given" : text);
}

std::shared_ptr<fe::graph::Tensor_attributes> add_tensor(fe::graph::Graph& graph,
                                                         const GraphSpec& spec, Tensor which) {
  const Layout& layout = spec.tensors[which];
  auto attributes = fe::graph::Tensor_attributes()
                        .set_uid(which + 1)
                        .set_dim({layout.shape.begin(), layout.shape.end()})
                        .set_stride({layout.strides.begin(), layout.strides.end()});
  if (which == kLse) attributes.set_data_type(fe::DataType_t::FLOAT);
  return graph.tensor(attributes);
}

void add_output(const std::shared_ptr<fe::graph::Tensor_attributes>& tensor, const GraphSpec& spec,
                Tensor which) {
  const Layout& layout = spec.tensors[which];
  tensor->set_output(true)
      .set_uid(which + 1)
      .set_dim({layout.shape.begin(), layout.shape.end()})
      .set_stride({layout.strides.begin(), layout.strides.end()});
  if (which == kLse) tensor->set_data_type(fe::DataType_t::FLOAT);
}

template <class Attributes>
void set_scores(Attributes& attributes, const GraphSpec& spec) {
  attributes.set_attn_scale(spec.scale);
  if (spec.anchor == 0) return;
  attributes.set_diagonal_alignment(static_cast<Anchor>(spec.anchor) == Anchor::bottom_right
                                        ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                        : fe::DiagonalAlignment_t::TOP_LEFT);
  // Theirs counts the key on the diagonal: j > i - bound. The right side is j <= i + bound.
  if (spec.left != kUnbounded)
    attributes.set_diagonal_band_left_bound(static_cast<int>(spec.left + 1));
  if (spec.right != kUnbounded)
    attributes.set_diagonal_band_right_bound(static_cast<int>(spec.right));
}

void describe(fe::graph::Graph& graph, const GraphSpec& spec) {
  const Capability capability = capability_of(spec.device);
  graph.set_io_data_type(spec.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(10 * capability.major + capability.minor);
  const auto input = [&](Tensor which) { return add_tensor(graph, spec, which); };
  if (spec.direction == Direction::forward) {
    auto attributes = fe::graph::SDPA_attributes().set_name("forward");
    attributes.set_generate_stats(spec.has_lse);
    // The newer single node is chosen otherwise, which has no engine for some devices.
    attributes.set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    set_scores(attributes, spec);
    const auto [out, lse] = graph.sdpa(input(kQ), input(kK), input(kV), attributes);
    add_output(out, spec, kOut);
    if (spec.has_lse) add_output(lse, spec, kLse);
    return;
  }
  auto attributes = fe::graph::SDPA_backward_attributes().set_name("backward");
  attributes.set_deterministic_algorithm(spec.deterministic);
  set_scores(attributes, spec);
  const auto [dq, dk, dv] = graph.sdpa_backward(input(kQ), input(kK), input(kV), input(kOut),
                                                input(kDout), input(kLse), attributes);
  add_output(dq, spec, kDq);
  add_output(dk, spec, kDk);
  add_output(dv, spec, kDv);
}

/// "" or what went wrong.
std::string build(const GraphSpec& spec, BuiltGraph& built) {
  const OnDevice on(spec.device, /*beside_captures=*/true);
  if (!on.status().ok()) return on.status().message();
  Handle& handle = handle_of(spec.device);
  const std::lock_guard lock(handle.mutex);
  if (handle.handle == nullptr)
    if (const auto status = fe::detail::create_handle(&handle.handle);
        status != CUDNN_STATUS_SUCCESS) {
      handle.handle = nullptr;
      return explain(formatted("cudnnCreate fails with status {}", static_cast<int>(status)));
    }
  auto made = std::make_unique<Graph>();
  fe::graph::Graph& graph = made->graph;
  describe(graph, spec);
  std::int64_t workspace = 0;
  const auto step = [](fe::error_t error) {
    return error.is_good() ? std::string() : explain(error.get_message());
  };
  std::string trouble = step(graph.validate());
  if (trouble.empty()) trouble = step(graph.build_operation_graph(handle.handle));
  if (trouble.empty())
    trouble = step(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
  if (trouble.empty()) trouble = step(graph.check_support());
  if (trouble.empty()) trouble = step(graph.build_plans());
  if (trouble.empty()) trouble = step(graph.get_workspace_size(workspace));
  if (!trouble.empty()) return trouble;
  built.workspace_bytes = static_cast<std::size_t>(workspace);
  built.graph = made.release();
  return {};
}

struct Hash {
  std::size_t operator()(const GraphSpec& s) const {
    std::uint64_t hash = 0xCBF29CE484222325u;
    const auto mix = [&](std::uint64_t word) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    };
    mix(static_cast<std::uint64_t>(s.device) << 32 | static_cast<std::uint64_t>(s.direction) << 8 |
        static_cast<std::uint64_t>(s.dtype));
    mix(static_cast<std::uint64_t>(s.anchor) << 2 | static_cast<std::uint64_t>(s.has_lse) << 1 |
        static_cast<std::uint64_t>(s.deterministic));
    mix(static_cast<std::uint64_t>(s.left));
    mix(static_cast<std::uint64_t>(s.right));
    mix(std::bit_cast<std::uint32_t>(s.scale));
    for (const Layout& layout : s.tensors) {
      for (const std::int64_t n : layout.shape) mix(static_cast<std::uint64_t>(n));
      for (const std::int64_t n : layout.strides) mix(static_cast<std::uint64_t>(n));
    }
    return static_cast<std::size_t>(hash);
  }
};

struct Graphs {
  std::mutex building;
  std::shared_mutex mutex;
  std::unordered_map<GraphSpec, BuiltGraph, Hash> made;
};

Graphs& graphs() {
  static Graphs& all = *new Graphs;
  return all;
}

}  // namespace

const BuiltGraph* find_graph(const GraphSpec& spec) {
  Graphs& all = graphs();
  const std::shared_lock lock(all.mutex);
  const auto found = all.made.find(spec);
  return found == all.made.end() ? nullptr : &found->second;
}

const BuiltGraph& graph_for(const GraphSpec& spec) {
  if (const BuiltGraph* found = find_graph(spec)) return *found;
  Graphs& all = graphs();
  const std::lock_guard one(all.building);
  if (const BuiltGraph* found = find_graph(spec)) return *found;
  static const BuiltGraph full{formatted("{} cuDNN graphs are kept already", kMostGraphs), 0,
                               nullptr};
  if (all.made.size() >= kMostGraphs) return full;
  BuiltGraph built;
  try {
    fe::cudnn_dlhandle = library().handle;
    built.trouble = build(spec, built);
  } catch (const std::exception& error) {
    built.trouble = explain(error.what());
  } catch (...) {
    built.trouble = explain("an unknown exception");
  }
  const std::unique_lock lock(all.mutex);
  return all.made.emplace(spec, std::move(built)).first->second;
}

Status run_graph(const BuiltGraph& built, const GraphSpec& spec, const Pointers& pointers,
                 void* workspace, void* stream) {
  const char* where = spec.direction == Direction::forward ? "cudnn.forward" : "cudnn.backward";
  const auto fail = [&](const std::string& what) {
    return Status(StatusCode::device, formatted("[{}] {}", where, explain(what)));
  };
  const OnDevice on(spec.device, /*beside_captures=*/false);
  if (!on.status().ok()) return on.status();
  try {
    std::unordered_map<std::int64_t, void*> pack;
    const std::size_t count =
        spec.direction == Direction::forward ? kForwardTensors : kBackwardTensors;
    for (std::size_t n = 0; n < count; ++n)
      if (n != kLse || spec.has_lse) pack.emplace(static_cast<std::int64_t>(n + 1), pointers[n]);
    Handle& handle = handle_of(spec.device);
    const std::lock_guard lock(handle.mutex);
    if (fe::detail::set_stream(handle.handle, static_cast<cudaStream_t>(stream)) !=
        CUDNN_STATUS_SUCCESS)
      return fail("cudnnSetStream fails");
    auto error = built.graph->graph.execute(handle.handle, pack, workspace);
    return error.is_good() ? Status() : fail(error.get_message());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace fovea::cudnn
