#include "engine/golden_file.h"

#include <cstring>

#include "base/bf16.h"
#include "base/error.h"

namespace tetrad {
namespace {

template <class Out, class In, class Convert>
std::vector<Out> convert(std::span<const std::byte> bytes, Convert to_out) {
  std::vector<Out> values(bytes.size() / sizeof(In));
  for (std::size_t i = 0; i < values.size(); ++i) {
    In in;
    std::memcpy(&in, bytes.data() + i * sizeof(In), sizeof(In));
    values[i] = to_out(in);
  }
  return values;
}

}  // namespace

std::vector<float> GoldenFile::floats(const std::string& name) const {
  const TensorInfo& info = file_.at(name);
  if (info.dtype == DType::kBF16) return convert<float, bf16>(file_.bytes(info), [](bf16 x) { return to_float(x); });
  if (info.dtype == DType::kF32) return convert<float, float>(file_.bytes(info), [](float x) { return x; });
  fail<LoadError>("golden tensor {} is {}, a float type was expected", name, dtype_name(info.dtype));
}

std::vector<std::int64_t> GoldenFile::integers(const std::string& name) const {
  const TensorInfo& info = file_.at(name);
  if (info.dtype == DType::kI32) return convert<std::int64_t, std::int32_t>(file_.bytes(info), [](std::int32_t x) { return x; });
  if (info.dtype == DType::kI64) return convert<std::int64_t, std::int64_t>(file_.bytes(info), [](std::int64_t x) { return x; });
  if (info.dtype == DType::kU8) return convert<std::int64_t, std::uint8_t>(file_.bytes(info), [](std::uint8_t x) { return x; });
  fail<LoadError>("golden tensor {} is {}, an integer type was expected", name, dtype_name(info.dtype));
}

void GoldenFile::check_count(const std::string& name, std::size_t got, std::size_t expected) const {
  if (got != expected) fail<LoadError>("{}: tensor {}: expected {} elements, got {}", file_.file().path().string(), name, expected, got);
}

std::vector<float> GoldenFile::floats(const std::string& name, std::size_t count) const {
  std::vector<float> values = floats(name);
  check_count(name, values.size(), count);
  return values;
}

std::vector<std::int64_t> GoldenFile::integers(const std::string& name, std::size_t count) const {
  std::vector<std::int64_t> values = integers(name);
  check_count(name, values.size(), count);
  return values;
}

}  // namespace tetrad
