#include "cli/run_options.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/kernel_choice.h"
#include "cli/validators.h"
#include "io/tensor_file.h"

namespace fovea::cli {
namespace {

Status bad(std::string message) { return {StatusCode::invalid, std::move(message)}; }

CLI::Validator tensor_file() {
  return {[](std::string& text) {
            const Result<io::TensorPlace> place = io::parse_place(text);
            return place ? std::string() : place.status().message();
          },
          ""};
}

/// A side of --window.
std::optional<std::int64_t> read_side(const std::string& text) {
  if (text == "inf") return kUnbounded;
  std::int64_t side = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), side);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && side >= 0 ? std::optional(side) : std::nullopt;
}

std::optional<Device> read_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{DeviceType::cuda, 0};
  constexpr std::string_view kNumbered = "cuda:";
  if (!text.starts_with(kNumbered)) return {};
  text.remove_prefix(kNumbered.size());
  Device device{DeviceType::cuda, 0};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device.index);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && device.index >= 0 ? std::optional(device) : std::nullopt;
}

CLI::Validator window_side() {
  return {[](std::string& text) {
            if (read_side(text)) return std::string();
            return fmt::format("takes two whole numbers from 0, or inf; got '{}'", text);
          },
          ""};
}

void add_inputs(CLI::App& command, RunSettings& s) {
  const char* group = "Inputs (FILE.npy or FILE.safetensors:NAME)";
  const auto file = [&](const char* name, std::string& to, const char* help) {
    return command.add_option(name, to, help)->group(group)->check(tensor_file());
  };
  const auto files = [&](const char* name, std::vector<std::string>& to, const char* help) {
    return command.add_option(name, to, help)
        ->group(group)
        ->expected(1, kMaxSegments)
        ->check(tensor_file());
  };
  files("--q", s.q, "Queries [batch, q_heads, q_len, head_dim]; several files are segments")
      ->required();
  files("--k", s.k, "Keys [batch, kv_heads, kv_len, head_dim]")->required();
  files("--v", s.v, "Values [batch, kv_heads, kv_len, v_head_dim]")->required();
  file("--mask", s.mask, "Bool (true = attend) or additive mask that broadcasts to the scores");
  file("--alibi", s.alibi, "Slopes [q_heads] or [batch, q_heads]");
  file("--sinks", s.sinks, "Sink logits [q_heads]");
  file("--cu-seqlens-q", s.cu_seqlens_q, "Packed sequences: first rows [batch + 1]; q is 3-D");
  file("--cu-seqlens-k", s.cu_seqlens_k, "The same for k and v");
  file("--seqused-k", s.seqused_k, "Keys in use [batch]");
  file("--block-table", s.block_table, "Paged KV cache: pages [batch, max_pages]");
  files("--q-norm-weight", s.q_norm_weights, "Weights [head_dim], one for each segment of q");
  files("--k-norm-weight", s.k_norm_weights, "Weights [head_dim], one for each segment of k");
  file("--rope-cos", s.rope_cos, "RoPE table");
  file("--rope-sin", s.rope_sin, "RoPE table");
  file("--rope-q-offsets", s.rope_q_offsets, "Table row of query 0 [batch]");
  file("--rope-k-offsets", s.rope_k_offsets, "Table row of key 0 [batch]");
  file("--dout", s.dout, "Gradient of out, for --backward");
  file("--dlse", s.dlse, "Gradient of lse, for --backward");
}

void add_outputs(CLI::App& command, RunSettings& s) {
  const char* group = "Outputs (FILE.npy or FILE.safetensors:NAME)";
  const auto file = [&](const char* name, std::string& to, const char* help) {
    command.add_option(name, to, help)->group(group)->check(tensor_file());
  };
  file("--out", s.out, "Result, laid out like q");
  file("--lse", s.lse, "Log-sum-exp of the scores [batch, q_heads, q_len]");
  file("--dq", s.dq, "Gradient of q (one segment)");
  file("--dk", s.dk, "Gradient of k (one segment)");
  file("--dv", s.dv, "Gradient of v (one segment)");
  file("--dmask", s.dmask, "Gradient of an additive mask");
  file("--dsinks", s.dsinks, "Gradient of the sinks");
}

