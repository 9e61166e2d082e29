#include "cpu/problem_args.h"

#include "contract/band.h"

namespace fovea::cpu {
namespace {

template <class Pointer, class View>
Strided<Pointer> strided(const View& view) {
  Strided<Pointer> s{};
  s.column = 1;
  if (!view.present()) return s;
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank; ++d) elements *= view.shape[static_cast<std::size_t>(d)];
  if (elements == 0) return s;
  s.data = static_cast<Pointer>(view.data);
  s.batch = view.strides[0];
  s.head = view.strides[1];
  s.row = view.strides[2];
  if (view.rank > 3) s.column = view.strides[3];
  return s;
}

}  // namespace

Input input(const TensorView& view) { return strided<const float*>(view); }
Output output(const MutableTensorView& view) { return strided<float*>(view); }
Output output(const MutableOperand& operand) {
  return operand.count > 0 ? output(operand.segments[0].tensor) : Output{};
}

DenseArgs dense_args(const Problem& p) {
  const ResolvedBand band = resolve(p.params.band, p.q_len, p.kv_len);
  return {{p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.v_head_dim},
          {band.below, band.above},
          p.scale,
          input(p.q()),
          input(p.k()),
          input(p.v()),
          0};
}

void run_on(const ThreadPool& pool, void (*task)(void*, int), void* args) {
  if (pool.run != nullptr) {
    pool.run(pool.self, task, args);
    return;
  }
  for (int worker = 0; worker < pool.threads; ++worker) task(args, worker);
}

Refusal supports_flash(const Problem& p) {
  return refuse_beyond_flash(p, kEveryFeature - (Feature::quantization | Feature::f64_lse));
}

Refusal supports_dense_f32(const Problem& p) {
  if (p.compute != DType::f32)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(p.compute), 0,
                            "f32");
  Features served = Feature::gqa | Feature::band;
  served.add(Feature::dlse);
  served.add(Feature::tf32);  // permits rounding, does not ask for it
  if (const Refusal refusal = refuse_features_beyond(p, served); !refusal.serves()) return refusal;
  return refuse_wide_heads(p);
}

}  // namespace fovea::cpu
