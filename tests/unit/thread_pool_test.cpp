#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tetrad::thread_pool_test {
namespace {

std::vector<std::pair<int, int>> ranges(ThreadPool& pool, int count, int min_chunk) {
  std::mutex mutex;
  std::vector<std::pair<int, int>> seen;
  pool.parallel_for(count, min_chunk, [&](int begin, int end) {
    const std::lock_guard lock(mutex);
    seen.emplace_back(begin, end);
  });
  std::sort(seen.begin(), seen.end());
  return seen;
}

TEST(thread_pool, ranges_cover_everything_once) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int count : {0, 1, 2, 3, 7, 31, 64, 1000})
      for (const int min_chunk : {1, 2, 5, 64, 2000}) {
        int next = 0;
        for (const auto& [begin, end] : ranges(pool, count, min_chunk)) {
          EXPECT_EQ(begin, next);
          EXPECT_GE(end - begin, std::min(min_chunk, count)) << "count " << count << " threads " << threads;
          next = end;
        }
        EXPECT_EQ(next, count);
      }
  }
}

TEST(thread_pool, ranges_are_the_same_every_time) {
  ThreadPool pool(3);
  const auto first = ranges(pool, 1001, 7);
  EXPECT_GT(first.size(), 3u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ranges(pool, 1001, 7), first);
}

TEST(thread_pool, negative_count_is_empty) {
  ThreadPool pool(2);
  EXPECT_TRUE(ranges(pool, -5, 1).empty());
}

TEST(thread_pool, huge_count_does_not_overflow) {
  ThreadPool pool(4);
  const int count = 2147483647;
  const auto seen = ranges(pool, count, 1);
  EXPECT_EQ(seen.front().first, 0);
  EXPECT_EQ(seen.back().second, count);
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i].first, seen[i - 1].second);
}

TEST(thread_pool, one_thread_runs_inline_in_one_range) {
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  pool.parallel_for(100, 1, [&](int begin, int end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

TEST(thread_pool, more_than_one_thread_takes_part) {
  ThreadPool pool(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> inside{0};
  pool.parallel_for(2, 1, [&](int, int) {
    ++inside;
    while (inside < 2) std::this_thread::yield();  // ends only if two threads are in the body at once
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 2u);
}

TEST(thread_pool, writes_of_workers_are_visible_and_calls_do_not_mix) {
  ThreadPool pool(4);
  std::vector<int> values(257);
  for (int round = 1; round <= 3000; ++round) {
    pool.parallel_for(257, 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) ++values[i];
    });
    ASSERT_EQ(std::count(values.begin(), values.end(), round), 257) << "round " << round;
  }
}

TEST(thread_pool, wakes_workers_that_sleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the workers spin
    std::atomic<int> inside{0};
    pool.parallel_for(3, 1, [&](int, int) {
      ++inside;
      while (inside < 3) std::this_thread::yield();
    });
    EXPECT_EQ(inside, 3);
  }
}

TEST(thread_pool, waits_for_slow_workers) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  pool.parallel_for(2, 1, [&](int begin, int) {
    if (begin == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the caller spins
    ++done;
  });
  EXPECT_EQ(done, 2);
}

TEST(thread_pool, rethrows_and_stays_usable) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      std::string message;
      try {
        pool.parallel_for(64, 1, [&](int begin, int end) {
          if (begin <= 40 && 40 < end) throw std::runtime_error("row 40");
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      EXPECT_EQ(message, "row 40");
      std::atomic<int> count{0};
      pool.parallel_for(64, 1, [&](int begin, int end) { count += end - begin; });
      EXPECT_EQ(count, 64);
    }
  }
}

TEST(thread_pool, every_body_throws) {
  ThreadPool pool(4);
  EXPECT_THROW(pool.parallel_for(64, 1, [](int, int) { throw std::runtime_error("all"); }), std::runtime_error);
}

TEST(thread_pool, nested_call_is_refused) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.parallel_for(8, 1, [&](int, int) { pool.parallel_for(8, 1, [](int, int) {}); }), InternalError);
    EXPECT_EQ(ranges(pool, 5, 5).size(), 1u);
  }
}

TEST(thread_pool, thread_count_is_checked) {
  EXPECT_GE(ThreadPool().num_threads(), 1);
  EXPECT_THROW(ThreadPool(-1), InputError);
  EXPECT_THROW(ThreadPool(100000), InputError);
}

TEST(thread_pool, starts_and_stops_quickly_without_work) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace tetrad::thread_pool_test
