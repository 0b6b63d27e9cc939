#include "io/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string header_text(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{}", nlohmann::json(metadata).dump());
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : tensors) {
    TETRAD_CHECK(names.insert(spec.name).second, "tensor {} is declared twice", spec.name);
    const std::uint64_t end = offset + tensor_bytes(spec);
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "", quoted(spec.name),
                        dtype_name(spec.dtype), fmt::join(spec.shape, ","), offset, end);
    offset = end;
  }
  text += "}";
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

}  // namespace

std::uint64_t tensor_bytes(const TensorSpec& spec) {
  std::uint64_t bytes = dtype_size(spec.dtype);
  for (const auto length : spec.shape) {
    TETRAD_CHECK(length >= 0, "tensor {}: length {}", spec.name, length);
    TETRAD_CHECK(!__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes), "tensor {}: shape overflows", spec.name);
  }
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<TensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), partial_path_(path_.string() + ".part") {
  const std::string header = header_text(tensors, metadata);
  for (const TensorSpec& spec : tensors) expected_bytes_ += tensor_bytes(spec);
  out_.open(partial_path_, std::ios::binary | std::ios::trunc);
  std::array<char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  out_.write(length.data(), length.size());
  out_.write(header.data(), static_cast<std::streamsize>(header.size()));
  if (!out_) fail<InputError>("{}: cannot be written", partial_path_.string());
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_path_, ignored);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TETRAD_CHECK(bytes.size() <= expected_bytes_ - written_bytes_, "{}: more than the declared {} bytes", path_.string(), expected_bytes_);
  out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out_)
    fail<InputError>("{}: writing failed after {} of {} bytes; is the disk full?", path_.string(), written_bytes_, expected_bytes_);
  written_bytes_ += bytes.size();
}

void SafetensorsWriter::finish() {
  TETRAD_CHECK(written_bytes_ == expected_bytes_, "{}: {} bytes written, {} declared", path_.string(), written_bytes_, expected_bytes_);
  out_.close();
  if (!out_) fail<InputError>("{}: writing failed at the end; is the disk full?", path_.string());
  std::error_code error;
  std::filesystem::rename(partial_path_, path_, error);
  if (error) fail<InputError>("{}: cannot be renamed to {}: {}", partial_path_.string(), path_.string(), error.message());
  finished_ = true;
}

}  // namespace tetrad