void add_semantics(CLI::App& command, RunSettings& s) {
  const char* group = "What is computed";
  const auto option = [&](const char* name, auto& to, const char* help) {
    return command.add_option(name, to, help)->group(group);
  };
  const auto flag = [&](const char* name, bool& to, const char* help) {
    return command.add_flag(name, to, help)->group(group);
  };
  option("--layout", s.layout, "Order of dimensions in the files of q, k, v, out and gradients")
      ->check(CLI::IsMember({"bhsd", "bshd"}))
      ->capture_default_str();
  const CLI::IsMember anchors({"top_left", "bottom_right"});
  CLI::Option* causal =
      option("--causal", s.causal, "Each query sees no later key; where the diagonal lies")
          ->check(anchors);
  CLI::Option* window =
      option("--window", s.window, "Keys seen to the left and to the right, or inf")
          ->expected(2)
          ->check(window_side());
  causal->excludes(window);
  option("--anchor", s.anchor, "Where the diagonal of --window and --alibi lies")->check(anchors);
  option("--scale", s.scale, "Factor of the scores; default 1/sqrt(head_dim)");
  option("--softcap", s.softcap, "c: scores become c tanh(x / c); 0 = off")->capture_default_str();
  option("--dropout", s.dropout, "Probability of dropping")->capture_default_str();
  option("--seed", s.seed, "Dropout seed")->check(seed_value())->capture_default_str();
  option("--offset", s.offset, "Dropout offset")->check(seed_value())->capture_default_str();
  option("--max-q-len", s.max_q_len, "Longest packed sequence of q");
  option("--max-kv-len", s.max_kv_len, "Longest packed or paged sequence of k");
  flag("--qk-norm", s.qk_norm, "RMSNorm of q and k first");
  option("--norm-eps", s.norm_eps, "Its epsilon")->capture_default_str();
  option("--rope-style", s.rope_style, "Pairs (2i, 2i+1) or (i, i+R/2)")
      ->check(CLI::IsMember({"interleaved", "half"}))
      ->capture_default_str();
  option("--rope-table", s.rope_table, "Tables [.., R/2], or [.., R] with each value twice")
      ->check(CLI::IsMember({"half", "duplicated"}))
      ->capture_default_str();
  option("--rotary-dim", s.rotary_dim, "R; 0 = head_dim")->capture_default_str();
  option("--rope-q-offset", s.rope_q_offset, "Table row of query 0")->capture_default_str();
  option("--rope-k-offset", s.rope_k_offset, "Table row of key 0")->capture_default_str();
  flag("--rope-keys-are-rotated", s.rope_keys_are_rotated, "Rotate the queries only");
  option("--cast", s.cast, "Read each input in its own dtype and compute in this one")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  flag("--f32-out", s.f32_out, "out in f32");
  flag("--f32-grads", s.f32_grads, "Gradients in f32");
  flag("--tf32", s.tf32, "Allow products of f32 inputs to be rounded to tf32");
  flag("--backward", s.backward, "Compute gradients after the forward pass");
}

void add_choice(CLI::App& command, RunSettings& s) {
  const char* group = "How it is served";
  command
      .add_option("--device", s.device, "cpu, cuda or cuda:N; tensors are copied there and back")
      ->check([](const std::string& text) {
        return read_device(text) ? std::string()
                                 : fmt::format("must be cpu, cuda or cuda:N; got '{}'", text);
      })
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kernel", s.kernel,
                  "Forward kernel to use, e.g. cpu.avx2.forward; backward "
                  "takes its counterpart")
      ->group(group);
  command.add_option("--backend", s.backend, "Backend or family: cpu, flash, unfused, reference")
      ->group(group);
  command.add_flag("--strict", s.strict, "An error instead of any fallback")->group(group);
  command.add_flag("--no-self-check", s.no_self_check, "Do not check the kernel first")
      ->group(group);
  command.add_option("--threads", s.threads, "Threads; 0 = all that may be used")
      ->check(CLI::Range(0, 1024))
      ->group(group);
}

/// [batch, seq, heads, dim] in the file, [batch, heads, seq, dim] in the call.
void swap_heads_and_rows(TensorView& view) {
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
}

Anchor anchor_of(const std::string& word) {
  return word == "bottom_right" ? Anchor::bottom_right : Anchor::top_left;
}

