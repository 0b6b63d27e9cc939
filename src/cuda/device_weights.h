#pragma once
// The weights as the kernels read them: linears in fragments (kernels/linear.h), small vectors as floats, one allocation for all of it; the
// n-gram table apart, in device memory or, when large, in pinned host memory.
#include <functional>
#include <optional>
#include <vector>

#include "cuda/kernels/linear.h"
#include "cuda/runtime/memory.h"
#include "model/weights.h"

namespace tetrad::cuda {

struct DeviceHc {
  const float* norm_scale = nullptr;  // [HC*D] 1 + w
  DeviceLinear down_inject;           // [LR (+ HC), HC*D]
  DeviceLinear up;                    // [HC*D, LR]
};

struct DeviceGdn {
  DeviceLinear in;                                                                         // [conv_dim + HV*V + HV + HV, D]: qkv, z, b, a
  const float *conv = nullptr, *neg_exp_a = nullptr, *dt_bias = nullptr, *norm = nullptr;  // [W, conv_dim], [HV], [HV], [V]
  DeviceLinear out;
};

struct DeviceQsa {
  DeviceLinear in;  // q with output gate, k, v, index_qk
  const float *q_norm = nullptr, *k_norm = nullptr, *index_q_norm = nullptr, *index_k_norm = nullptr;
  DeviceLinear out;
};

struct DeviceMoe {
  DeviceLinear in;                                              // [E + 2*FS + 1, D]: router, the shared expert's gate and up, its own gate
  DeviceLinear gate_up, down;                                   // of expert 0; the others follow at the strides
  std::size_t gate_up_stride = 0, down_stride = 0;              // bytes
  std::size_t gate_up_scale_stride = 0, down_scale_stride = 0;  // floats
  DeviceLinear shared_down;
};

struct DevicePle {
  DeviceLinear key_value;  // [HC*D + D, ple_embed_dim]
  const float *norm_key = nullptr, *norm_query = nullptr, *norm_conv = nullptr, *conv = nullptr;
  const std::int64_t *multipliers = nullptr, *head_sizes = nullptr, *head_offsets = nullptr;
  const void* table = nullptr;
  bool fp8 = false;
  float scale = 1.0f;
  std::int64_t table_rows = 0;
};

struct DeviceLayer {
  DeviceHc attn_hc, mlp_hc;
  std::optional<DeviceGdn> gdn;
  std::optional<DeviceQsa> qsa;
  DeviceMoe moe;
  std::optional<DevicePle> ple;
};

struct DeviceModel {
  const bf16* embedding = nullptr;     // [V, D]
  const float* frequencies = nullptr;  // [DR/2]
  float rope_factor = 1.0f;
  std::vector<DeviceLayer> layers;
  DeviceHc mixer;
  DeviceLinear lm_head;

  DeviceBuffer<std::byte> memory;               // everything above
  std::vector<DeviceBuffer<std::byte>> tables;  // n-gram tables on the device
  std::vector<PinnedBuffer<std::byte>> host_tables;
};

// Copies and packs all weights. Throws LoadError naming the tensor for what the kernels cannot take (a NaN code, scale blocks that are no
// multiple of 32 columns) and when the device has no room; nothing is left allocated then.
DeviceModel load_device_model(const Config& config, const ModelWeights& weights, const Stream& stream,
                              const std::function<void(int layers_done, int layers)>& progress);

}  // namespace tetrad::cuda
