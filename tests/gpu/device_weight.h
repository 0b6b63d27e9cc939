#pragma once
// Weights as the kernels take them, beside their values on the host: one linear, and the experts of a layer at constant strides.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fp8.h"
#include "cuda/kernels/linear.h"
#include "device_arrays.h"

namespace tetrad::cuda::test {

struct Weight {
  int N, K;
  bool fp8;
  std::vector<bf16> values;   // [N, K] as bf16; FP8: of the codes, unscaled
  std::vector<float> scales;  // as DeviceLinear has them
  DeviceBuffer<std::byte> data;
  DeviceBuffer<float> device_scales;
  DeviceLinear linear;

  Weight(int N_, int K_, bool fp8_, unsigned seed, const Stream& stream, int block_columns = 128, int scale_rows = 1)
      : N(N_), K(K_), fp8(fp8_) {
    shape(block_columns, scale_rows);
    const std::size_t count = static_cast<std::size_t>(N) * static_cast<std::size_t>(K);
    if (!fp8) {
      values = random_bf16(count, seed, 1.0f / std::sqrt(static_cast<float>(K)));
      pack(to_device(values, stream).data(), SourceType::kBF16, stream);
      return;
    }
    std::mt19937 random(seed);
    std::vector<std::uint8_t> codes(count);
    for (auto& c : codes) {
      do c = static_cast<std::uint8_t>(random());
      while ((c & 0x7f) == 0x7f);
    }
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = to_bf16(e4m3_to_float(codes[i]));
    scales.resize(linear.scale_count());
    for (auto& s : scales) s = 0.001f + static_cast<float>(random() % 1000) * 1e-5f;
    device_scales = to_device(scales, stream);
    linear.scales = device_scales.data();
    pack(to_device(codes, stream).data(), SourceType::kF8E4M3, stream);
  }
  // bf16 with values of one's own.
  Weight(int N_, int K_, std::vector<bf16> values_, const Stream& stream) : N(N_), K(K_), fp8(false), values(std::move(values_)) {
    shape(0, 1);
    pack(to_device(values, stream).data(), SourceType::kBF16, stream);
  }

  double at(int n, int k) const {
    const double v = to_float(values[static_cast<std::size_t>(n) * static_cast<std::size_t>(K) + static_cast<std::size_t>(k)]);
    return fp8 ? v * scales[static_cast<std::size_t>(n / linear.scale_rows * linear.scale_columns() + k / linear.block_columns)] : v;
  }

 private:
  void shape(int block_columns, int scale_rows) {
    linear.N = N, linear.K = K, linear.fp8 = fp8;
    linear.block_columns = fp8 ? block_columns : 0;
    linear.scale_rows = scale_rows;
    data = DeviceBuffer<std::byte>(linear.data_bytes(), "weight");
    linear.data = data.data();
  }
  void pack(const void* source, SourceType type, const Stream& stream) {
    DeviceBuffer<unsigned long long> nan_at(1, "flag");
    pack_linear(linear, data.data(), 0, N, source, type, nan_at.data(), stream);
    stream.synchronize();
  }
};

// E weights of one shape, one after the other.
struct Experts {
  std::vector<Weight> each;
  DeviceBuffer<std::byte> data;
  DeviceBuffer<float> scales;
  DeviceLinear linear;  // of the first
  std::size_t stride, scale_stride;

  Experts(int E, int N, int K, bool fp8, unsigned seed, const Stream& stream, int block_columns = 128, int scale_rows = 1) {
    for (int e = 0; e < E; ++e) each.emplace_back(N, K, fp8, seed + static_cast<unsigned>(e), stream, block_columns, scale_rows);
    stride = each[0].linear.data_bytes(), scale_stride = each[0].scales.size();
    data = DeviceBuffer<std::byte>(stride * each.size(), "experts");
    scales = DeviceBuffer<float>(std::max<std::size_t>(scale_stride * each.size(), 1), "scales");
    for (std::size_t e = 0; e < each.size(); ++e) {
      stream.copy(data.data() + e * stride, each[e].data.data(), stride);
      stream.copy(scales.data() + e * scale_stride, each[e].device_scales.data(), scale_stride * sizeof(float));
    }
    stream.synchronize();
    linear = each[0].linear;
    linear.data = data.data();
    linear.scales = fp8 ? scales.data() : nullptr;
  }
};

// Largest distance of got from a linear's y in double, counted in what rounding allows: half a unit of bf16, and float32 sums of K terms,
// each addition off by at most 2^-23 of the magnitude. Rows ldy apart; x_row(t) is row t of x.
template <class Row>
double linear_distance(const Weight& w, int T, Row x_row, const std::vector<bf16>& got, int ldy) {
  double worst = 0;
  for (int t = 0; t < T; ++t)
    for (int n = 0; n < w.N; ++n) {
      double sum = 0, magnitude = 0;
      const bf16* x = x_row(t);
      for (int k = 0; k < w.K; ++k) {
        const double product = to_float(x[k]) * w.at(n, k);
        sum += product, magnitude += std::fabs(product);
      }
      const double allowed = std::fabs(sum) * 0x1p-8 + magnitude * w.K * 0x1p-24 + 1e-30;
      const double error = std::fabs(to_float(got[static_cast<std::size_t>(t) * static_cast<std::size_t>(ldy) + n]) - sum) / allowed;
      if (!(error <= worst)) worst = error;
    }
  return worst;
}

}  // namespace tetrad::cuda::test
