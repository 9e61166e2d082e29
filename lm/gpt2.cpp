#include "lm/gpt2.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "lm/error.h"
#include "lm/ops.h"

namespace fovea::lm {
namespace {

constexpr double kInitialDeviation = 0.02;

bool ends_with(const std::string& name, const char* end) { return name.ends_with(end); }

// [batch, seq, width] -> [batch, 1, width], the last position (no gradient)
Tensor last_position(const Tensor& x) {
  const std::int64_t batch = x.dim(0);
  const std::int64_t seq = x.dim(1);
  const std::int64_t width = x.dim(2);
  return x.strided((seq - 1) * width, {batch, 1, width}, {seq * width, width, 1}).clone();
}

}  // namespace

KvCache::KvCache(const Gpt2Config& config, std::int64_t batch) : capacity_(config.n_positions) {
  const std::int64_t heads = config.n_head;
  const std::int64_t dim = config.head_dim();
  const auto make = [&] {
    return Tensor::empty({batch, capacity_, heads, dim})
        .strided(0, {batch, heads, capacity_, dim}, {capacity_ * heads * dim, dim, heads * dim, 1});
  };
  for (std::int64_t i = 0; i < config.n_layer; ++i) layers_.push_back({make(), make()});
}

void KvCache::truncate(std::int64_t length) {
  if (length < 0 || length > length_) {
    fail("[kv cache] the new length must be 0 to {}; got {}", length_, length);
  }
  length_ = length;
}

std::vector<Gpt2::ParameterShape> Gpt2::parameter_shapes(const Gpt2Config& config) {
  const std::int64_t width = config.n_embd;
  std::vector<ParameterShape> shapes = {{"wte.weight", {config.vocab_size, width}},
                                        {"wpe.weight", {config.n_positions, width}}};
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    const auto put = [&](const char* name, Shape shape) {
      shapes.push_back({fmt::format("h.{}.{}", i, name), std::move(shape)});
    };
    put("ln_1.weight", {width});
    put("ln_1.bias", {width});
    put("attn.c_attn.weight", {width, 3 * width});
    put("attn.c_attn.bias", {3 * width});
    put("attn.c_proj.weight", {width, width});
    put("attn.c_proj.bias", {width});
    put("ln_2.weight", {width});
    put("ln_2.bias", {width});
    put("mlp.c_fc.weight", {width, 4 * width});
    put("mlp.c_fc.bias", {4 * width});
    put("mlp.c_proj.weight", {4 * width, width});
    put("mlp.c_proj.bias", {width});
  }
  shapes.push_back({"ln_f.weight", {width}});
  shapes.push_back({"ln_f.bias", {width}});
  return shapes;
}

std::size_t Gpt2::parameter_tensors(const Gpt2Config& config) {
  return 4 + 12 * static_cast<std::size_t>(config.n_layer);
}

Gpt2::Gpt2(const Gpt2Config& config) : config_(config) {
  config_.validate();
  for (const ParameterShape& shape : parameter_shapes(config_)) {
    parameters_.push_back({shape.name, Var::parameter(Tensor::empty(shape.shape))});
  }
  std::size_t next = 0;
  const auto take = [&](auto&... vars) { ((vars = parameters_[next++].var), ...); };
  take(token_table_, position_table_);
  blocks_.resize(static_cast<std::size_t>(config_.n_layer));
  for (Block& b : blocks_) {
    take(b.norm1_gain, b.norm1_shift, b.qkv_weight, b.qkv_bias, b.out_weight, b.out_bias);
    take(b.norm2_gain, b.norm2_shift, b.up_weight, b.up_bias, b.down_weight, b.down_bias);
  }
  take(norm_gain_, norm_shift_);
}

