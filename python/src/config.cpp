#include "config.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "errors.h"

namespace fovea::python {
namespace {

Anchor anchor_of(const std::string& name, const char* argument) {
  if (name == "top_left") return Anchor::top_left;
  if (name == "bottom_right") return Anchor::bottom_right;
  raise_value(argument, "top_left or bottom_right; got \"" + name + "\"");
}

RopeStyle style_of(const std::string& name) {
  if (name == "interleaved") return RopeStyle::interleaved;
  if (name == "half") return RopeStyle::half;
  raise_value("rope_style", "interleaved or half; got \"" + name + "\"");
}

RopeTable table_of(const std::string& name) {
  if (name == "half") return RopeTable::half;
  if (name == "duplicated") return RopeTable::duplicated;
  raise_value("rope_table", "half or duplicated; got \"" + name + "\"");
}

}  // namespace

void bind_config(nb::module_& module) {
  nb::class_<Config>(module, "Config", "All of a call but its tensors; include/fovea/attention.h.")
      .def(
          "__init__",
          [](Config* self, std::optional<double> scale, std::optional<std::string> anchor,
             std::optional<std::int64_t> left, std::optional<std::int64_t> right, double softcap,
             double dropout, std::uint64_t seed, std::uint64_t offset, std::int64_t row_origin,
             std::int64_t column_origin, std::int64_t max_q_len, std::int64_t max_kv_len,
             bool qk_norm, double qk_norm_eps, const std::string& rope_style,
             const std::string& rope_table, std::int64_t rotary_dim, std::int64_t rope_q_offset,
             std::int64_t rope_k_offset, bool rotate_q, bool rotate_k,
             const std::optional<std::string>& cast, bool tf32, const std::string& kernel,
             const std::string& backend, bool strict, bool deterministic, bool self_check,
             bool autotune, int num_threads) {
            Config config;
            AttentionParams& p = config.params;
            p.scale = scale;
            if (anchor) {
              p.band = Band::window(anchor_of(*anchor, "band"), left.value_or(kUnbounded),
                                    right.value_or(kUnbounded));
              p.alibi.anchor = p.band->anchor;
            }
            p.softcap = softcap;
            p.dropout.probability = dropout;
            p.dropout.seed = seed;
            p.dropout.offset = offset;
            p.dropout.row_origin = row_origin;
            p.dropout.column_origin = column_origin;
            p.varlen.max_q_len = max_q_len;
            p.varlen.max_kv_len = max_kv_len;
            p.paged.max_kv_len = max_kv_len;
            p.qk_norm = {qk_norm, qk_norm_eps};
            p.rope.style = style_of(rope_style);
            p.rope.table = table_of(rope_table);
            p.rope.rotary_dim = rotary_dim;
            p.rope.q_offset = rope_q_offset;
            p.rope.k_offset = rope_k_offset;
            p.rope.rotate_q = rotate_q;
            p.rope.rotate_k = rotate_k;
            if (cast) p.dtype_policy = DTypePolicy::cast(dtype_of(*cast, "cast"));
            if (tf32) p.f32_precision = F32Precision::tf32;
            config.plan.choice = {kernel, backend, strict};
            config.plan.deterministic = deterministic;
            config.plan.self_check = self_check;
            config.plan.autotune = autotune;
            config.plan.num_threads = num_threads;
            new (self) Config(std::move(config));
          },
          nb::kw_only(), nb::arg("scale").none() = nb::none(),
          nb::arg("anchor").none() = nb::none(), nb::arg("left").none() = nb::none(),
          nb::arg("right").none() = nb::none(), nb::arg("softcap") = 0.0, nb::arg("dropout") = 0.0,
          nb::arg("seed") = 0, nb::arg("offset") = 0, nb::arg("row_origin") = 0,
          nb::arg("column_origin") = 0, nb::arg("max_q_len") = 0, nb::arg("max_kv_len") = 0,
          nb::arg("qk_norm") = false, nb::arg("qk_norm_eps") = 1e-6,
          nb::arg("rope_style") = "interleaved", nb::arg("rope_table") = "half",
          nb::arg("rotary_dim") = 0, nb::arg("rope_q_offset") = 0, nb::arg("rope_k_offset") = 0,
          nb::arg("rotate_q") = true, nb::arg("rotate_k") = true,
          nb::arg("cast").none() = nb::none(), nb::arg("tf32") = false, nb::arg("kernel") = "",
          nb::arg("backend") = "", nb::arg("strict") = false, nb::arg("deterministic") = false,
          nb::arg("self_check") = true, nb::arg("autotune") = false, nb::arg("num_threads") = 0);
}

}  // namespace fovea::python
