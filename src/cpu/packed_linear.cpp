// PackedLinear: from a checkpoint's rows to the kernels' panels. The bytes of a checkpoint may start at any address.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "base/error.h"
#include "cpu/matmul.h"

namespace tetrad::cpu {
namespace {

constexpr int kMaxDimension = 1 << 30;
// The kernels carry 256 times a scale, which must stay finite.
constexpr float kMaxScale = 1e30f;

template <class T>
T load(const std::byte* data, std::int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t load_bf16(const WeightView& weight, std::int64_t i) {
  switch (weight.dtype) {
    case DType::kBF16: return load<std::uint16_t>(weight.data, i);
    case DType::kF16: return to_bf16(half_to_float(load<std::uint16_t>(weight.data, i))).bits;
    default: return to_bf16(load<float>(weight.data, i)).bits;
  }
}

struct Shape {
  int rows, columns;
};

Shape linear_shape(const WeightView& weight) {
  if (weight.shape.size() != 2)
    fail<LoadError>("tensor {}: a linear weight has 2 dimensions [out, in], got {}; check the checkpoint against its config", weight.name,
                    weight.shape.size());
  for (const std::int64_t d : weight.shape)
    if (d < 1 || d > kMaxDimension) fail<LoadError>("tensor {}: dimension {} is outside 1..{}", weight.name, d, kMaxDimension);
  if (weight.data == nullptr) fail<LoadError>("tensor {}: no data", weight.name);
  return {static_cast<int>(weight.shape[0]), static_cast<int>(weight.shape[1])};
}

void check_dtype(const WeightView& weight) {
  switch (weight.dtype) {
    case DType::kBF16:
    case DType::kF16:
    case DType::kF32:
    case DType::kF8E4M3: return;
    default:
      fail<LoadError>("tensor {}: dtype {} cannot be a linear weight; expected BF16, F16, F32 or F8_E4M3", weight.name,
                      dtype_name(weight.dtype));
  }
}

void check_scales(const LinearView& view, Shape shape) {
  const WeightView& weight = view.weight;
  if (!view.scale_inv) fail<LoadError>("tensor {}: F8_E4M3 without its scales; expected a weight_scale_inv tensor beside it", weight.name);
  const WeightView& scale = *view.scale_inv;
  if (view.block_rows < 1 || view.block_columns < 1 || view.block_columns % 2 != 0)
    fail<LoadError>("tensor {}: scale blocks of {} x {}; expected positive sizes and an even number of columns (weight_block_size)",
                    weight.name, view.block_rows, view.block_columns);
  if (scale.dtype != DType::kBF16 && scale.dtype != DType::kF32)
    fail<LoadError>("tensor {}: dtype {}; scales are BF16 or F32", scale.name, dtype_name(scale.dtype));
  const std::int64_t rows = (std::int64_t{shape.rows} + view.block_rows - 1) / view.block_rows;
  const std::int64_t columns = (std::int64_t{shape.columns} + view.block_columns - 1) / view.block_columns;
  if (scale.shape.size() != 2 || scale.shape[0] != rows || scale.shape[1] != columns || scale.data == nullptr)
    fail<LoadError>("tensor {}: expected shape [{}, {}], one scale per {} x {} block of {}", scale.name, rows, columns, view.block_rows,
                    view.block_columns, weight.name);
}

float load_scale(const WeightView& scale, std::int64_t row, std::int64_t column) {
  const std::int64_t i = row * scale.shape[1] + column;
  const float value = scale.dtype == DType::kBF16 ? to_float(bf16{load<std::uint16_t>(scale.data, i)}) : load<float>(scale.data, i);
  if (std::isfinite(value) && std::abs(value) > kMaxScale)
    fail<LoadError>("tensor {}: scale [{}, {}] is {}, beyond {}", scale.name, row, column, value, kMaxScale);
  return value;
}

}  // namespace

PackedLinear PackedLinear::pack(const LinearView& view) { return pack_rows({&view, 1}); }

PackedLinear PackedLinear::pack_rows(std::span<const LinearView> views) {
  TETRAD_CHECK(!views.empty(), "pack_rows: no weights");
  PackedLinear packed;
  const WeightView& front = views.front().weight;
  std::int64_t rows = 0;
  for (const LinearView& view : views) {
    const Shape shape = linear_shape(view.weight);
    check_dtype(view.weight);
    const bool fp8 = view.weight.dtype == DType::kF8E4M3;
    if (fp8) check_scales(view, shape);
    if (&view == &views.front()) {
      packed.columns_ = shape.columns;
      packed.fp8_ = fp8;
      packed.block_columns_ = fp8 ? view.block_columns : 0;
    }
    if (shape.columns != packed.columns_)
      fail<LoadError>("tensor {}: {} columns, but {} beside it has {}", view.weight.name, shape.columns, front.name, packed.columns_);
    if (fp8 != packed.fp8_ || (fp8 && view.block_columns != packed.block_columns_))
      fail<LoadError>("tensor {}: stored otherwise than {} beside it; expected both in FP8 with equal blocks, or neither", view.weight.name,
                      front.name);
    rows += shape.rows;
  }
  if (rows > kMaxDimension) fail<LoadError>("tensor {}: {} rows with the weights beside it; at most {}", front.name, rows, kMaxDimension);
  packed.rows_ = static_cast<int>(rows);
  packed.num_blocks_ = packed.fp8_ ? (packed.columns_ + packed.block_columns_ - 1) / packed.block_columns_ : 0;
  packed.data_ = AlignedBuffer<std::uint8_t>(static_cast<std::size_t>(packed.num_panels()) * packed.panel_bytes());
  packed.scales_ = AlignedBuffer<float>(static_cast<std::size_t>(packed.num_panels()) * packed.num_blocks_ * kPanelWidth);
  int row = 0;
  for (const LinearView& view : views) {
    packed.fp8_ ? packed.place_fp8(view, row) : packed.place_bf16(view.weight, row);
    row += static_cast<int>(view.weight.shape[0]);
  }
  return packed;
}

void PackedLinear::place_bf16(const WeightView& weight, int first_row) {
  for (std::int64_t r = 0; r < weight.shape[0]; ++r) {
    const auto n = static_cast<int>(first_row + r);
    std::uint8_t* out = data_.data() + static_cast<std::size_t>(n / kPanelWidth) * panel_bytes() + (n % kPanelWidth) * 4;
    for (int k = 0; k < columns_; ++k) {
      const std::uint16_t bits = load_bf16(weight, r * columns_ + k);
      std::memcpy(out + static_cast<std::size_t>(k / 2) * kPanelWidth * 4 + (k % 2) * 2, &bits, sizeof(bits));
    }
  }
}

void PackedLinear::place_fp8(const LinearView& view, int first_row) {
  const WeightView& weight = view.weight;
  for (std::int64_t r = 0; r < weight.shape[0]; ++r) {
    const auto n = static_cast<int>(first_row + r);
    const int p = n / kPanelWidth, lane = n % kPanelWidth;
    std::uint8_t* out = data_.data() + static_cast<std::size_t>(p) * panel_bytes() + lane * 2;
    for (int k = 0; k < columns_; ++k) {
      const auto code = load<std::uint8_t>(weight.data, r * columns_ + k);
      if ((code & 0x7fu) == 0x7fu)
        fail<LoadError>("tensor {}: element [{}, {}] is NaN (code {:#04x}); the checkpoint is damaged, fetch it again", weight.name, r, k,
                        code);
      out[static_cast<std::size_t>(k / 2) * kPanelWidth * 2 + (k % 2)] = code;
    }
    float* scales = scales_.data() + static_cast<std::size_t>(p) * num_blocks_ * kPanelWidth + lane;
    for (int b = 0; b < num_blocks_; ++b) scales[b * kPanelWidth] = 256.0f * load_scale(*view.scale_inv, r / view.block_rows, b);
  }
}

}  // namespace tetrad::cpu
