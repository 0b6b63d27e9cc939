#include "support/checkpoint_edit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "io/checkpoint.h"
#include "io/json_file.h"
#include "io/safetensors_writer.h"

namespace tetrad::test {

namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "tetrad-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes.append(header).append(data);
}

EditTensor& EditCheckpoint::at(std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  if (found == tensors.end()) throw std::out_of_range(std::string(name));
  return *found;
}

void EditCheckpoint::erase(std::string_view name) { tensors.erase(tensors.begin() + (&at(name) - tensors.data())); }

void EditCheckpoint::rename(std::string_view from, std::string_view to) { at(from).name = to; }

namespace {

void write_file(const fs::path& path, std::vector<const EditTensor*> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return dtype_size(a->dtype) > dtype_size(b->dtype); });
  std::vector<TensorSpec> specs;
  for (const auto* t : tensors) specs.push_back({t->name, t->dtype, t->shape});
  SafetensorsWriter writer(path, specs);
  for (const auto* t : tensors) writer.write(t->bytes);
  writer.finish();
}

}  // namespace

void EditCheckpoint::write(const fs::path& directory) const {
  fs::create_directories(directory);
  std::vector<const EditTensor*> all;
  for (const auto& t : tensors) all.push_back(&t);
  write_file(directory / "model.safetensors", all);
  write_bytes(directory / "config.json", config.dump());
}

void EditCheckpoint::write_shards(const fs::path& directory, std::size_t num_files) const {
  fs::create_directories(directory);
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t f = 0; f < num_files; ++f) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, num_files);
    std::vector<const EditTensor*> part;
    for (std::size_t i = f; i < tensors.size(); i += num_files) part.push_back(&tensors[i]);
    for (const auto* t : part) map[t->name] = name;
    write_file(directory / name, part);
  }
  write_bytes(directory / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  write_bytes(directory / "config.json", config.dump());
}

EditCheckpoint read_checkpoint(const fs::path& directory) {
  EditCheckpoint result;
  result.config = read_json_file(directory / "config.json");
  const auto checkpoint = Checkpoint::open(directory);
  for (const CheckpointTensor& t : checkpoint->tensors())
    result.tensors.push_back({t.name, t.dtype, t.shape, {t.data, t.data + t.num_bytes}});
  return result;
}

void copy_checkpoint(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from))
    fs::copy(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
}

}  // namespace tetrad::test
