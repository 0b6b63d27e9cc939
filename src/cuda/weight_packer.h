#pragma once
// Places weights one after another in one piece of device memory. Run once without memory it only counts, so that the same code plans
// and fills.
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "cuda/kernels/linear.h"
#include "cuda/runtime/memory.h"
#include "model/weights.h"

namespace tetrad::cuda {

struct ExpertLinears {
  DeviceLinear first;
  std::size_t data_stride = 0, scale_stride = 0;  // bytes, floats
};

class WeightPacker {
 public:
  WeightPacker(std::byte* memory, const Stream& stream) : memory_(memory), stream_(stream) {}

  bool filling() const { return memory_ != nullptr; }
  std::size_t bytes() const { return used_; }

  // `make` is called only when filling.
  const float* floats(const std::function<std::vector<float>()>& make, std::int64_t count);
  const std::int64_t* integers(const std::vector<std::int64_t>& values);
  const bf16* rows_bf16(const WeightView& view);
  // Weights of equal K and storage, stacked along N.
  DeviceLinear linear(std::span<const LinearView* const> views);
  DeviceLinear linear(std::initializer_list<const LinearView*> views) { return linear(std::span(views.begin(), views.size())); }
  ExpertLinears expert_linears(const std::vector<std::vector<const LinearView*>>& experts);

 private:
  std::byte* place(std::size_t bytes);
  void fill(const DeviceLinear& w, std::span<const LinearView* const> views);
  void upload(void* to, const void* from, std::size_t bytes);
  const void* stage(const WeightView& view);
  void make_up(const WeightView& view, void* to);  // a view without data: random values of its size

  std::byte* memory_;
  const Stream& stream_;
  std::size_t used_ = 0;
  DeviceBuffer<std::byte> staging_;
  DeviceBuffer<unsigned long long> nan_at_;
};

}  // namespace tetrad::cuda
