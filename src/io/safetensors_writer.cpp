#include "io/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

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

// Replacing a device, a pipe or a directory by a file would destroy it.
void refuse_special(const std::filesystem::path& path, std::filesystem::file_status status) {
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail<InputError>("{}: is not a regular file and is left alone; name a file that may be replaced", path.string());
}

// The file that stands at the end of symbolic links, whether it exists or not.
std::filesystem::path follow_links(const std::filesystem::path& path) {
  constexpr int kMaxLinks = 40;
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(target, error)); ++links) {
    if (links == kMaxLinks) fail<InputError>("{}: more than {} symbolic links follow each other", path.string(), kMaxLinks);
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) fail<InputError>("{}: the symbolic link {} cannot be read: {}", path.string(), target.string(), error.message());
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  refuse_special(path, std::filesystem::status(target, error));
  return target;
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
    : path_(follow_links(path)), partial_path_(path_.string() + ".part") {
  std::error_code ignored;
  refuse_special(partial_path_, std::filesystem::symlink_status(partial_path_, ignored));
  const std::string header = header_text(tensors, metadata);
  for (const TensorSpec& spec : tensors) expected_bytes_ += tensor_bytes(spec);
  out_.open(partial_path_, std::ios::binary | std::ios::trunc);
  if (!out_) fail<InputError>("{}: cannot be written: {}", path_.string(), std::generic_category().message(errno));
  std::array<char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  out_.write(length.data(), length.size());
  out_.write(header.data(), static_cast<std::streamsize>(header.size()));
  if (!out_) fail<InputError>("{}: writing failed at the start; is the disk full?", path_.string());
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
