#pragma once
// A fixed set of workers for data-parallel loops inside one step. The split of work never changes a result: every output
// element is computed by one worker in an order that does not depend on the number of workers.
#include <functional>
#include <memory>

namespace tetrad {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads = 0);  // 0: one per hardware thread. The caller's thread is worker 0.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) over disjoint ranges that cover [0, count), each at least min_chunk long unless it is the last.
  // Returns when all are done; the first exception of a worker is rethrown. Not reentrant.
  void parallel_for(int count, int min_chunk, const std::function<void(int begin, int end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tetrad
