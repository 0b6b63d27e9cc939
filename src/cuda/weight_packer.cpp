#include "cuda/weight_packer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cuda/kernels/random_fill.h"
#include "model/weight_values.h"

namespace tetrad::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr unsigned long long kNoNan = std::numeric_limits<unsigned long long>::max();

std::size_t element_bytes(DType dtype) { return dtype == DType::kF8E4M3 ? 1 : dtype == DType::kF32 ? 4 : 2; }

SourceType source_type(const WeightView& view) {
  switch (view.dtype) {
    case DType::kBF16: return SourceType::kBF16;
    case DType::kF16: return SourceType::kF16;
    case DType::kF32: return SourceType::kF32;
    case DType::kF8E4M3: return SourceType::kF8E4M3;
    default: fail<LoadError>("tensor {} is {}; the CUDA backend takes BF16, F16, F32 and F8_E4M3", view.name, dtype_name(view.dtype));
  }
}

// The geometry of a stack of views; data and scales are not placed yet.
DeviceLinear shape_of(std::span<const LinearView* const> views) {
  DeviceLinear w;
  const LinearView& first = *views.front();
  w.K = static_cast<int>(first.weight.shape.at(1));
  w.fp8 = first.weight.dtype == DType::kF8E4M3;
  w.block_columns = first.block_columns;
  bool on_fragments = true;
  for (const LinearView* view : views) {
    const WeightView& weight = view->weight;
    if (weight.shape.size() != 2 || weight.shape[1] != w.K || (weight.dtype == DType::kF8E4M3) != w.fp8)
      fail<LoadError>("tensor {} cannot be stacked below {}: another width or storage", weight.name, first.weight.name);
    if (w.fp8 && (!view->scale_inv || view->block_columns != w.block_columns || w.block_columns % kFragmentColumns != 0))
      fail<LoadError>("tensor {}: scale blocks of {} columns; the CUDA backend takes multiples of {}, use --device cpu", weight.name,
                      view->block_columns, kFragmentColumns);
    on_fragments = on_fragments && w.N % kFragmentRows == 0 && view->block_rows % kFragmentRows == 0;
    w.N += static_cast<int>(weight.shape[0]);
  }
  w.scale_rows = on_fragments ? kFragmentRows : 1;
  return w;
}

std::vector<float> scales_of(const DeviceLinear& w, std::span<const LinearView* const> views) {
  std::vector<float> scales(w.scale_count());
  const auto columns = static_cast<std::size_t>(w.scale_columns());
  int first_row = 0;
  for (const LinearView* view : views) {
    const WeightView& s = *view->scale_inv;
    const int rows = static_cast<int>(view->weight.shape[0]);
    for (int row = 0; row < rows; ++row)
      for (std::size_t c = 0; c < columns; ++c)
        scales[static_cast<std::size_t>((first_row + row) / w.scale_rows) * columns + c] =
            weight_element(s, row / view->block_rows * s.shape.at(1) + static_cast<std::int64_t>(c));
    first_row += rows;
  }
  return scales;
}

}  // namespace

