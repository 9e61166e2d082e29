// Causal attention over one batch of eight heads, and which kernel computed it.
#include <cstdio>
#include <vector>

#include <fovea/fovea.h>

int main() {
  using fovea::DType;
  constexpr std::int64_t batch = 1, heads = 8, seq = 256, dim = 64;
  std::vector<float> q(batch * heads * seq * dim), k(q.size()), v(q.size()), out(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = 0.001f * static_cast<float>(i % 997);
    k[i] = 0.001f * static_cast<float>(i % 991);
    v[i] = 1.0f;
  }

  fovea::ForwardArgs args;
  args.params.q = fovea::bhsd(q.data(), DType::f32, batch, heads, seq, dim);
  args.params.k = fovea::bhsd(k.data(), DType::f32, batch, heads, seq, dim);
  args.params.v = fovea::bhsd(v.data(), DType::f32, batch, heads, seq, dim);
  args.params.band = fovea::Band::causal(fovea::Anchor::top_left);
  args.out = fovea::bhsd(out.data(), DType::f32, batch, heads, seq, dim);

  fovea::Report report;
  const fovea::Status status = fovea::forward(args, {}, &report);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  // Every value is 1, so a weighted mean of values is 1.
  std::printf("fovea %s: %s, out[0] = %g\n", fovea::version(), report.kernel.c_str(),
              static_cast<double>(out[0]));
  return out[0] > 0.999f && out[0] < 1.001f ? 0 : 1;
}
