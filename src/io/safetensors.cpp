#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json_reason.h"

namespace tetrad {
namespace {

// Receives the header's JSON event by event, so that a repeated name is seen and nothing but the expected structure is ever stored:
//   { "__metadata__": { key: text }, name: { "dtype": text, "shape": [n...], "data_offsets": [begin, end] } }
class HeaderReader {
 public:
  HeaderReader(SafetensorsHeader& header, std::string_view where) : header_(header), where_(where) {}

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) { return unexpected(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) { return unexpected("the number " + text); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& text);
  bool start_object(std::size_t);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool key(std::string& name);
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) {
    fail<LoadError>("{}: the header is not valid JSON at byte {}: {}", where_, position, json_reason(e));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] bool unexpected(std::string_view got) const {
    if (tensor_.name.empty()) fail<LoadError>("{}: the header must be one JSON object of tensors, got {}", where_, got);
    if (field_.empty()) fail<LoadError>("{}: tensor {}: {} where its header entry, an object, should be", where_, tensor_.name, got);
    fail<LoadError>("{}: tensor {}: {} in \"{}\" of its header entry", where_, tensor_.name, got, field_);
  }
  void check_tensor();

  SafetensorsHeader& header_;
  std::string_view where_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::string field_;
  std::vector<std::uint64_t> numbers_;
  TensorInfo tensor_;
};

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (place_ != Place::kShape && place_ != Place::kOffsets) unexpected(fmt::format("the number {}", value));
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    unexpected(fmt::format("the number {} (at most 2^63-1)", value));
  if (numbers_.size() >= kMaxTensorRank) unexpected(fmt::format("more than {} numbers", kMaxTensorRank));
  numbers_.push_back(value);
  return true;
}

bool HeaderReader::string(std::string& text) {
  if (place_ == Place::kMetadata) {
    header_.metadata[field_] = text;
    return true;
  }
  if (place_ != Place::kTensor || field_ != "dtype") unexpected(fmt::format("the text \"{}\"", text));
  const auto dtype = parse_dtype(text);
  if (!dtype)
    fail<LoadError>("{}: tensor {}: dtype \"{}\" is not known (expected BF16, F16, F32, F8_E4M3, U8, I32 or I64)", where_, tensor_.name,
                    text);
  tensor_.dtype = *dtype;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  switch (place_) {
    case Place::kStart: place_ = Place::kTop; return true;
    case Place::kTop:
      place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
      fields_.clear();
      field_.clear();
      return true;
    default: unexpected("an object");
  }
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTensor) check_tensor();
  place_ = Place::kTop;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (place_ != Place::kTensor || field_ == "dtype") unexpected("an array");
  numbers_.clear();
  place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::kShape) {
    tensor_.shape.assign(numbers_.begin(), numbers_.end());
  } else {
    if (numbers_.size() != 2)
      fail<LoadError>("{}: tensor {}: data_offsets has {} numbers, expected 2", where_, tensor_.name, numbers_.size());
    tensor_.begin = numbers_[0];
    tensor_.end = numbers_[1];
  }
  place_ = Place::kTensor;
  return true;
}

bool HeaderReader::key(std::string& name) {
  if (place_ == Place::kTop) {
    if (name.empty()) fail<LoadError>("{}: the header has a tensor without a name", where_);
    if (!names_.insert(name).second) fail<LoadError>("{}: tensor {} is given twice in the header", where_, name);
    tensor_ = TensorInfo{};
    tensor_.name = name;
    field_.clear();
    return true;
  }
  if (!fields_.insert(name).second) fail<LoadError>("{}: tensor {}: \"{}\" is given twice", where_, tensor_.name, name);
  field_ = name;
  if (place_ == Place::kTensor && name != "dtype" && name != "shape" && name != "data_offsets")
    fail<LoadError>("{}: tensor {}: \"{}\" is not a field of a tensor (expected dtype, shape, data_offsets)", where_, tensor_.name, name);
  return true;
}