Gpt2::Gpt2(const Gpt2Config& config, Rng& rng) : Gpt2(config) {
  const double residual = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  for (const Parameter& parameter : parameters_) {
    const std::span<float> values = parameter.var.value().values();
    if (values.size() == 0) continue;
    if (parameter.var.value().rank() == 1) {
      const bool gain = ends_with(parameter.name, ".weight");
      std::fill(values.begin(), values.end(), gain ? 1.0F : 0.0F);
      continue;
    }
    const double deviation =
        ends_with(parameter.name, "c_proj.weight") ? residual : kInitialDeviation;
    for (float& value : values) value = static_cast<float>(deviation * rng.normal());
  }
}

void Gpt2::set_attention_backend(const std::string& name) {
  check_attention_backend(name);
  config_.attention_backend = name;
}

std::int64_t Gpt2::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.var.value().numel();
  return count;
}

Var Gpt2::attention(Tape& tape, const Block& block, const Var& x, std::size_t layer,
                    const ForwardOptions& options) const {
  auto [q, k, v] =
      split_qkv(tape, linear(tape, x, block.qkv_weight, block.qkv_bias), config_.n_head);
  if (options.cache != nullptr) {
    const KvCache::Layer& cached = options.cache->layers_[layer];
    const std::int64_t before = options.cache->length_;
    const std::int64_t seq = k.value().dim(2);
    const auto part = [&](const Tensor& all, std::int64_t first, std::int64_t count) {
      Shape shape = all.shape();
      shape[2] = count;
      return all.strided(first * all.strides()[2], std::move(shape), all.strides());
    };
    copy_into(part(cached.k, before, seq), k.value());
    copy_into(part(cached.v, before, seq), v.value());
    k = part(cached.k, 0, before + seq);
    v = part(cached.v, 0, before + seq);
  }
  AttentionOptions attend;
  attend.backend = config_.attention_backend;
  attend.band = Band::causal(Anchor::bottom_right);
  attend.job = options.job;
  return merge_heads(tape, scaled_dot_product_attention(tape, q, k, v, std::nullopt, attend));
}

Var Gpt2::forward(Tape& tape, std::span<const std::int32_t> tokens, std::int64_t batch,
                  std::int64_t seq, const ForwardOptions& options) const {
  const std::int64_t first = options.cache != nullptr ? options.cache->length_ : 0;
  if (batch < 1 || seq < 1)
    fail("[gpt2] batch and seq must be at least 1; got {} and {}", batch, seq);
  if (seq > config_.n_positions - first) {
    fail(
        "[gpt2] the context is longer than the model's {} positions; got {} tokens behind {} "
        "cached",
        config_.n_positions, seq, first);
  }
  if ((options.cache != nullptr || options.last_only) && tape.records(token_table_)) {
    fail("[gpt2] a KV cache and last_only carry no gradient: use a tape that does not record");
  }
  if (options.cache != nullptr && options.cache->layers_.at(0).k.dim(0) != batch) {
    fail("[gpt2] the KV cache was made for batch {}; got batch {}",
         options.cache->layers_.at(0).k.dim(0), batch);
  }

  const double eps = config_.layer_norm_epsilon;
  Var x = embedding(tape, token_table_, position_table_, tokens, batch, seq, first);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    Var y = layer_norm(tape, x, b.norm1_gain, b.norm1_shift, eps);
    y = attention(tape, b, y, i, options);
    x = add(tape, x, linear(tape, y, b.out_weight, b.out_bias));
    y = layer_norm(tape, x, b.norm2_gain, b.norm2_shift, eps);
    y = gelu(tape, linear(tape, y, b.up_weight, b.up_bias));
    x = add(tape, x, linear(tape, y, b.down_weight, b.down_bias));
  }
  if (options.cache != nullptr) options.cache->length_ += seq;
  if (options.last_only) x = last_position(x.value());
  x = layer_norm(tape, x, norm_gain_, norm_shift_, eps);
  return linear(tape, x, token_table_, std::nullopt, WeightLayout::out_in);
}

}  // namespace fovea::lm
