#include "model/ngram_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "io/safetensors.h"

namespace tetrad::ngram_hash_test {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = TETRAD_GOLDENS;

template <class T>
std::vector<T> read(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(file.at(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Config published() { return load_config(kGoldens / "configs/published-bf16.json"); }

// Row ids of every token of a sequence that starts with an empty history.
std::vector<std::int64_t> rows_of(const Config& config, const NgramHash& hash, const std::vector<int>& ids) {
  const std::size_t history_length = static_cast<std::size_t>(config.ngram_size) - 1;
  const std::size_t heads = hash.head_sizes.size();
  std::vector<int> padded(history_length, config.ple_eos_token);
  padded.insert(padded.end(), ids.begin(), ids.end());
  std::vector<std::int64_t> rows(ids.size() * heads);
  std::vector<int> context(history_length + 1);
  for (std::size_t p = 0; p < ids.size(); ++p) {
    ngram_context(ids[p], std::span(padded).subspan(p, history_length), config.ple_eos_token, context);
    ngram_row_ids(hash, config.heads_per_ngram, context, std::span(rows).subspan(p * heads, heads));
  }
  return rows;
}

TEST(ngram_hash, published_constants) {
  const NgramHash hash = make_ngram_hash(published(), 0);
  EXPECT_EQ(hash.multipliers, (std::vector<std::int64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hash.head_sizes, (std::vector<std::int64_t>{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                                                        20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(hash.head_offsets.back(), 300001275);
  EXPECT_EQ(hash.padded_rows, 320001536);
}

// A table from the reference: 200 ids with ends of text inside. `config` is the one it was made with.
void expect_golden(const Config& config, const std::string& set) {
  const auto file = SafetensorsFile::open(kGoldens / "ple-rows.safetensors");
  const NgramHash hash = make_ngram_hash(config, 0);
  EXPECT_EQ(hash.multipliers, read<std::int64_t>(file, set + ".multipliers"));
  EXPECT_EQ(hash.head_sizes, read<std::int64_t>(file, set + ".head_vocab_sizes"));
  EXPECT_EQ(hash.head_offsets, read<std::int64_t>(file, set + ".head_offsets"));
  const auto ids = read<std::int32_t>(file, set + ".tokens");
  ASSERT_EQ(ids.size(), 200u);
  EXPECT_GT(std::count(ids.begin(), ids.end(), config.ple_eos_token), 0) << "the golden must hold ends of text";
  EXPECT_EQ(rows_of(config, hash, ids), read<std::int64_t>(file, set + ".rows"));
}

TEST(ngram_hash, golden_published_vocabulary) { expect_golden(published(), "published"); }
TEST(ngram_hash, golden_small_vocabulary) {
  Config config = load_config(kGoldens / "rand-small/config.json");
  config.vocab_size = 512;  // as the golden was made
  expect_golden(config, "small");
}

std::vector<std::int64_t> position(const std::vector<std::int64_t>& rows, std::size_t p) {
  return {rows.begin() + static_cast<std::ptrdiff_t>(16 * p), rows.begin() + static_cast<std::ptrdiff_t>(16 * (p + 1))};
}

TEST(ngram_hash, worked_examples) {
  const Config config = published();
  const NgramHash hash = make_ngram_hash(config, 0);
  EXPECT_EQ(rows_of(config, hash, {9707}),
            (std::vector<std::int64_t>{16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897, 169641436,
                                       182022480, 209277433, 237891023, 256841529, 277007269, 290665954, 300984276}));
  const auto b = rows_of(config, hash, {248045, 846, 198, 9707, 0});
  EXPECT_EQ(position(b, 0),
            (std::vector<std::int64_t>{13981229, 30076798, 49239434, 61315716, 98540601, 111186732, 120378863, 146384625, 173637879,
                                       184336749, 217808755, 222173721, 249579227, 277180543, 299757935, 312970430}));
  EXPECT_EQ(position(b, 2),
            (std::vector<std::int64_t>{4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409, 145212418, 163775156,
                                       199680439, 200044921, 228961047, 240669798, 272736434, 296838250, 317942745}));
  EXPECT_EQ(position(b, 4),
            (std::vector<std::int64_t>{15745768, 37221671, 58106044, 79508135, 80862143, 101344770, 122097965, 143156866, 169171123,
                                       195857529, 213834730, 237673620, 251383315, 265127912, 296384081, 312721979}));
  const auto c = rows_of(config, hash, {100, 248044, 200, 300});  // an end of text inside
  EXPECT_EQ(position(c, 1),
            (std::vector<std::int64_t>{4253433, 32998227, 51781784, 71019232, 86381762, 105777022, 135752146, 157365741, 163256257,
                                       190066091, 219539887, 238317874, 241821358, 266286771, 287989078, 318102939}));
  EXPECT_EQ(position(c, 2),
            (std::vector<std::int64_t>{15114226, 39594710, 55572462, 70127295, 80775559, 118455748, 125723378, 143475569, 177805529,
                                       191773675, 200937106, 235341796, 255204161, 276293028, 290261926, 302150093}));
  EXPECT_EQ(position(c, 3),
            (std::vector<std::int64_t>{6129193, 20484628, 57667260, 77728366, 86357215, 109234597, 123551585, 149309416, 160807097,
                                       181150422, 210033058, 220469929, 244412116, 268713397, 296893783, 318393237}));
}

TEST(ngram_context, cuts_at_the_nearest_end_of_text) {
  constexpr int kEos = 9;
  std::vector<int> context(4);
  const auto cut = [&](int token, const std::vector<int>& history) {
    ngram_context(token, history, kEos, context);
    return context;
  };
  EXPECT_EQ(cut(1, {4, 3, 2}), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(cut(1, {4, kEos, 2}), (std::vector<int>{1, 2, kEos, kEos}));
  EXPECT_EQ(cut(1, {4, 3, kEos}), (std::vector<int>{1, kEos, kEos, kEos}));
  EXPECT_EQ(cut(kEos, {4, 3, 2}), (std::vector<int>{kEos, 2, 3, 4})) << "the token does not cut its own context";
  EXPECT_EQ(cut(1, {kEos, 3, 2}), (std::vector<int>{1, 2, 3, kEos}));
}

// Written from the definition, without the running xor: every group hashes its own prefix.
TEST(ngram_hash, any_order_and_several_layers) {
  Config config = load_config(kGoldens / "rand-small/config.json");
  config.ngram_size = 5;
  config.heads_per_ngram = 3;
  config.ple_layers = {0, 1};
  std::vector<NgramHash> hashes{make_ngram_hash(config, 0), make_ngram_hash(config, 1)};
  EXPECT_NE(hashes[0].multipliers, hashes[1].multipliers);
  EXPECT_GT(hashes[1].head_sizes.front(), hashes[0].head_sizes.back()) << "the primes go on where the layer before stopped";
  const std::vector<int> context{7, 255, 3, 0, 100};
  for (const NgramHash& hash : hashes) {
    ASSERT_EQ(hash.head_sizes.size(), 12u);
    std::vector<std::int64_t> rows(12), expected;
    ngram_row_ids(hash, 3, context, rows);
    for (int n = 2; n <= 5; ++n) {
      std::int64_t x = 0;
      for (int i = 0; i < n; ++i) x ^= context[static_cast<std::size_t>(i)] * hash.multipliers[static_cast<std::size_t>(i)];
      for (std::size_t head = 0; head < 3; ++head) {
        const std::size_t j = static_cast<std::size_t>(n - 2) * 3 + head;
        expected.push_back(x % hash.head_sizes[j] + hash.head_offsets[j]);
      }
    }
    EXPECT_EQ(rows, expected);
  }
}

TEST(ngram_hash, products_stay_below_2_to_63) {
  Config config = published();
  for (const int vocab : {1, 2, 256, 248320, 1 << 24}) {
    config.vocab_size = vocab;
    for (const auto m : make_ngram_hash(config, 0).multipliers) {
      std::int64_t product = 0;
      EXPECT_FALSE(__builtin_mul_overflow(m, static_cast<std::int64_t>(vocab - 1), &product)) << vocab;
      EXPECT_EQ(m % 2, 1);
    }
  }
}

TEST(ngram_hash, sizes_that_disagree_are_an_internal_error) {
  const Config config = published();
  const NgramHash hash = make_ngram_hash(config, 0);
  std::vector<std::int64_t> rows(16);
  EXPECT_THROW(ngram_row_ids(hash, 8, std::vector<int>{1, 2}, rows), InternalError);
  EXPECT_THROW(make_ngram_hash(config, 1), InternalError);
}

}  // namespace
}  // namespace tetrad::ngram_hash_test