std::byte* WeightPacker::place(std::size_t bytes) {
  std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

void WeightPacker::upload(void* to, const void* from, std::size_t bytes) {
  stream_.copy(to, from, bytes);
  stream_.synchronize();  // `from` may go away
}

const void* WeightPacker::stage(const WeightView& view) {
  const std::size_t bytes = static_cast<std::size_t>(view.num_elements()) * element_bytes(view.dtype);
  if (staging_.size() < bytes) {
    staging_ = {};  // the old one goes before the larger one comes
    staging_ = DeviceBuffer<std::byte>(bytes, "a tensor on its way");
  }
  if (view.data != nullptr)
    upload(staging_.data(), view.data, bytes);
  else
    make_up(view, staging_.data());
  return staging_.data();
}

void WeightPacker::make_up(const WeightView& view, void* to) {
  const float spread = 1.0f / std::sqrt(static_cast<float>(view.shape.back()));
  random_fill(to, static_cast<std::size_t>(view.num_elements()), source_type(view), spread, std::hash<std::string>()(view.name), stream_);
}

const float* WeightPacker::floats(const std::function<std::vector<float>()>& make, std::int64_t count) {
  auto* at = place(static_cast<std::size_t>(count) * sizeof(float));
  if (at != nullptr) {
    const std::vector<float> values = make();
    TETRAD_CHECK(static_cast<std::int64_t>(values.size()) == count, "{} values for {}", values.size(), count);
    upload(at, values.data(), values.size() * sizeof(float));
  }
  return reinterpret_cast<const float*>(at);
}

const std::int64_t* WeightPacker::integers(const std::vector<std::int64_t>& values) {
  auto* at = place(values.size() * sizeof(std::int64_t));
  if (at != nullptr) upload(at, values.data(), values.size() * sizeof(std::int64_t));
  return reinterpret_cast<const std::int64_t*>(at);
}

const bf16* WeightPacker::rows_bf16(const WeightView& view) {
  const auto count = static_cast<std::size_t>(view.num_elements());
  auto* at = place(count * sizeof(bf16));
  if (at != nullptr && view.data == nullptr) {
    make_up(view, at);
  } else if (at != nullptr && view.dtype == DType::kBF16) {
    upload(at, view.data, count * sizeof(bf16));
  } else if (at != nullptr) {
    std::vector<bf16> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = to_bf16(weight_element(view, static_cast<std::int64_t>(i)));
    upload(at, values.data(), count * sizeof(bf16));
  }
  return reinterpret_cast<const bf16*>(at);
}

DeviceLinear WeightPacker::linear(std::span<const LinearView* const> views) {
  DeviceLinear w = shape_of(views);
  w.data = place(w.data_bytes());
  if (w.fp8) w.scales = reinterpret_cast<const float*>(place(w.scale_count() * sizeof(float)));
  if (filling()) fill(w, views);
  return w;
}

ExpertLinears WeightPacker::expert_linears(const std::vector<std::vector<const LinearView*>>& experts) {
  ExpertLinears all;
  all.first = shape_of(experts.front());
  all.data_stride = all.first.data_bytes();
  all.scale_stride = all.first.fp8 ? all.first.scale_count() : 0;
  std::byte* data = place(all.data_stride * experts.size());
  std::byte* scales = place(all.scale_stride * sizeof(float) * experts.size());
  all.first.data = data;
  all.first.scales = reinterpret_cast<const float*>(scales);
  if (!filling()) return all;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    DeviceLinear w = shape_of(experts[e]);
    if (w.fp8 != all.first.fp8 || w.scale_rows != all.first.scale_rows || w.N != all.first.N || w.K != all.first.K)
      fail<LoadError>("tensor {} is stored otherwise than {}", experts[e].front()->weight.name, experts.front().front()->weight.name);
    w.data = data + e * all.data_stride;
    w.scales = reinterpret_cast<const float*>(scales) + e * all.scale_stride;
    fill(w, experts[e]);
  }
  return all;
}

void WeightPacker::fill(const DeviceLinear& w, std::span<const LinearView* const> views) {
  if (nan_at_.size() == 0) nan_at_ = DeviceBuffer<unsigned long long>(1, "a flag for NaN codes");
  int first_row = 0;
  for (const LinearView* view : views) {
    const int rows = static_cast<int>(view->weight.shape[0]);
    unsigned long long nan_at = kNoNan;
    if (w.fp8) upload(nan_at_.data(), &nan_at, sizeof(nan_at));
    pack_linear(w, const_cast<void*>(w.data), first_row, rows, stage(view->weight), source_type(view->weight), nan_at_.data(), stream_);
    if (w.fp8) {
      upload(&nan_at, nan_at_.data(), sizeof(nan_at));
      const auto width = static_cast<unsigned long long>(w.K);
      if (nan_at != kNoNan)
        fail<LoadError>("tensor {}: the code at [{}, {}] is a NaN; the file is damaged", view->weight.name, nan_at / width, nan_at % width);
    }
    first_row += rows;
  }
  if (!w.fp8) return;
  const std::vector<float> scales = scales_of(w, views);
  upload(const_cast<float*>(w.scales), scales.data(), scales.size() * sizeof(float));
}

}  // namespace tetrad::cuda