/// Options that would do nothing without another one.
void add_needs(CLI::App& command) {
  const auto need = [&](const char* needed, std::initializer_list<const char*> options) {
    for (const char* option : options) {
      command.get_option(option)->needs(command.get_option(needed));
    }
  };
  need("--anchor", {"--window"});
  need("--dropout", {"--seed", "--offset"});
  need("--cu-seqlens-q", {"--max-q-len"});
  need("--qk-norm", {"--norm-eps", "--q-norm-weight", "--k-norm-weight"});
  need("--rope-sin", {"--rope-cos"});
  need("--rope-cos",
       {"--rope-sin", "--rope-style", "--rope-table", "--rotary-dim", "--rope-q-offset",
        "--rope-k-offset", "--rope-q-offsets", "--rope-k-offsets", "--rope-keys-are-rotated"});
  need("--dout", {"--backward"});
  need("--backward",
       {"--dout", "--dlse", "--dq", "--dk", "--dv", "--dmask", "--dsinks", "--f32-grads"});
  need("--sinks", {"--dsinks"});
}

std::vector<std::string> inputs_of(const RunSettings& s) {
  std::vector<std::string> files = {
      s.mask,           s.alibi,       s.sinks,    s.cu_seqlens_q, s.cu_seqlens_k,
      s.seqused_k,      s.block_table, s.rope_cos, s.rope_sin,     s.rope_q_offsets,
      s.rope_k_offsets, s.dout,        s.dlse};
  std::erase(files, "");
  for (const auto* list : {&s.q, &s.k, &s.v, &s.q_norm_weights, &s.k_norm_weights}) {
    files.insert(files.end(), list->begin(), list->end());
  }
  return files;
}

std::vector<io::TensorPlace> places_of(const std::vector<std::string>& files) {
  std::vector<io::TensorPlace> places;
  for (const std::string& file : files) places.push_back(io::parse_place(file).value());
  return places;
}

Status check_band(const RunSettings& s) {
  if (s.anchor.empty()) {
    if (s.alibi.empty() || !s.causal.empty()) return {};
    return bad("--alibi needs --anchor top_left or bottom_right");
  }
  if (!s.causal.empty() && s.anchor != s.causal) {
    return bad(fmt::format("--anchor {} contradicts --causal {}", s.anchor, s.causal));
  }
  if (s.causal.empty() && s.window.empty() && s.alibi.empty()) {
    return bad("--anchor needs --window or --alibi");
  }
  return {};
}

Status check_choice(const RunSettings& s) {
  if (!s.kernel.empty()) {
    if (const Result<KernelInfo> kernel = kernel_named(s.kernel, "forward"); !kernel) {
      return kernel.status();
    }
  }
  const std::vector<KernelInfo> all = kernels();
  const bool known = std::any_of(all.begin(), all.end(), [&](const KernelInfo& kernel) {
    return kernel.backend == s.backend || kernel.family == s.backend;
  });
  if (known || s.backend.empty()) return {};
  return bad(fmt::format("no backend or family is called '{}'", s.backend));
}

}  // namespace

void add_run_options(CLI::App& command, RunSettings& settings) {
  add_inputs(command, settings);
  add_outputs(command, settings);
  add_semantics(command, settings);
  add_choice(command, settings);
  add_needs(command);
}

Device device_of(const RunSettings& settings) { return *read_device(settings.device); }

std::vector<std::string> outputs_of(const RunSettings& s) {
  std::vector<std::string> files = {s.out, s.lse, s.dq, s.dk, s.dv, s.dmask, s.dsinks};
  std::erase(files, "");
  return files;
}

Status check_usage(const RunSettings& s) {
  if (s.out.empty() && s.lse.empty() && !s.backward) {
    return bad("nothing is to be written: give --out, --lse or --backward");
  }
  if (s.backward && s.dq.empty() && s.dk.empty() && s.dv.empty() && s.dmask.empty() &&
      s.dsinks.empty()) {
    return bad("--backward needs --dq, --dk, --dv, --dmask or --dsinks to write to");
  }
  if (!s.dmask.empty() && s.mask.empty()) return bad("--dmask needs an additive --mask");
  if (s.max_kv_len != 0 && s.cu_seqlens_k.empty() && s.block_table.empty()) {
    return bad("--max-kv-len needs --cu-seqlens-k or --block-table");
  }
  for (const auto& [weights, segments] :
       {std::pair(&s.q_norm_weights, &s.q), std::pair(&s.k_norm_weights, &s.k)}) {
    if (weights->empty() || weights->size() == segments->size()) continue;
    return bad(fmt::format("{} norm weights are given for {} segments", weights->size(),
                           segments->size()));
  }
  if (Status status = check_band(s); !status.ok()) return status;
  if (Status status = check_choice(s); !status.ok()) return status;
  return io::check_places(places_of(outputs_of(s)), places_of(inputs_of(s)));
}

