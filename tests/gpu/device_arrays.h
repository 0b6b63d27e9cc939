#pragma once
// Host vectors to the device and back, for the tests of kernels.
#include <random>
#include <vector>

#include "base/bf16.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda::test {

template <class T>
DeviceBuffer<T> to_device(const std::vector<T>& values, const Stream& stream) {
  DeviceBuffer<T> buffer(values.size(), "test input");
  stream.copy(buffer.data(), values.data(), buffer.bytes());
  stream.synchronize();
  return buffer;
}

template <class T>
std::vector<T> to_host(const DeviceBuffer<T>& buffer, const Stream& stream) {
  std::vector<T> values(buffer.size());
  stream.copy(values.data(), buffer.data(), buffer.bytes());
  stream.synchronize();
  return values;
}

inline std::vector<bf16> random_bf16(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> values(count);
  for (bf16& v : values) v = to_bf16(normal(random));
  return values;
}

}  // namespace tetrad::cuda::test