void HeaderReader::check_tensor() {
  for (const char* field : {"dtype", "shape", "data_offsets"})
    if (!fields_.contains(field)) fail<LoadError>("{}: tensor {}: \"{}\" is missing from its header entry", where_, tensor_.name, field);
  if (tensor_.begin > tensor_.end)
    fail<LoadError>("{}: tensor {}: data_offsets run backward: [{}, {}]", where_, tensor_.name, tensor_.begin, tensor_.end);
  std::uint64_t bytes = dtype_size(tensor_.dtype);
  for (const auto length : tensor_.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes))
      fail<LoadError>("{}: tensor {}: shape {} overflows 64 bits", where_, tensor_.name, shape_text(tensor_.shape));
  }
  if (tensor_.end - tensor_.begin != bytes)
    fail<LoadError>("{}: tensor {}: {} {} needs {} bytes, data_offsets [{}, {}] give {}", where_, tensor_.name, dtype_name(tensor_.dtype),
                    shape_text(tensor_.shape), bytes, tensor_.begin, tensor_.end, tensor_.end - tensor_.begin);
  header_.tensors.push_back(tensor_);
}

// The tensors must cover the data section exactly: no gap, no overlap, no byte short, no byte too many.
void check_coverage(SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view where) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  std::uint64_t covered = 0;
  std::string_view previous = "the start of the data";
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != covered)
      fail<LoadError>("{}: tensor {}: its data starts at byte {} and {} {} at byte {}: the tensors {}", where, tensor.name, tensor.begin,
                      previous, covered == 0 ? "is" : "ends", covered, tensor.begin < covered ? "overlap" : "leave a gap");
    covered = tensor.end;
    previous = tensor.name;
    if (covered > data_bytes)
      fail<LoadError>(
          "{}: tensor {}: its data ends at byte {} of the data section, the file has only {} there: the file is cut short "
          "(expected {} bytes in all, got {}); download it again",
          where, tensor.name, covered, data_bytes, header.data_start + header.tensors.back().end, header.data_start + data_bytes);
  }
  if (covered != data_bytes)
    fail<LoadError>("{}: the file is longer than its header says: expected {} bytes, got {}; download it again", where,
                    header.data_start + covered, header.data_start + data_bytes);
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where) {
  if (file.size() < 8) fail<LoadError>("{}: {} bytes are too few for a safetensors file (at least 8)", where, file.size());
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(file[static_cast<std::size_t>(i)]);
  if (length < 2) fail<LoadError>("{}: the header length is {}, a header has at least 2 bytes", where, length);
  if (length > kMaxSafetensorsHeader)
    fail<LoadError>("{}: the header length is {}, at most {} is allowed", where, length, kMaxSafetensorsHeader);
  if (length > file.size() - 8)
    fail<LoadError>("{}: the header length is {}, the file has only {} bytes after it: the file is cut short", where, length,
                    file.size() - 8);

  SafetensorsHeader header;
  header.data_start = 8 + length;
  HeaderReader reader(header, where);
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  // The library skips these, the format knows no such thing; whatever else begins a text that is no object, it names.
  if (const auto first = static_cast<unsigned char>(text[0]); first <= ' ' || first == 0xef)
    fail<LoadError>("{}: the header begins with byte {}, not with an object's brace", where, first);
  if (const auto at = nul_byte({text, static_cast<std::size_t>(length)}))
    fail<LoadError>("{}: the header has a NUL byte at {}", where, *at);
  nlohmann::json::sax_parse(text, text + length, &reader);
  check_coverage(header, file.size() - header.data_start, where);
  return header;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file = MappedFile::open(path);
  SafetensorsHeader header = parse_safetensors_header(file.bytes(), path.string());
  return {std::move(file), std::move(header)};
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header) : file_(std::move(file)), header_(std::move(header)) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) fail<LoadError>("{}: tensor {} is missing", file_.path().string(), name);
  return *tensor;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(header_.data_start + tensor.begin, tensor.end - tensor.begin);
}

}  // namespace tetrad
