#include "io/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/json_file.h"

namespace tetrad {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxListed = 50;

struct Index {
  std::map<std::string, std::string> file_of;  // tensor name -> file name
  std::set<std::string> files;
  std::optional<std::uint64_t> declared_bytes;
};

[[noreturn]] void fail_list(std::string_view where, std::string_view what, const std::vector<std::string>& problems) {
  std::string text = fmt::format("{}: {}:", where, what);
  for (std::size_t i = 0; i < problems.size() && i < kMaxListed; ++i) text += "\n  " + problems[i];
  if (problems.size() > kMaxListed) text += fmt::format("\n  ... and {} more", problems.size() - kMaxListed);
  throw LoadError(text);
}

Index read_index(const fs::path& path) {
  const nlohmann::json json = read_json_file(path);
  const std::string where = path.string();
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) fail<LoadError>("{}: expected an object with \"weight_map\"", where);
  if (map->empty()) fail<LoadError>("{}: \"weight_map\" names no tensor", where);
  Index index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail<LoadError>("{}: tensor {}: expected a file name, got {}", where, tensor, file.dump());
    const auto name = file.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      fail<LoadError>("{}: tensor {}: \"{}\" is not the name of a file in the directory", where, tensor, name);
    index.file_of.emplace(tensor, name);
    index.files.insert(name);
  }
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_unsigned()) index.declared_bytes = total->get<std::uint64_t>();
  }
  return index;
}

std::set<std::string> safetensors_files(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") names.insert(it->path().filename().string());
  if (error) fail<LoadError>("{}: cannot list the directory: {}", directory.string(), error.message());
  return names;
}

bool is_shard_name(std::string_view name) { return name.starts_with("model"); }

// The files of a directory without an index.
std::set<std::string> single_file(const fs::path& directory, const std::set<std::string>& present) {
  std::vector<std::string> shards;
  for (const auto& name : present)
    if (is_shard_name(name) && name != kSingleFile) shards.push_back(name);
  if (!shards.empty())
    fail<LoadError>("{}: {} is missing, and these files need one: {}; download the index", directory.string(), kIndexFile,
                    fmt::join(shards, ", "));
  if (!present.contains(std::string(kSingleFile)))
    fail<LoadError>("{}: no checkpoint: expected {} or {}, got {}", directory.string(), kSingleFile, kIndexFile,
                    present.empty() ? "no .safetensors file" : fmt::format("only {}", fmt::join(present, ", ")));
  return {std::string(kSingleFile)};
}

void check_shards_present(const fs::path& directory, const Index& index, const std::set<std::string>& present) {
  std::vector<std::string> problems;
  for (const auto& name : index.files) {
    std::error_code error;
    if (fs::exists(directory / name, error)) continue;
    const auto count = std::count_if(index.file_of.begin(), index.file_of.end(), [&](const auto& entry) { return entry.second == name; });
    problems.push_back(fmt::format("{}: named by {} for {} tensors, but absent; download it", name, kIndexFile, count));
  }
  for (const auto& name : present)
    if (is_shard_name(name) && !index.files.contains(name))
      problems.push_back(fmt::format("{}: a shard that {} does not name; remove it or download the index again", name, kIndexFile));
  if (!problems.empty()) fail_list(directory.string(), "the files do not match the index", problems);
}

// Every tensor of a shard must be in the index under that shard, and the other way round.
void check_index_agrees(const fs::path& directory, const Index& index, const std::vector<SafetensorsFile>& files) {
  std::vector<std::string> problems;
  std::set<std::string_view> found;
  for (const SafetensorsFile& file : files) {
    const std::string name = file.file().path().filename().string();
    for (const TensorInfo& tensor : file.tensors()) {
      const auto entry = index.file_of.find(tensor.name);
      if (entry == index.file_of.end())
        problems.push_back(fmt::format("{}: tensor {} is not in the index", name, tensor.name));
      else if (entry->second != name)
        problems.push_back(fmt::format("{}: tensor {} is here, the index says {}", name, tensor.name, entry->second));
      else
        found.insert(entry->first);
    }
  }
  for (const auto& [tensor, name] : index.file_of)
    if (!found.contains(tensor)) problems.push_back(fmt::format("{}: tensor {} is named by the index, but not in the file", name, tensor));
  if (!problems.empty()) fail_list((directory / kIndexFile).string(), "the index does not match the files", problems);
}

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) fail<LoadError>("{}: not a directory; give the directory of a checkpoint", directory.string());
  const std::set<std::string> present = safetensors_files(directory);
  std::optional<Index> index;
  if (fs::exists(fs::symlink_status(directory / kIndexFile, error))) {
    index = read_index(directory / kIndexFile);
    check_shards_present(directory, *index, present);
  }
  const std::set<std::string> names = index ? index->files : single_file(directory, present);

  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(directory));
  std::vector<std::string> problems;
  for (const auto& name : names) {
    try {
      checkpoint->files_.push_back(SafetensorsFile::open(directory / name));
    } catch (const LoadError& e) {
      problems.emplace_back(e.what());
    }
  }
  if (problems.size() == 1) throw LoadError(problems.front());
  if (!problems.empty()) fail_list(directory.string(), "files that cannot be read", problems);
  if (index) {
    check_index_agrees(directory, *index, checkpoint->files_);
    checkpoint->declared_bytes_ = index->declared_bytes;
  }
  checkpoint->add_tensors();
  return checkpoint;
}

void Checkpoint::add_tensors() {
  for (std::size_t f = 0; f < files_.size(); ++f) {
    for (const TensorInfo& info : files_[f].tensors()) {
      const auto bytes = files_[f].bytes(info);
      const std::byte* data = bytes.data();
      if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(info.dtype) != 0) {
        owned_.push_back(std::make_unique<std::byte[]>(bytes.size()));
        std::memcpy(owned_.back().get(), data, bytes.size());
        data = owned_.back().get();
      }
      tensors_.push_back({info.name, info.dtype, info.shape, data, bytes.size(), static_cast<int>(f)});
    }
  }
  index_tensors();
}

std::shared_ptr<const Checkpoint> Checkpoint::in_memory(std::vector<CheckpointTensor> tensors, const Fill& fill, std::uint64_t largest) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint("memory"));
  for (CheckpointTensor& tensor : tensors) {
    tensor.file = -1;
    if (tensor.num_bytes > largest) continue;
    checkpoint->owned_.push_back(std::make_unique_for_overwrite<std::byte[]>(tensor.num_bytes));
    tensor.data = checkpoint->owned_.back().get();
    fill(tensor, {checkpoint->owned_.back().get(), tensor.num_bytes});
  }
  checkpoint->tensors_ = std::move(tensors);
  checkpoint->index_tensors();
  return checkpoint;
}

void Checkpoint::index_tensors() {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string Checkpoint::file_name(const CheckpointTensor& tensor) const {
  if (tensor.file < 0) return "memory";
  return files_[static_cast<std::size_t>(tensor.file)].file().path().filename().string();
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors_) total += tensor.num_bytes;
  return total;
}

void Checkpoint::prefetch(const CheckpointTensor& tensor) const {
  if (tensor.file < 0) return;
  const MappedFile& file = files_[static_cast<std::size_t>(tensor.file)].file();
  const std::byte* start = file.bytes().data();
  if (tensor.data < start || tensor.data >= start + file.bytes().size()) return;  // an aligned copy
  file.prefetch(static_cast<std::size_t>(tensor.data - start), tensor.num_bytes);
}

}  // namespace tetrad
