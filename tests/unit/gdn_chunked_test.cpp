// The chunked and the token-by-token form of the gated delta rule against the same recurrence in double, each within its own bound.
#include "cpu/gdn_chunked.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cpu/gdn_step.h"
#include "support/op_rig.h"

namespace tetrad::cpu::gdn_chunked_test {
namespace {

constexpr double kU = test::kFloatHalfStep;
constexpr double kSecondOrder = 1.05;  // products of the bounds' terms, which are left out below

struct Problem {
  int T, K, V;
  std::vector<float> q, k, v, g, beta, S;  // [T, K], [T, K], [T, V], [T], [T], [K, V]

  static Problem make(int T, int K, int V, double decay_scale, double beta_low, double beta_high, double state_scale, unsigned seed) {
    test::RandomValues random(seed);
    Problem p{T, K, V, random.row(T * K, 1.0), random.row(T * K, 1.0), random.row(T * V, 1.0), {}, {}, random.row(K * V, state_scale)};
    for (auto* rows : {&p.q, &p.k})
      for (int t = 0; t < T; ++t) {
        double squares = 0.0;
        for (int i = 0; i < K; ++i) squares += std::pow((*rows)[static_cast<std::size_t>(t * K + i)], 2);
        for (int i = 0; i < K; ++i) (*rows)[static_cast<std::size_t>(t * K + i)] *= static_cast<float>(1.0 / std::sqrt(squares));
      }
    for (int t = 0; t < T; ++t) {
      p.g.push_back(static_cast<float>(-decay_scale * std::abs(random.one(1.0))));
      p.beta.push_back(static_cast<float>(beta_low + (beta_high - beta_low) * random.below(1000) / 999.0));
    }
    return p;
  }
  const float* key(int t) const { return k.data() + static_cast<std::ptrdiff_t>(t) * K; }
  const float* query(int t) const { return q.data() + static_cast<std::ptrdiff_t>(t) * K; }
  double value(int t, int c) const { return v[static_cast<std::size_t>(t * V + c)]; }
  double log_decay(int t) const { return g[static_cast<std::size_t>(t)]; }
  double b(int t) const { return beta[static_cast<std::size_t>(t)]; }
};

double dot(const float* x, const double* y, int n, int stride) {
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[static_cast<std::ptrdiff_t>(i) * stride];
  return sum;
}

struct Exact {
  std::vector<double> S, o, new_values;  // after T tokens; [T, V]; u_t, what a token adds along its key: [T, V]
  std::vector<double> norms;             // [T + 1, V] of the columns of S before token t
};

Exact exact(const Problem& p, int T) {
  Exact e{{p.S.begin(), p.S.end()}, {}, {}, {}};
  const auto column_norm = [&](int c) {
    double squares = 0.0;
    for (int i = 0; i < p.K; ++i) squares += std::pow(e.S[static_cast<std::size_t>(i * p.V + c)], 2);
    return std::sqrt(squares);
  };
  for (int t = 0; t <= T; ++t) {
    for (int c = 0; c < p.V; ++c) e.norms.push_back(column_norm(c));
    if (t == T) break;
    for (double& s : e.S) s *= std::exp(p.log_decay(t));
    for (int c = 0; c < p.V; ++c) {
      const double u = p.b(t) * (p.value(t, c) - dot(p.key(t), e.S.data() + c, p.K, p.V));
      for (int i = 0; i < p.K; ++i) e.S[static_cast<std::size_t>(i * p.V + c)] += p.key(t)[i] * u;
      e.new_values.push_back(u);
      e.o.push_back(dot(p.query(t), e.S.data() + c, p.K, p.V));
    }
  }
  return e;
}

// Bounds: of o [T, V], and of the 2-norm of each column of S.
struct Bounds {
  std::vector<double> o, state;
};

// Token by token. In exact arithmetic S -> (I - beta k k^T) d S does not lengthen an error (beta in [0, 1], unit keys), so a column's error
// grows by what each token adds: the decay (exp, product), a dot product of K terms, the difference and the update, each a few half steps
// of |S| + |v|.
Bounds step_bounds(const Problem& p, const Exact& e, int T) {
  Bounds bounds;
  bounds.state.assign(static_cast<std::size_t>(p.V), 0.0);
  for (int t = 0; t < T; ++t)
    for (int c = 0; c < p.V; ++c) {
      const double norm = e.norms[static_cast<std::size_t>(t * p.V + c)], size = norm + std::abs(p.value(t, c));
      double& error = bounds.state[static_cast<std::size_t>(c)];
      error = std::exp(p.log_decay(t)) * error + kSecondOrder * kU * (p.K + 12) * size;
      bounds.o.push_back(kSecondOrder * (error + kU * (p.K + 1) * e.norms[static_cast<std::size_t>((t + 1) * p.V + c)]));
    }
  return bounds;
}

// One chunk [first, first + C). The substitution has the componentwise bound |dX| <= |L^-1| (|dL| |X| + |db|) with L = I + M; here
// N = L^-1 b, b_i = beta_i (v_i - exp(G_i) k_i S), and |dL_ij| comes from a dot product, the exponential and the sums in G.
class ChunkBounds {
 public:
  ChunkBounds(const Problem& p, const Exact& e, int first, int count) : p_(p), e_(e), first_(first), C_(count) {
    for (int i = 0; i < C_; ++i) G_.push_back((i > 0 ? G_.back() : 0.0) + p_.log_decay(first_ + i));
    invert();
  }

