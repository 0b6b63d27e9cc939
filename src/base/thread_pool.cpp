#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tetrad {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMaxThreads = 1024;
// A worker that waits keeps its core this long before it sleeps: longer than the serial stretches of a decode step, and short enough that
// a machine shared with other processes loses little.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kPausesPerClockRead = 16;
// Ranges per worker: a worker held up by the system leaves its share to the others.
constexpr int kChunksPerThread = 4;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready` holds or the spin time is over; the last answer of `ready`.
template <class Ready>
bool spin_until(const Ready& ready) {
  for (int i = 0; i < kPausesPerClockRead; ++i) {
    if (ready()) return true;
    pause();
  }
  const auto deadline = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (Clock::now() < deadline);
  return ready();
}

// The state of a call in one word, so that a chunk is claimed by one compare-and-swap that fails if the call is over:
// generation (32 bits), number of chunks (16), next chunk to claim (16).
constexpr std::uint64_t make_ticket(std::uint32_t generation, int num_chunks) {
  return (static_cast<std::uint64_t>(generation) << 32) | (static_cast<std::uint64_t>(num_chunks) << 16);
}
constexpr std::uint32_t ticket_generation(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket >> 32); }
constexpr int ticket_chunks(std::uint64_t ticket) { return static_cast<int>((ticket >> 16) & 0xffff); }
constexpr int ticket_next(std::uint64_t ticket) { return static_cast<int>(ticket & 0xffff); }

}  // namespace

struct ThreadPool::Impl {
  // The call in progress. Written by the caller while no chunk can be claimed, read only by the holder of a claimed chunk.
  struct Work {
    Call call = nullptr;
    const void* context = nullptr;
    int count = 0;
  } work;
  std::exception_ptr error;  // of the chunk that set `failed` first

  alignas(64) std::atomic<std::uint64_t> ticket{0};
  alignas(64) std::atomic<int> unfinished{0};  // chunks of this call that are not done
  std::atomic<bool> failed{false};
  alignas(64) std::atomic<int> sleepers{0};  // workers that sleep or are about to
  std::atomic<std::uint32_t> wakeups{0};     // what sleepers wait on
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  std::vector<std::thread> threads;

  // Claims and runs chunks until none is left.
  void drain() {
    auto seen = ticket.load(std::memory_order_acquire);
    while (ticket_next(seen) < ticket_chunks(seen)) {
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      run_chunk(ticket_next(seen), ticket_chunks(seen));
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void run_chunk(int chunk, int num_chunks) {
    if (!failed.load(std::memory_order_relaxed)) {
      const auto border = [&](int i) { return static_cast<int>(static_cast<std::int64_t>(work.count) * i / num_chunks); };
      try {
        work.call(work.context, border(chunk), border(chunk + 1));
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
  }

  void worker_loop() {
    std::uint32_t done = 0;  // the last generation this worker saw to its end
    const auto new_work = [&] { return ticket_generation(ticket.load(std::memory_order_acquire)) != done; };
    while (true) {
      if (!spin_until([&] { return new_work() || stop.load(std::memory_order_relaxed); })) sleep_until_woken(done);
      if (stop.load()) return;
      done = ticket_generation(ticket.load(std::memory_order_acquire));
      drain();
    }
  }

  // Either this worker sees the new ticket after it has counted itself among the sleepers, or the caller sees it counted after writing
  // the ticket (both sequentially consistent), and then changes `wakeups`, read here before the ticket.
  void sleep_until_woken(std::uint32_t done) {
    const auto before = wakeups.load();
    sleepers.fetch_add(1);
    if (ticket_generation(ticket.load()) == done && !stop.load()) wakeups.wait(before);
    sleepers.fetch_sub(1);
  }

  void wake() {
    if (sleepers.load() == 0) return;
    wakeups.fetch_add(1);
    wakeups.notify_all();
  }

  void wait_for_workers() {
    if (spin_until([&] { return unfinished.load(std::memory_order_acquire) == 0; })) return;
    for (int left = unfinished.load(std::memory_order_acquire); left != 0; left = unfinished.load(std::memory_order_acquire))
      unfinished.wait(left, std::memory_order_acquire);
  }

  void stop_all() {
    stop.store(true);
    wake();
    for (auto& thread : threads) thread.join();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  if (num_threads < 0 || num_threads > kMaxThreads)
    fail<InputError>("number of threads {} is out of range: expected 0 (one per hardware thread) to {}", num_threads, kMaxThreads);
  if (num_threads == 0) num_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  try {
    for (int i = 1; i < num_threads; ++i) impl_->threads.emplace_back([impl = impl_.get()] { impl->worker_loop(); });
  } catch (...) {
    impl_->stop_all();
    throw;
  }
}

ThreadPool::~ThreadPool() { impl_->stop_all(); }

int ThreadPool::num_threads() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::run(int count, int min_chunk, Call call, const void* context) {
  if (count <= 0) return;
  Impl& pool = *impl_;
  TETRAD_CHECK(!pool.running.exchange(true, std::memory_order_acquire), "parallel_for called within or beside another call");
  struct Finish {
    std::atomic<bool>& running;
    ~Finish() { running.store(false, std::memory_order_release); }
  } finish{pool.running};

  const int num_chunks = pool.threads.empty() ? 1 : std::clamp(count / std::max(min_chunk, 1), 1, num_threads() * kChunksPerThread);
  if (num_chunks == 1) return call(context, 0, count);

  pool.work = {.call = call, .context = context, .count = count};
  pool.unfinished.store(num_chunks, std::memory_order_relaxed);
  pool.ticket.store(make_ticket(ticket_generation(pool.ticket.load(std::memory_order_relaxed)) + 1, num_chunks));
  pool.wake();
  pool.drain();
  pool.wait_for_workers();
  if (pool.failed.load()) {
    pool.failed.store(false);
    std::rethrow_exception(std::exchange(pool.error, nullptr));
  }
}

}  // namespace tetrad
