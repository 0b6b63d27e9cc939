#pragma once
// A whole file mapped for reading. Owns the mapping; movable, not copyable. Bytes stay valid until destruction.
#include <cstddef>
#include <filesystem>
#include <span>

namespace tetrad {

class MappedFile {
 public:
  // Throws LoadError naming the file and the system's reason: absent, not a regular file, not readable.
  static MappedFile open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the system that these bytes will be read soon; only a hint, never an error. Clipped to the file.
  void prefetch(std::size_t offset, std::size_t num_bytes) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, std::size_t size);
  void unmap() noexcept;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tetrad