  // Appends to bounds.o and moves bounds.state on.
  void apply(Bounds& bounds) const {
    std::vector<double> outputs(static_cast<std::size_t>(C_ * p_.V));
    for (int c = 0; c < p_.V; ++c) {
      const double carried = bounds.state[static_cast<std::size_t>(c)], norm = e_.norms[static_cast<std::size_t>(first_ * p_.V + c)];
      const std::vector<double> error = new_value_errors(c, norm);
      for (int i = 0; i < C_; ++i) {
        double o = std::exp(G(i)) * (carried + norm * (kU * (p_.K + 4) + sum_error(i, -1)));
        for (int j = 0; j <= i; ++j) o += weight(i, j) * (error[at(j)] + std::abs(u(j, c)) * relative(i, j));
        outputs[static_cast<std::size_t>(i * p_.V + c)] = kSecondOrder * (o + kU * C_ * e_reach(i, c, norm));
      }
      const int last = C_ - 1;
      double state = std::exp(G(last)) * (carried + norm * (kU * (C_ + 4) + sum_error(last, -1)));
      for (int j = 0; j < C_; ++j) state += weight(last, j) * (error[at(j)] + std::abs(u(j, c)) * (relative(last, j) + kU * C_));
      bounds.state[static_cast<std::size_t>(c)] = kSecondOrder * state;
    }
    bounds.o.insert(bounds.o.end(), outputs.begin(), outputs.end());
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  double G(int i) const { return i < 0 ? 0.0 : G_[at(i)]; }
  double u(int j, int c) const { return e_.new_values[static_cast<std::size_t>((first_ + j) * p_.V + c)]; }
  double weight(int i, int j) const { return std::exp(G(i) - G(j)); }  // at least |q_i . k_j| D_ij and |k_i . k_j| D_ij
  // Of exp(G_i - G_j) as the sums are rounded: (i - j) additions whose results are at most |G_i|, one difference, the exponential.
  double sum_error(int i, int j) const { return kU * ((i - j) * std::abs(G(i)) + std::abs(G(i) - G(j)) + 4); }
  double relative(int i, int j) const { return sum_error(i, j) + kU * (p_.K + 4); }

  // Magnitudes that the sum of an output's terms runs through.
  double e_reach(int i, int c, double norm) const {
    double sum = std::exp(G(i)) * norm;
    for (int j = 0; j <= i; ++j) sum += weight(i, j) * std::abs(u(j, c));
    return sum;
  }

  void invert() {
    std::vector<double> L(static_cast<std::size_t>(C_ * C_), 0.0);
    inverse_.assign(L.size(), 0.0);
    for (int i = 0; i < C_; ++i) {
      inverse_[at(i * C_ + i)] = 1.0;
      for (int j = 0; j < i; ++j) {
        double product = 0.0;
        for (int d = 0; d < p_.K; ++d) product += static_cast<double>(p_.key(first_ + i)[d]) * p_.key(first_ + j)[d];
        const double m = p_.b(first_ + i) * product * weight(i, j);
        for (int l = 0; l <= j; ++l) inverse_[at(i * C_ + l)] -= m * inverse_[at(j * C_ + l)];
      }
    }
    for (double& x : inverse_) x = std::abs(x);
  }

  // |dN| of column c. The two solves carry beta v and beta exp(G) k S apart, so their sizes count, not that of their difference.
  std::vector<double> new_value_errors(int c, double norm) const {
    std::vector<double> apart(at(C_)), residual(at(C_)), error(at(C_), 0.0);  // apart: bound of |U| + |W S|
    for (int i = 0; i < C_; ++i) {
      const double right = p_.b(first_ + i) * (std::abs(p_.value(first_ + i, c)) + std::exp(G(i)) * norm);
      residual[at(i)] = right * (kU * (p_.K + 6) + sum_error(i, -1));
      for (int l = 0; l <= i; ++l)
        apart[at(i)] += inverse_[at(i * C_ + l)] * p_.b(first_ + l) * (std::abs(p_.value(first_ + l, c)) + std::exp(G(l)) * norm);
    }
    for (int i = 0; i < C_; ++i) {
      residual[at(i)] += kU * (p_.K + 2) * apart[at(i)];
      for (int j = 0; j < i; ++j) residual[at(i)] += p_.b(first_ + i) * weight(i, j) * (relative(i, j) + kU * C_) * apart[at(j)];
    }
    for (int i = 0; i < C_; ++i)
      for (int l = 0; l <= i; ++l) error[at(i)] += inverse_[at(i * C_ + l)] * residual[at(l)];
    return error;
  }

  const Problem& p_;
  const Exact& e_;
  int first_, C_;
  std::vector<double> G_, inverse_;
};

Bounds chunk_bounds(const Problem& p, const Exact& e, int T) {
  Bounds bounds;
  bounds.state.assign(static_cast<std::size_t>(p.V), 0.0);
  for (int first = 0; first < T; first += kGdnChunk) ChunkBounds(p, e, first, std::min(kGdnChunk, T - first)).apply(bounds);
  return bounds;
}

struct Result {
  std::vector<float> S, o;
};

Result stepwise(const Problem& p, int T) {
  Result r{p.S, std::vector<float>(static_cast<std::size_t>(T * p.V))};
  std::vector<float> rows, decay;  // q, k and v share one stride
  const int ld = 2 * p.K + p.V;
  for (int t = 0; t < T; ++t) {
    rows.insert(rows.end(), p.query(t), p.query(t) + p.K);
    rows.insert(rows.end(), p.key(t), p.key(t) + p.K);
    rows.insert(rows.end(), p.v.begin() + t * p.V, p.v.begin() + (t + 1) * p.V);
    decay.push_back(std::exp(p.g[static_cast<std::size_t>(t)]));
  }
  for (int column = 0; column < p.V; column += kGdnColumns)
    gdn_step({.T = T,
              .K = p.K,
              .V = p.V,
              .first_column = column,
              .num_columns = std::min(kGdnColumns, p.V - column),
              .q = rows.data(),
              .k = rows.data() + p.K,
              .v = rows.data() + 2 * p.K,
              .ld_qkv = ld,
              .decay = decay.data(),
              .beta = p.beta.data(),
              .ld_gates = 1,
              .S = r.S.data(),
              .o = r.o.data(),
              .ld_o = p.V});
  return r;
}

Result chunked(const Problem& p, int T) {
  Result r{p.S, std::vector<float>(static_cast<std::size_t>(T * p.V))};
  gdn_chunked({.T = T,
               .K = p.K,
               .V = p.V,
               .q = p.q.data(),
               .k = p.k.data(),
               .v = p.v.data(),
               .ld_qk = p.K,
               .ld_v = p.V,
               .log_decay = p.g.data(),
               .beta = p.beta.data(),
               .ld_gates = 1,
               .S = r.S.data(),
               .o = r.o.data(),
               .ld_o = p.V});
  return r;
}

// The largest share of its bound that an error takes.
double worst(const Problem& p, const Result& got, const Exact& e, const Bounds& bounds) {
  double share = 0.0;
  for (std::size_t i = 0; i < got.o.size(); ++i) share = std::max(share, std::abs(got.o[i] - e.o[i]) / (bounds.o[i] + 1e-40));
  for (int c = 0; c < p.V; ++c) {
    double squares = 0.0;
    for (int i = 0; i < p.K; ++i)
      squares += std::pow(got.S[static_cast<std::size_t>(i * p.V + c)] - e.S[static_cast<std::size_t>(i * p.V + c)], 2);
    share = std::max(share, std::sqrt(squares) / (bounds.state[static_cast<std::size_t>(c)] + 1e-40));
  }
  return share;
}

// How wide the bounds are against the outputs: they must be able to tell a wrong formula.
double width(const Exact& e, const Bounds& bounds) {
  double squares = 0.0, bound = 0.0;
  for (std::size_t i = 0; i < e.o.size(); ++i) squares += e.o[i] * e.o[i], bound += bounds.o[i] * bounds.o[i];
  return squares == 0.0 ? 0.0 : std::sqrt(bound / squares);
}

struct Regime {
  const char* name;
  double decay, beta_low, beta_high, state;
};

TEST(gdn_chunked, agrees_with_the_stepwise_form_for_every_length) {
  constexpr int kLongest = 200;
  for (const Regime& r : {Regime{"weak decay", 0.01, 0.3, 0.9, 1.0},
                          {"strong decay", 8.0, 0.3, 0.9, 1.0},
                          {"beta near 0", 0.05, 0.0, 0.01, 1.0},
                          {"beta near 1", 0.05, 0.99, 1.0, 1.0},
                          {"no decay, from nothing", 0.0, 0.0, 1.0, 0.0}}) {
    const Problem p = Problem::make(kLongest, 32, 3, r.decay, r.beta_low, r.beta_high, r.state, 7);
    double step_share = 0.0, chunk_share = 0.0, widest = 0.0;
    for (int T = 1; T <= kLongest; ++T) {
      const Exact e = exact(p, T);
      const Bounds step = step_bounds(p, e, T), chunk = chunk_bounds(p, e, T);
      step_share = std::max(step_share, worst(p, stepwise(p, T), e, step));
      chunk_share = std::max(chunk_share, worst(p, chunked(p, T), e, chunk));
      widest = std::max({widest, width(e, step), width(e, chunk)});
    }
    RecordProperty(
        r.name, fmt::format("stepwise {:.3f}, chunked {:.3f} of the bound; bound {:.1e} of the outputs", step_share, chunk_share, widest));
    EXPECT_LE(step_share, 1.0) << r.name;
    EXPECT_LE(chunk_share, 1.0) << r.name;
    EXPECT_LT(widest, 0.2) << r.name << ": the bound is too wide to tell";
  }
}

TEST(gdn_chunked, other_shapes_and_strides) {
  for (const auto& [K, V] : {std::pair{1, 1}, {3, 8}, {32, 40}}) {
    const Problem p = Problem::make(131, K, V, 0.1, 0.1, 0.9, 0.5, static_cast<unsigned>(K));
    const Exact e = exact(p, p.T);
    EXPECT_LE(worst(p, chunked(p, p.T), e, chunk_bounds(p, e, p.T)), 1.0) << K << " x " << V;
    EXPECT_LE(worst(p, stepwise(p, p.T), e, step_bounds(p, e, p.T)), 1.0) << K << " x " << V;
  }
}

TEST(gdn_chunked, nothing_to_do_changes_nothing) {
  const Problem p = Problem::make(1, 4, 3, 1.0, 0.5, 0.5, 1.0, 1);
  EXPECT_EQ(chunked(p, 0).S, p.S);
}

TEST(gdn_chunked, one_token_by_hand) {
  // S = [[4, 8], [2, 6]], decay 1/2, k = (1, 0), q = (0, 1), beta 1/2, v = (4, 2): row 0 becomes 2 + (4-2)/2, 4 + (2-4)/2.
  float S[] = {4, 8, 2, 6}, o[2];
  const float q[] = {0, 1}, k[] = {1, 0}, v[] = {4, 2}, g = std::log(0.5f), beta = 0.5f;
  gdn_chunked({.T = 1,
               .K = 2,
               .V = 2,
               .q = q,
               .k = k,
               .v = v,
               .ld_qk = 2,
               .ld_v = 2,
               .log_decay = &g,
               .beta = &beta,
               .ld_gates = 1,
               .S = S,
               .o = o,
               .ld_o = 2});
  const float expected[] = {3, 3, 1, 3};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(S[i], expected[i], 8 * 0x1p-24) << i;  // exp(log(1/2)) is within two units in the last place
  EXPECT_NEAR(o[0], 1.0f, 0x1p-22);
  EXPECT_NEAR(o[1], 3.0f, 0x1p-21);
}

}  // namespace
}  // namespace tetrad::cpu::gdn_chunked_test
