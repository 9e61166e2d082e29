#include "cli/support_matrix.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <vector>

#include <fmt/format.h>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cases/outputs.h"
#include "cases/run_case.h"

namespace fovea::cli {
namespace {

/// A feature: a kernel serves it when it serves one of the cases.
struct Feature {
  const char* name;
  std::vector<std::string> cases;
};

/// The case in each of the dtypes, since some kernels serve one alone.
std::vector<std::string> in_dtypes(const std::string& shape, const std::string& tokens = "") {
  std::vector<std::string> names;
  for (const char* dtype : {"f32", "f16", "bf16", "f64"})
    names.push_back(fmt::format("{}_{}{}{}", shape, dtype, tokens.empty() ? "" : "_", tokens));
  return names;
}

const std::string kShape = "b2_hq2_hkv2_q5_k7_d16";
std::vector<std::string> with(const std::string& tokens) { return in_dtypes(kShape, tokens); }

std::vector<Feature> features_of_both() {
  return {
      {"f32", {kShape + "_f32"}},
      {"f16", {kShape + "_f16"}},
      {"bf16", {kShape + "_bf16"}},
      {"f64", {kShape + "_f64"}},
      {"f32 by tf32 products (`F32Precision::tf32`)", {kShape + "_f32_tf32"}},
      {"inputs of several dtypes (`DTypePolicy::cast`)",
       {kShape + "_f32-f16-bf16_cast-f32", kShape + "_f32-f16-bf16_cast-bf16"}},
      {"quantised (`Quantization`)", {kShape + "_f32_int8", kShape + "_f32_int4-block"}},
      {"more than 16 queries of a KV head", in_dtypes("b2_hq2_hkv2_q80_k70_d16")},
      {"fewer KV heads than query heads", in_dtypes("b2_hq4_hkv2_q5_k7_d16")},
      {"head_dim above 256", in_dtypes("b2_hq2_hkv2_q5_k7_d512")},
      {"v_head_dim other than head_dim", with("dv24")},
      {"`[batch, seq, heads, dim]`", with("bshd")},
      {"packed q, k, v", in_dtypes("b2_hq2_hkv2_q7_k7_d16", "packed_qkv")},
      {"K and V expanded by a stride of 0", with("stride0_kv")},
      {"a last stride that is not 1", with("last2")},
      {"negative strides", with("reversed")},
      {"causal bands", with("causal_br")},
      {"windows", with("window-br-2-1")},
      {"bool masks", with("mask-bool-b1qk-random")},
      {"additive masks", with("mask-f32-b1qk-random")},
      {"ALiBi", with("alibi-tl-h")},
      {"softcap", with("softcap30")},
      {"sinks", with("sinks")},
      {"dropout", with("dropout0.1")},
      {"packed sequences (`Varlen`)", with("varlen")},
      {"key lengths (`seqused_k`)", with("seqused")},
      {"paged KV cache", with("seqused_paged4")},
      {"operands in segments", with("seg-2-2-2")},
      {"out and dout in segments", with("outseg2")},
      {"QK-norm", with("qknorm")},
      {"RoPE", with("rope-il-half-s-all-f32")},
  };
}
std::vector<Feature> features_of_forward() {
  return {{"out in f32, inputs of 16 bits", {kShape + "_bf16_f32out", kShape + "_f16_f32out"}}};
}
std::vector<Feature> features_of_backward() {
  return {
      {"gradients in f32, inputs of 16 bits",
       {kShape + "_bf16_f32grads", kShape + "_f16_f32grads"}},
      {"a gradient of lse", with("dlse")},
      {"the mask's gradient", with("mask-f32-b1qk-finite_dmask")},
      {"gradients of sinks", with("sinks_dsinks")},
      {"gradients of norm weights", with("qknorm_dnorm")},
  };
}

/// Kernels that are shown together: of one device, chosen alike, with the same answers.
struct Column {
  std::vector<std::string> kernels;
  DeviceType device;
  bool by_name;
  std::vector<bool> answers;
};

/// Ids of the kernels that serve the case.
Result<std::set<std::string>> servers_of(const std::string& name, cases::Direction direction,
                                         const std::set<DeviceType>& types) {
  const Result<cases::Case> spec = cases::parse_case(name);
  if (!spec) return spec.status();
  const std::unique_ptr<cases::Inputs> inputs = cases::make_inputs(*spec, 1);
  const cases::Outputs outputs =
      direction == cases::Direction::forward
          ? cases::make_forward_outputs(*inputs, cases::Width::as_asked)
          : cases::make_backward_outputs(*inputs, cases::Width::as_asked);
  const cases::Saved saved{cases::make_like_out(*spec, inputs->lengths, spec->out_dtype()),
                           cases::make_like_lse(*spec, inputs->lengths)};
  std::set<std::string> servers;
  for (const DeviceType type : types) {
    const Device device{type, 0};
    const auto answers =
        direction == cases::Direction::forward
            ? support_of(cases::as_on(device, cases::forward_args(*inputs, outputs)))
            : support_of(cases::as_on(device, cases::backward_args(*inputs, saved, outputs)));
    // What the contract refuses in this direction nobody serves.
    if (answers.status().code() == StatusCode::invalid ||
        answers.status().code() == StatusCode::unsupported)
      continue;
    if (!answers) return answers.status();
    for (const PassedOver& answer : *answers)
      if (answer.reason.empty()) servers.insert(answer.kernel);
  }
  return servers;
}

std::string title_of(const KernelInfo& kernel) {
  return fmt::format("`{}`{}", kernel.id, kernel.explicit_only ? " (by name)" : "");
}

Result<std::string> table_of(cases::Direction direction, const std::vector<Feature>& features) {
  const char* word = direction == cases::Direction::forward ? "forward" : "backward";
  // Libraries that a build may or may not have are not part of the page.
  std::vector<KernelInfo> asked = kernels();
  std::erase_if(asked, [&](const KernelInfo& kernel) {
    return kernel.direction != word || kernel.id.starts_with("cudnn.");
  });
  std::set<DeviceType> types;
  for (const KernelInfo& kernel : asked) types.insert(kernel.device);

  std::vector<std::vector<bool>> answers(asked.size());
  for (const Feature& feature : features) {
    std::set<std::string> servers;
    for (const std::string& name : feature.cases) {
      Result<std::set<std::string>> more = servers_of(name, direction, types);
      if (!more) return more.status();
      servers.merge(*more);
    }
    for (std::size_t n = 0; n < asked.size(); ++n)
      answers[n].push_back(servers.contains(asked[n].id));
  }
  std::vector<Column> columns;
  for (std::size_t n = 0; n < asked.size(); ++n) {
    const KernelInfo& kernel = asked[n];
    const auto same = std::find_if(columns.begin(), columns.end(), [&](const Column& c) {
      return c.device == kernel.device && c.by_name == kernel.explicit_only &&
             c.answers == answers[n];
    });
    if (same == columns.end())
      columns.push_back({{title_of(kernel)}, kernel.device, kernel.explicit_only, answers[n]});
    else
      same->kernels.push_back(title_of(kernel));
  }

  std::string text =
      fmt::format("\n## {}\n\n|", direction == cases::Direction::forward ? "Forward" : "Backward");
  for (const Column& column : columns)
    text += fmt::format(" | {}", fmt::join(column.kernels, "<br>"));
  text += " |\n|---|";
  for (std::size_t n = 0; n < columns.size(); ++n) text += ":-:|";
  text += "\n";
  for (std::size_t row = 0; row < features.size(); ++row) {
    text += fmt::format("| {} |", features[row].name);
    for (const Column& column : columns) text += column.answers[row] ? " yes |" : " |";
    text += "\n";
  }
  return text;
}

std::vector<Feature> joined(std::vector<Feature> first, const std::vector<Feature>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

Result<std::string> support_matrix() {
  ::setenv("FOVEA_CUDA_EMULATE", "1", 1);
  ::unsetenv("FOVEA_CUDA_SHARED_KB");
  if (!cases::is_emulated({DeviceType::cuda, 0}))
    return Status(StatusCode::unsupported,
                  "this build emulates no CUDA device (configure it with FOVEA_EMULATE_CUDA=ON)");
  const Result<std::string> forward =
      table_of(cases::Direction::forward, joined(features_of_both(), features_of_forward()));
  if (!forward) return forward.status();
  const Result<std::string> backward =
      table_of(cases::Direction::backward, joined(features_of_both(), features_of_backward()));
  if (!backward) return backward.status();
  return "# What each kernel serves\n\n"
         "Made by `fovea info --matrix`, which asks each kernel about a small call with the "
         "feature, whatever the machine can run; a test compares this page with it. Features "
         "combine unless `fovea info --why-not CASE` says otherwise. Of the kernels for its device "
         "a call takes the first, from the left, that serves all of it and that the machine can "
         "run; those marked \"by name\" wait to be chosen. CUDA kernels are asked on a device with "
         "227 KB of shared memory a block.\n" +
         *forward + *backward;
}

}  // namespace fovea::cli
