#include "cuda/runtime/profiler.h"

#include "cuda/runtime/error.h"

namespace tetrad::cuda {

Profiler::~Profiler() {
  for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
}

cudaEvent_t Profiler::event() {
  if (used_ == events_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "creating an event");
    events_.push_back(event);
  }
  return events_[used_++];
}

void Profiler::begin(std::string_view stem, double bytes, double flops, cudaStream_t stream) {
  launches_.push_back({std::string(stem), bytes, flops});
  check(cudaEventRecord(event(), stream), "recording an event");
}

void Profiler::end(cudaStream_t stream) { check(cudaEventRecord(event(), stream), "recording an event"); }

std::map<std::string, Profiler::Stem> Profiler::take() {
  std::map<std::string, Stem> sums;
  if (used_ > 0) check(cudaEventSynchronize(events_[used_ - 1]), "waiting for the device");
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]), "reading an event");
    Stem& stem = sums[launches_[i].stem];
    ++stem.launches;
    stem.microseconds += milliseconds * 1e3;
    stem.bytes += launches_[i].bytes;
    stem.flops += launches_[i].flops;
  }
  launches_.clear();
  used_ = 0;
  return sums;
}

}  // namespace tetrad::cuda
