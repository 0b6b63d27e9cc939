#pragma once
// Memory of the device and pinned memory of the host: owned, move-only, zeroed. `what` names the buffer in an out-of-memory message.
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "cuda/runtime/error.h"

namespace tetrad::cuda {

// Throws LoadError when the device has no room, naming `what`, the bytes asked for and the bytes free.
std::byte* allocate_device(std::size_t bytes, std::string_view what);
void free_device(std::byte* data) noexcept;
// Page-locked and mapped: the device reads it at the same address.
std::byte* allocate_pinned(std::size_t bytes, std::string_view what);
void free_pinned(std::byte* data) noexcept;

namespace detail {
struct FreeDevice {
  void operator()(std::byte* p) const noexcept { free_device(p); }
};
struct FreePinned {
  void operator()(std::byte* p) const noexcept { free_pinned(p); }
};
}  // namespace detail

template <class T, class Free, std::byte* (*kAllocate)(std::size_t, std::string_view)>
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t num_elements, std::string_view what) : data_(kAllocate(num_elements * sizeof(T), what)), size_(num_elements) {}
  T* data() { return reinterpret_cast<T*>(data_.get()); }
  const T* data() const { return reinterpret_cast<const T*>(data_.get()); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};
template <class T>
using DeviceBuffer = Buffer<T, detail::FreeDevice, allocate_device>;
template <class T>
using PinnedBuffer = Buffer<T, detail::FreePinned, allocate_pinned>;

// Allocations of either kind so far: a step makes none, and a test compares the count before and after.
std::size_t allocation_count();

}  // namespace tetrad::cuda
