#pragma once
// A recorded sequence of launches, replayed at once: what a step does is the same from token to token, only its arrays change.
#include <utility>

#include "cuda/runtime/error.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

class Graph {
 public:
  // Records what `body` enqueues on the stream; nothing of it runs yet. If `body` throws, the recording is given up.
  template <class Body>
  Graph(const Stream& stream, Body body) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "recording a graph");
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      (void)cudaStreamEndCapture(stream.get(), &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream.get(), &graph), "ending the recording of a graph");
    const cudaError_t code = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(code, "preparing a recorded graph");
  }
  ~Graph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
  }
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;

  void launch(const Stream& stream) const { check(cudaGraphLaunch(executable_, stream.get()), "launching a recorded graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tetrad::cuda
