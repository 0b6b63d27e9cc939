#include "cpu/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tetrad::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugePageMin = kHugePage / 2;

}  // namespace

std::byte* allocate_aligned(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const bool huge = bytes >= kHugePageMin;
  const std::size_t alignment = huge ? kHugePage : kBufferAlignment;
  if (bytes > std::numeric_limits<std::size_t>::max() - alignment) throw std::bad_alloc();
  const std::size_t padded = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, padded);
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (huge) (void)madvise(data, padded, MADV_HUGEPAGE);  // advice only: without it the pages are small ones
#endif
  std::memset(data, 0, padded);
  return static_cast<std::byte*>(data);
}

void free_aligned(std::byte* data) noexcept { std::free(data); }

}  // namespace tetrad::cpu
