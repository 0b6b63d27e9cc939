#include "cpu/attention.h"

#include <gtest/gtest.h>

#include "support/op_rig.h"

namespace tetrad::cpu::attention_test {
namespace {

using test::Bounded;
using test::BoundedRow;

// Rows of `width` bf16 elements, out of order in memory, as a selection gathers them.
struct Rows {
  Rows(int count, int row_width, test::RandomValues& random, double scale)
      : width(row_width), values(random.row(count * row_width, scale)) {
    for (const float v : values) bits.push_back(to_bf16(v));
    for (int n = 0; n < count; ++n) pointers.push_back(bits.data() + static_cast<std::ptrdiff_t>(count - 1 - n) * width);
  }
  double at(int n, int d) const { return to_float(pointers[static_cast<std::size_t>(n)][d]); }
  int width;
  std::vector<float> values;
  std::vector<bf16> bits;
  std::vector<const bf16*> pointers;
};

BoundedRow oracle(std::span<const float> q, const Rows& k, const Rows& v, int num_rows, int offset) {
  const int DH = static_cast<int>(q.size());
  BoundedRow logits, p, out;
  double largest = -INFINITY;
  for (int n = 0; n < num_rows; ++n) {
    BoundedRow key;
    for (int d = 0; d < DH; ++d) key.emplace_back(k.at(n, offset + d));
    logits.push_back(bf(bf(test::bounded_dot(test::exactly(q), key)) * Bounded(static_cast<float>(1.0 / std::sqrt(DH)))));
    largest = std::max(largest, logits.back().value);
  }
  for (const Bounded& l : logits) p.push_back(test::bounded_exp({l.value - largest, l.error}));  // the shift cancels in the quotient
  const Bounded sum = test::bounded_sum(p);
  for (Bounded& x : p) x = bf(x / sum);
  for (int d = 0; d < DH; ++d) {
    BoundedRow column;
    for (int n = 0; n < num_rows; ++n) column.emplace_back(v.at(n, offset + d));
    out.push_back(bf(test::bounded_dot(p, column)));
  }
  return out;
}

TEST(attention, agrees_with_double_over_ragged_shapes) {
  test::RandomValues random(1);
  struct Shape {
    int num_rows, DH, heads, head;
  };
  for (const Shape s : {Shape{1, 1, 1, 0}, {1, 8, 2, 1}, {2, 7, 3, 2}, {3, 8, 1, 0}, {9, 16, 2, 0}, {33, 32, 2, 1}, {130, 24, 1, 0}}) {
    const std::vector<float> q = random.row(s.DH, 0.5);
    const Rows k(s.num_rows, s.heads * s.DH, random, 0.5), v(s.num_rows, s.heads * s.DH, random, 1.0);
    std::vector<float> scratch(static_cast<std::size_t>(s.num_rows)), out(static_cast<std::size_t>(s.DH));
    attend_head({.num_rows = s.num_rows,
                 .DH = s.DH,
                 .head_offset = s.head * s.DH,
                 .q = q.data(),
                 .k_rows = k.pointers.data(),
                 .v_rows = v.pointers.data(),
                 .scratch = scratch.data(),
                 .out = out.data()});
    test::expect_within(out, oracle(q, k, v, s.num_rows, s.head * s.DH), 0.25,
                        std::to_string(s.num_rows) + " rows of " + std::to_string(s.DH));
  }
}

TEST(attention, one_row_is_its_value) {
  test::RandomValues random(2);
  const std::vector<float> q = random.row(8, 10.0);
  const Rows k(1, 8, random, 10.0), v(1, 8, random, 1.0);
  std::vector<float> scratch(1), out(8);
  attend_head({.num_rows = 1,
               .DH = 8,
               .head_offset = 0,
               .q = q.data(),
               .k_rows = k.pointers.data(),
               .v_rows = v.pointers.data(),
               .scratch = scratch.data(),
               .out = out.data()});
  EXPECT_EQ(out, v.values);
}

TEST(attention, equal_logits_average_and_large_ones_do_not_overflow) {
  test::RandomValues random(3);
  Rows k(4, 4, random, 0.0), v(4, 4, random, 1.0);
  std::vector<float> q(4, 1.0f), scratch(4), out(4);
  const AttendHeadArgs a{.num_rows = 4,
                         .DH = 4,
                         .head_offset = 0,
                         .q = q.data(),
                         .k_rows = k.pointers.data(),
                         .v_rows = v.pointers.data(),
                         .scratch = scratch.data(),
                         .out = out.data()};
  attend_head(a);  // four probabilities of exactly 1/4
  for (int d = 0; d < 4; ++d) {
    double mean = 0.0;
    for (int n = 0; n < 4; ++n) mean += v.at(n, d) / 4;
    EXPECT_EQ(out[static_cast<std::size_t>(d)], round_bf16(static_cast<float>(mean)));
  }
  for (bf16& b : k.bits) b = to_bf16(1e30f);
  q.assign(4, 1e5f);  // logits of 2e35: equal again once the largest is taken off
  const std::vector<float> before = out;
  attend_head(a);
  EXPECT_EQ(out, before);
}

TEST(attention, a_nan_in_any_row_is_seen) {
  test::RandomValues random(4);
  for (const bool in_key : {true, false}) {
    Rows k(5, 4, random, 1.0), v(5, 4, random, 1.0);
    (in_key ? k : v).bits[2 * 4 + 1] = to_bf16(std::nanf(""));
    const std::vector<float> q = random.row(4, 1.0);
    std::vector<float> scratch(5), out(4);
    attend_head({.num_rows = 5,
                 .DH = 4,
                 .head_offset = 0,
                 .q = q.data(),
                 .k_rows = k.pointers.data(),
                 .v_rows = v.pointers.data(),
                 .scratch = scratch.data(),
                 .out = out.data()});
    for (int d = 0; d < 4; ++d) EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(d)]), in_key || d == 1) << d;
  }
}

}  // namespace
}  // namespace tetrad::cpu::attention_test
