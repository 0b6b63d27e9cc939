#pragma once
// A fixed set of workers for data-parallel loops inside one step. The split of work never changes a result: every output
// element is computed by one worker in an order that does not depend on the number of workers.
#include <memory>

namespace tetrad {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads = 0);  // 0: one per hardware thread. The caller's thread is worker 0.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(int begin, int end) over disjoint ranges that cover [0, count), each at least min_chunk long unless count is shorter.
  // The ranges depend on count, min_chunk and num_threads() only; which worker takes which is decided as they run.
  // Returns when all are done; the first exception of a worker is rethrown. Not reentrant. Allocates nothing; costs about a microsecond
  // while the workers are warm: they spin for some tens of microseconds after a call before they sleep.
  template <class Body>
  void parallel_for(int count, int min_chunk, const Body& body) {
    run(
        count, min_chunk, [](const void* context, int begin, int end) { (*static_cast<const Body*>(context))(begin, end); }, &body);
  }

 private:
  using Call = void (*)(const void* context, int begin, int end);
  void run(int count, int min_chunk, Call call, const void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tetrad
