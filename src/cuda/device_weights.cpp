#include "cuda/device_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "cuda/kernels/random_fill.h"
#include "cuda/weight_packer.h"
#include "model/ngram_hash.h"
#include "model/rope_frequencies.h"
#include "model/weight_values.h"

namespace tetrad::cuda {
namespace {

// Tables up to this size lie in device memory: they cost little there and a gather is short.
constexpr std::size_t kDeviceTableBytes = std::size_t{2} << 30;

std::vector<float> one_plus(const WeightView& view) {
  std::vector<float> scale = weight_floats(view);
  for (float& w : scale) w = 1.0f + w;
  return scale;
}

// [channels, 1, width] -> [width, channels]
std::vector<float> tap_major(const WeightView& conv, int channels, int width) {
  const std::vector<float> values = weight_floats(conv);
  std::vector<float> taps(values.size());
  for (int c = 0; c < channels; ++c)
    for (int j = 0; j < width; ++j) taps[static_cast<std::size_t>(j) * channels + c] = values[static_cast<std::size_t>(c) * width + j];
  return taps;
}

DeviceHc place_hc(WeightPacker& packer, const HcWeights& w) {
  DeviceHc hc;
  hc.norm_scale = packer.floats([&] { return one_plus(w.norm); }, w.norm.num_elements());
  hc.down_inject = w.inject ? packer.linear({&w.down, &*w.inject}) : packer.linear({&w.down});
  hc.up = packer.linear({&w.up});
  return hc;
}

DeviceGdn place_gdn(WeightPacker& packer, const Config& c, const GdnWeights& w) {
  DeviceGdn gdn;
  gdn.in = packer.linear({&w.in_qkv, &w.in_z, &w.in_b, &w.in_a});
  gdn.conv = packer.floats([&] { return tap_major(w.conv, c.gdn_conv_dim(), c.gdn_conv_width); }, w.conv.num_elements());
  gdn.neg_exp_a = packer.floats(
      [&] {
        std::vector<float> a = weight_floats(w.a_log);
        for (float& x : a) x = -std::exp(x);
        return a;
      },
      w.a_log.num_elements());
  gdn.dt_bias = packer.floats([&] { return weight_floats(w.dt_bias); }, w.dt_bias.num_elements());
  gdn.norm = packer.floats([&] { return weight_floats(w.norm); }, w.norm.num_elements());
  gdn.out = packer.linear({&w.out});
  return gdn;
}

DeviceQsa place_qsa(WeightPacker& packer, const QsaWeights& w) {
  DeviceQsa qsa;
  qsa.in = packer.linear({&w.q, &w.k, &w.v, &w.index_qk});
  const auto scale = [&](const WeightView& view) { return packer.floats([&] { return one_plus(view); }, view.num_elements()); };
  qsa.q_norm = scale(w.q_norm);
  qsa.k_norm = scale(w.k_norm);
  qsa.index_q_norm = scale(w.index_q_norm);
  qsa.index_k_norm = scale(w.index_k_norm);
  qsa.out = packer.linear({&w.o});
  return qsa;
}

DeviceMoe place_moe(WeightPacker& packer, const MoeWeights& w) {
  DeviceMoe moe;
  moe.in = packer.linear({&w.router, &w.shared.gate_proj, &w.shared.up_proj, &w.shared_gate});
  // All experts' weights of a kind, then all their scales, so that strides are constant.
  std::vector<std::vector<const LinearView*>> gate_up, down;
  for (const ExpertWeights& expert : w.experts) {
    gate_up.push_back({&expert.gate_proj, &expert.up_proj});
    down.push_back({&expert.down_proj});
  }
  const ExpertLinears up = packer.expert_linears(gate_up), back = packer.expert_linears(down);
  moe.gate_up = up.first, moe.gate_up_stride = up.data_stride, moe.gate_up_scale_stride = up.scale_stride;
  moe.down = back.first, moe.down_stride = back.data_stride, moe.down_scale_stride = back.scale_stride;
  moe.shared_down = packer.linear({&w.shared.down_proj});
  return moe;
}

DevicePle place_ple(WeightPacker& packer, const Config& c, int layer, const PleWeights& w) {
  DevicePle ple;
  const NgramHash hash = make_ngram_hash(c, c.ple_index(layer));
  ple.key_value = packer.linear({&w.key_proj, &w.value_proj});
  const auto scale = [&](const WeightView& view) { return packer.floats([&] { return one_plus(view); }, view.num_elements()); };
  ple.norm_key = scale(w.norm_key);
  ple.norm_query = scale(w.norm_query);
  ple.norm_conv = scale(w.norm_conv);
  ple.conv = packer.floats([&] { return tap_major(w.conv, c.streams_size(), c.ple_conv_width); }, w.conv.num_elements());
  ple.multipliers = packer.integers(hash.multipliers);
  ple.head_sizes = packer.integers(hash.head_sizes);
  ple.head_offsets = packer.integers(hash.head_offsets);
  ple.fp8 = w.table.scale.has_value();
  ple.scale = ple.fp8 ? round_bf16(*w.table.scale) : 1.0f;
  ple.table_rows = w.table.first_row.back();
  return ple;
}

// The table's rows in order, FP8 codes or bf16.
void fill_table(const NgramTable& table, bool fp8, std::byte* to) {
  for (const WeightView& shard : table.shards) {
    const auto count = static_cast<std::size_t>(shard.num_elements());
    if (fp8 || shard.dtype == DType::kBF16) {
      std::memcpy(to, shard.data, count * (fp8 ? 1 : 2));
    } else {
      auto* out = reinterpret_cast<bf16*>(to);
      for (std::size_t i = 0; i < count; ++i) out[i] = to_bf16(weight_element(shard, static_cast<std::int64_t>(i)));
    }
    to += count * (fp8 ? 1 : 2);
  }
}

void load_table(DeviceModel& model, DevicePle& ple, const Config& c, const NgramTable& table, const Stream& stream) {
  const std::size_t bytes = static_cast<std::size_t>(ple.table_rows) * c.ngram_row_dim() * (ple.fp8 ? 1 : 2);
  PinnedBuffer<std::byte> host(bytes, "n-gram table");
  if (table.shards.front().data != nullptr) {
    fill_table(table, ple.fp8, host.data());
  } else {
    random_fill(host.data(), bytes / (ple.fp8 ? 1 : 2), ple.fp8 ? SourceType::kF8E4M3 : SourceType::kBF16, 1.0f, 1, stream);
    stream.synchronize();
  }
  if (bytes > kDeviceTableBytes) {
    ple.table = host.data();
    model.host_tables.push_back(std::move(host));
    return;
  }
  DeviceBuffer<std::byte> device(bytes, "n-gram table");
  stream.copy(device.data(), host.data(), bytes);
  stream.synchronize();
  ple.table = device.data();
  model.tables.push_back(std::move(device));
}

// Places everything in the order of the model: once to count, once to fill.
void place_model(DeviceModel& model, WeightPacker& packer, const Config& c, const ModelWeights& weights,
                 const std::function<void(int, int)>& progress) {
  model.layers.clear();
  model.embedding = packer.rows_bf16(weights.embed_tokens);
  const RopeFrequencies rope = rope_frequencies(c.rope);
  model.frequencies = packer.floats([&] { return rope.inverse; }, static_cast<std::int64_t>(rope.inverse.size()));
  model.rope_factor = rope.attention_factor;
  for (const LayerWeights& w : weights.layers) {
    DeviceLayer layer;
    layer.attn_hc = place_hc(packer, w.attn_hc);
    layer.mlp_hc = place_hc(packer, w.mlp_hc);
    if (w.gdn) layer.gdn = place_gdn(packer, c, *w.gdn);
    if (w.qsa) layer.qsa = place_qsa(packer, *w.qsa);
    if (w.ple) layer.ple = place_ple(packer, c, static_cast<int>(model.layers.size()), *w.ple);
    layer.moe = place_moe(packer, w.moe);
    model.layers.push_back(std::move(layer));
    if (packer.filling() && progress) progress(static_cast<int>(model.layers.size()), c.num_layers);
  }
  model.mixer = place_hc(packer, weights.mixer);
  model.lm_head = packer.linear({&weights.lm_head});
}

}  // namespace

DeviceModel load_device_model(const Config& config, const ModelWeights& weights, const Stream& stream,
                              const std::function<void(int, int)>& progress) {
  DeviceModel model;
  WeightPacker count(nullptr, stream);
  place_model(model, count, config, weights, {});
  model.memory = DeviceBuffer<std::byte>(count.bytes(), "weights");
  WeightPacker fill(model.memory.data(), stream);
  place_model(model, fill, config, weights, progress);
  for (std::size_t l = 0; l < model.layers.size(); ++l)
    if (weights.layers[l].ple) load_table(model, *model.layers[l].ple, config, weights.layers[l].ple->table, stream);
  stream.synchronize();
  return model;
}

}  // namespace tetrad::cuda
