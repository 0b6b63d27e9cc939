// A step of the CPU backend allocates nothing. This binary's operator new counts its calls on all threads while it is armed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/thread_pool.h"
#include "support/loaded_model.h"

namespace {

std::atomic<bool> armed{false};
std::atomic<long> allocations{0};

void* counted_allocation(std::size_t size, std::size_t alignment) {
  if (armed.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(size)
                                                        : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Out of line: the compiler takes the pointer of an inlined `delete` for one of the library's `new`, and warns.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

// The forms that take no size or no alignment, and those for arrays, come down to these.
void* operator new(std::size_t size) { return counted_allocation(size == 0 ? 1 : size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size == 0 ? 1 : size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace tetrad::allocation_test {
namespace {

using test::LoadedModel;

template <class Body>
long count_allocations(Body body) {
  allocations = 0;
  armed = true;
  body();
  armed = false;
  return allocations;
}

TEST(allocation, the_counter_counts) {
  const auto allocate = [] { ::operator delete(::operator new(4)); };  // the calls themselves, which no compiler leaves out
  EXPECT_EQ(count_allocations(allocate), 1);
  EXPECT_EQ(count_allocations([] { ::operator delete (::operator new (4, std::align_val_t{128}), std::align_val_t{128}); }), 1);
  ThreadPool pool(3);
  EXPECT_EQ(count_allocations([&] { pool.parallel_for(64, 64, [&](int, int) { allocate(); }); }), 1);
  EXPECT_EQ(count_allocations([&] {
              pool.parallel_for(64, 8, [&](int begin, int end) {
                for (int i = begin; i < end; ++i) allocate();
              });
            }),
            64)
      << "on every thread";
  EXPECT_EQ(count_allocations([] {}), 0);
}

class Allocation : public ::testing::TestWithParam<const char*> {};

TEST_P(Allocation, a_step_allocates_nothing) {
  LoadedModel m(test::golden_directory(GetParam()), {.num_slots = 4, .max_tokens = 1024, .max_rows = 200, .num_threads = 3});
  const int page_tokens = m.backend->state_layout().page_tokens;
  struct Sequence {
    int slot, length = 0;
    std::vector<int> pages{};
  };
  std::vector<Sequence> sequences{{0}, {1}, {2}};
  int next_page = 0;
  // Rows of each sequence; enough of them that selection cuts, experts are shared and several pages are in use.
  for (const auto& rows : {std::vector{150, 0, 0}, {1, 0, 0}, {40, 30, 1}, {1, 1, 1}, {1, 1, 1}, {7, 1, 100}}) {
    std::vector<SequenceRows> packed;
    std::vector<int> logit_rows;
    int total = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == 0) continue;
      Sequence& s = sequences[i];
      while (static_cast<int>(s.pages.size()) * page_tokens < s.length + rows[i]) s.pages.push_back(next_page++);
      packed.push_back({.first_row = total, .num_rows = rows[i], .start = s.length, .slot = s.slot, .pages = s.pages, .saves = {}});
      total += rows[i];
      s.length += rows[i];
      logit_rows.push_back(total - 1);
    }
    const StateSave save{0, 3};
    packed[0].saves = {&save, 1};
    const std::vector<int> ids = test::random_ids(total, m.config.vocab_size, static_cast<unsigned>(total), m.config.ple_eos_token);
    std::vector<float> logits(logit_rows.size() * static_cast<std::size_t>(m.config.vocab_size));
    const long count =
        count_allocations([&] { m.backend->step({.token_ids = ids, .sequences = packed, .logit_rows = logit_rows}, logits); });
    EXPECT_EQ(count, 0) << GetParam() << ": a step of " << total << " rows of " << packed.size() << " sequences";
  }
}

INSTANTIATE_TEST_SUITE_P(goldens, Allocation, ::testing::Values("rand-small", "rand-heads", "variant-fp8", "variant-nople"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tetrad::allocation_test
