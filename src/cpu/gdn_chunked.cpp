#include "cpu/gdn_chunked.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace tetrad::cpu {
namespace {

// One chunk of C tokens that starts at token `first`.
class Chunk {
 public:
  Chunk(const GdnChunkedArgs& a, int first, int count)
      : a_(a), first_(first), C_(count), G_(size(1)), M_(size(C_)), U_(size(a.V)), W_(size(a.K)) {
    float sum = 0.0f;
    for (int i = 0; i < C_; ++i) G_[index(i)] = sum += gate(a_.log_decay, i);
  }

  void run() {
    build();
    solve(U_, a_.V);
    solve(W_, a_.K);
    subtract_recalled();
    write_outputs();
    update_state();
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t size(int width) const { return index(C_) * index(width); }
  const float* q(int i) const { return a_.q + static_cast<std::ptrdiff_t>(first_ + i) * a_.ld_qk; }
  const float* k(int i) const { return a_.k + static_cast<std::ptrdiff_t>(first_ + i) * a_.ld_qk; }
  const float* v(int i) const { return a_.v + static_cast<std::ptrdiff_t>(first_ + i) * a_.ld_v; }
  float gate(const float* values, int i) const { return values[static_cast<std::ptrdiff_t>(first_ + i) * a_.ld_gates]; }
  float decay(int i, int j) const { return std::exp(G_[index(i)] - G_[index(j)]); }
  float* row(std::vector<float>& matrix, int i, int width) { return matrix.data() + static_cast<std::ptrdiff_t>(i) * width; }

  float dot(const float* x, const float* y) const {
    float sum = 0.0f;
    for (int d = 0; d < a_.K; ++d) sum += x[d] * y[d];
    return sum;
  }

  // M, and the right-hand sides in the places of U and W.
  void build() {
    for (int i = 0; i < C_; ++i) {
      const float beta = gate(a_.beta, i), scale = beta * std::exp(G_[index(i)]);
      for (int j = 0; j < i; ++j) row(M_, i, C_)[j] = beta * dot(k(i), k(j)) * decay(i, j);
      for (int c = 0; c < a_.V; ++c) row(U_, i, a_.V)[c] = beta * v(i)[c];
      for (int d = 0; d < a_.K; ++d) row(W_, i, a_.K)[d] = scale * k(i)[d];
    }
  }

  // X <- (I + M)^-1 X, M strictly lower.
  void solve(std::vector<float>& X, int width) {
    for (int i = 0; i < C_; ++i)
      for (int j = 0; j < i; ++j) {
        const float m = row(M_, i, C_)[j];
        for (int c = 0; c < width; ++c) row(X, i, width)[c] -= m * row(X, j, width)[c];
      }
  }

  // U <- N = U - W S.
  void subtract_recalled() {
    for (int i = 0; i < C_; ++i)
      for (int c = 0; c < a_.V; ++c) {
        float recalled = 0.0f;
        for (int d = 0; d < a_.K; ++d) recalled += row(W_, i, a_.K)[d] * a_.S[static_cast<std::ptrdiff_t>(d) * a_.V + c];
        row(U_, i, a_.V)[c] -= recalled;
      }
  }

  void write_outputs() {
    for (int i = 0; i < C_; ++i) {
      float* o = a_.o + static_cast<std::ptrdiff_t>(first_ + i) * a_.ld_o;
      std::fill_n(o, a_.V, 0.0f);
      for (int d = 0; d < a_.K; ++d)
        for (int c = 0; c < a_.V; ++c) o[c] += q(i)[d] * a_.S[static_cast<std::ptrdiff_t>(d) * a_.V + c];
      const float carried = std::exp(G_[index(i)]);
      for (int c = 0; c < a_.V; ++c) o[c] *= carried;
      for (int j = 0; j <= i; ++j) {
        const float weight = dot(q(i), k(j)) * decay(i, j);
        for (int c = 0; c < a_.V; ++c) o[c] += weight * row(U_, j, a_.V)[c];
      }
    }
  }

  void update_state() {
    const float carried = std::exp(G_[index(C_ - 1)]);
    for (int d = 0; d < a_.K; ++d) {
      float* s = a_.S + static_cast<std::ptrdiff_t>(d) * a_.V;
      for (int c = 0; c < a_.V; ++c) s[c] *= carried;
      for (int j = 0; j < C_; ++j) {
        const float weight = decay(C_ - 1, j) * k(j)[d];
        for (int c = 0; c < a_.V; ++c) s[c] += weight * row(U_, j, a_.V)[c];
      }
    }
  }

  const GdnChunkedArgs& a_;
  int first_, C_;
  std::vector<float> G_;  // [C]
  std::vector<float> M_;  // [C, C]
  std::vector<float> U_;  // [C, V], then N
  std::vector<float> W_;  // [C, K]
};

}  // namespace

void gdn_chunked(const GdnChunkedArgs& a) {
  for (int first = 0; first < a.T; first += kGdnChunk) Chunk(a, first, std::min(kGdnChunk, a.T - first)).run();
}

}  // namespace tetrad::cpu