Status LoadedCall::load_view(const std::string& name, TensorView& view) {
  if (name.empty()) return {};
  Result<io::Array> array = io::load_tensor(name);
  if (!array) return array.status();
  arrays_.push_back(std::move(*array));
  const Result<MutableTensorView> made = io::view_of(arrays_.back());
  if (!made) return bad(fmt::format("{}: {}", name, made.status().message()));
  view = *made;
  return {};
}

Status LoadedCall::load_operand(const RunSettings& settings, const std::vector<std::string>& names,
                                const std::vector<std::string>& weights, Operand& operand) {
  for (std::size_t n = 0; n < names.size(); ++n) {
    TensorView tensor, weight;
    if (Status s = load_view(names[n], tensor); !s.ok()) return s;
    if (!weights.empty()) {
      if (Status s = load_view(weights[n], weight); !s.ok()) return s;
    }
    if (settings.layout == "bshd" && tensor.rank == 4) swap_heads_and_rows(tensor);
    operand.add(tensor, weight);
  }
  return {};
}

void LoadedCall::set_band(const RunSettings& settings) {
  if (!settings.causal.empty()) params.band = Band::causal(anchor_of(settings.causal));
  if (!settings.window.empty()) {
    params.band = Band::window(anchor_of(settings.anchor), *read_side(settings.window[0]),
                               *read_side(settings.window[1]));
  }
  if (!settings.alibi.empty()) {
    params.alibi.anchor = params.band ? params.band->anchor : anchor_of(settings.anchor);
  }
}

Status LoadedCall::set_rope(const RunSettings& settings) {
  Rope& rope = params.rope;
  if (Status s = load_view(settings.rope_cos, rope.cos); !s.ok()) return s;
  if (Status s = load_view(settings.rope_sin, rope.sin); !s.ok()) return s;
  if (Status s = load_view(settings.rope_q_offsets, rope.q_offsets); !s.ok()) return s;
  if (Status s = load_view(settings.rope_k_offsets, rope.k_offsets); !s.ok()) return s;
  rope.style = settings.rope_style == "half" ? RopeStyle::half : RopeStyle::interleaved;
  rope.table = settings.rope_table == "half" ? RopeTable::half : RopeTable::duplicated;
  rope.rotary_dim = settings.rotary_dim;
  rope.q_offset = settings.rope_q_offset;
  rope.k_offset = settings.rope_k_offset;
  rope.rotate_k = !settings.rope_keys_are_rotated;
  return {};
}

Status LoadedCall::load(const RunSettings& settings) {
  if (Status s = load_operand(settings, settings.q, settings.q_norm_weights, params.q); !s.ok()) {
    return s;
  }
  if (Status s = load_operand(settings, settings.k, settings.k_norm_weights, params.k); !s.ok()) {
    return s;
  }
  if (Status s = load_operand(settings, settings.v, {}, params.v); !s.ok()) return s;
  const std::pair<const std::string&, TensorView&> plain[] = {
      {settings.mask, params.mask},
      {settings.alibi, params.alibi.slopes},
      {settings.sinks, params.sinks},
      {settings.cu_seqlens_q, params.varlen.cu_seqlens_q},
      {settings.cu_seqlens_k, params.varlen.cu_seqlens_k},
      {settings.seqused_k, params.seqused_k},
      {settings.block_table, params.paged.block_table},
      {settings.dlse, dlse}};
  for (const auto& [name, view] : plain) {
    if (Status s = load_view(name, view); !s.ok()) return s;
  }
  if (!settings.dout.empty()) {
    if (Status s = load_operand(settings, {settings.dout}, {}, dout); !s.ok()) return s;
  }
  set_band(settings);
  if (Status s = set_rope(settings); !s.ok()) return s;
  params.scale = settings.scale;
  params.softcap = settings.softcap;
  params.dropout.probability = settings.dropout;
  params.dropout.seed = settings.seed;
  params.dropout.offset = settings.offset;
  params.varlen.max_q_len = settings.max_q_len;
  params.varlen.max_kv_len = settings.max_kv_len;
  params.paged.max_kv_len = settings.max_kv_len;
  params.qk_norm = {settings.qk_norm, settings.norm_eps};
  if (settings.tf32) params.f32_precision = F32Precision::tf32;
  compute = params.q.segments[0].tensor.dtype;
  if (!settings.cast.empty()) {
    const DType cast = settings.cast == "f32"   ? DType::f32
                       : settings.cast == "f16" ? DType::f16
                                                : DType::bf16;
    params.dtype_policy = DTypePolicy::cast(cast);
    if (compute != DType::f64) compute = cast;
  }
  return {};
}

}  // namespace fovea::cli
