#include "contract/refusal.h"

#include "contract/format.h"

namespace fovea {

std::string render(const Refusal& r) {
  switch (r.code) {
    case RefusalCode::none:
      return "";
    case RefusalCode::feature:
      return formatted("does not serve {}", name_of(static_cast<Feature>(r.a)));
    case RefusalCode::compute_dtype:
      return formatted("compute dtype {} is not served (serves {})",
                       name_of(static_cast<DType>(r.a)), r.text);
    case RefusalCode::head_dim:
      return formatted("head_dim {} > {}", r.a, r.b);
    case RefusalCode::v_head_dim:
      return formatted("v_head_dim {} > {}", r.a, r.b);
    case RefusalCode::q_len:
      return formatted("q_len {} > {}", r.a, r.b);
    case RefusalCode::query_rows:
      return formatted("{} query rows share a KV head > {}", r.a, r.b);
    case RefusalCode::instruction_set:
      return formatted("this CPU lacks {}", r.text);
    case RefusalCode::limited_by_env:
      return formatted("ruled out by {}", r.text);
    case RefusalCode::device_type:
      return formatted("does not run on {}", name_of(static_cast<DeviceType>(r.a)));
    case RefusalCode::self_check_failed:
      return formatted("failed its self-check: error {:.3g} > {:.3g}", r.value, r.limit);
    case RefusalCode::explicit_only:
      return "serves only when chosen by name";
    case RefusalCode::not_chosen:
      return formatted("excluded by {}", r.text);
    case RefusalCode::slower:
      return formatted("measured slower: {:.4g} ms, against {:.4g} ms", r.value, r.limit);
    case RefusalCode::other:
      return r.text;
  }
  return "unknown reason";
}

std::string kind_of(const Refusal& r) {
  switch (r.code) {
    case RefusalCode::feature:
      return formatted("feature: {}", name_of(static_cast<Feature>(r.a)));
    case RefusalCode::compute_dtype:
      return "compute dtype";
    case RefusalCode::head_dim:
      return "head_dim";
    case RefusalCode::v_head_dim:
      return "v_head_dim";
    case RefusalCode::q_len:
      return "q_len";
    case RefusalCode::query_rows:
      return "query rows";
    case RefusalCode::instruction_set:
      return "instruction set";
    case RefusalCode::self_check_failed:
      return "self-check failed";
    case RefusalCode::slower:
      return "measured slower";
    default:
      return render(r);
  }
}

Refusal refuse_features_beyond(const Problem& problem, Features served) {
  const Features missing = problem.features - served;
  for (int bit = 0; bit < kFeatureCount; ++bit) {
    const auto feature = static_cast<Feature>(1u << bit);
    if (missing.has(feature))
      return Refusal::because(RefusalCode::feature, static_cast<std::int64_t>(feature));
  }
  return Refusal::accept();
}

Refusal refuse_wide_heads(const Problem& p) {
  if (p.head_dim > kMaxHeadDim)
    return Refusal::because(RefusalCode::head_dim, p.head_dim, kMaxHeadDim);
  if (p.v_head_dim > kMaxHeadDim)
    return Refusal::because(RefusalCode::v_head_dim, p.v_head_dim, kMaxHeadDim);
  return Refusal::accept();
}

Refusal refuse_beyond_flash(const Problem& p, Features served) {
  if (p.compute == DType::f64)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(p.compute), 0,
                            "f32, f16, bf16");
  if (Refusal refusal = refuse_wide_heads(p); !refusal.serves()) return refusal;
  return refuse_features_beyond(p, served);
}

}  // namespace fovea
