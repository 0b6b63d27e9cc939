#include "model/ngram_hash.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kSeedStep = 10007;  // between the PLE layers of one model

__extension__ using uint128 = unsigned __int128;

std::uint64_t splitmix64(std::uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t multiply_mod(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
  return static_cast<std::uint64_t>(static_cast<uint128>(a) * b % m);
}

std::uint64_t power_mod(std::uint64_t base, std::uint64_t exponent, std::uint64_t m) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply_mod(result, base, m);
    base = multiply_mod(base, base, m);
  }
  return result;
}

// Miller-Rabin with the first twelve primes as witnesses, which decides every number below 2^64.
bool is_prime(std::uint64_t n) {
  constexpr std::array<std::uint64_t, 12> kWitnesses{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (n < 2) return false;
  for (const auto p : kWitnesses)
    if (n % p == 0) return n == p;
  const int twos = __builtin_ctzll(n - 1);
  for (const auto witness : kWitnesses) {
    std::uint64_t x = power_mod(witness, (n - 1) >> twos, n);
    if (x == 1 || x == n - 1) continue;
    int step = 1;
    while (step < twos && (x = multiply_mod(x, x, n)) != n - 1) ++step;
    if (step == twos) return false;
  }
  return true;
}

std::int64_t next_prime(std::int64_t above) {
  do ++above;
  while (!is_prime(static_cast<std::uint64_t>(above)));
  return above;
}

}  // namespace

NgramHash make_ngram_hash(const Config& config, int ple_index) {
  TETRAD_CHECK(ple_index >= 0 && static_cast<std::size_t>(ple_index) < config.ple_layers.size(), "ple_index {} of {}", ple_index,
               config.ple_layers.size());
  NgramHash hash;
  // Multipliers stay so small that id * multiplier never reaches 2^63 for an id below the vocabulary size.
  const auto multiplier_max =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / static_cast<std::uint64_t>(config.vocab_size);
  const std::uint64_t half = std::max<std::uint64_t>(1, multiplier_max / 2);
  const std::uint64_t base = static_cast<std::uint64_t>(config.hash_seed) + kSeedStep * static_cast<std::uint64_t>(ple_index);
  for (int i = 0; i < config.ngram_size; ++i) {
    const std::uint64_t hashed = splitmix64(base + kGamma * (static_cast<std::uint64_t>(i) + 1));
    hash.multipliers.push_back(static_cast<std::int64_t>(2 * (hashed % half) + 1));
  }

  const int heads = config.ngram_heads();
  std::int64_t prime = config.ngram_vocab_base - 1;
  for (int skipped = 0; skipped < ple_index * heads; ++skipped) prime = next_prime(prime);
  std::int64_t total = 0;
  for (int j = 0; j < heads; ++j) {
    prime = next_prime(prime);
    hash.head_sizes.push_back(prime);
    hash.head_offsets.push_back(total);
    total += prime;
  }
  const std::int64_t divisor = config.ngram_vocab_divisor;
  hash.padded_rows = (total + divisor - 1) / divisor * divisor;
  return hash;
}

void ngram_row_ids(const NgramHash& hash, int heads_per_ngram, std::span<const int> context, std::span<std::int64_t> rows) {
  TETRAD_CHECK(context.size() == hash.multipliers.size(), "context of {} ids, expected {}", context.size(), hash.multipliers.size());
  TETRAD_CHECK(rows.size() == hash.head_sizes.size(), "{} rows, expected {}", rows.size(), hash.head_sizes.size());
  const auto term = [&](std::size_t i) { return static_cast<std::uint64_t>(context[i]) * static_cast<std::uint64_t>(hash.multipliers[i]); };
  std::uint64_t mixed = term(0);
  std::size_t j = 0;
  for (std::size_t i = 1; i < context.size(); ++i) {
    mixed ^= term(i);
    for (int head = 0; head < heads_per_ngram; ++head, ++j)
      rows[j] = static_cast<std::int64_t>(mixed % static_cast<std::uint64_t>(hash.head_sizes[j])) + hash.head_offsets[j];
  }
  TETRAD_CHECK(j == rows.size(), "{} heads per n-gram, {} rows", heads_per_ngram, rows.size());
}

void ngram_context(int token, std::span<const int> history, int eos, std::span<int> context) {
  TETRAD_CHECK(context.size() == history.size() + 1, "context of {} ids, history of {}", context.size(), history.size());
  context[0] = token;
  bool cut = false;
  for (std::size_t i = 1; i < context.size(); ++i) {
    const int id = history[history.size() - i];
    cut = cut || id == eos;
    context[i] = cut ? eos : id;
  }
}

}  // namespace tetrad
