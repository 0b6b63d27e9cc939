#pragma once
// temporary scalar stand-in
#include <cmath>
#include "base/bf16.h"
namespace tetrad::cpu {
template <class A, class B, class F>
inline float lanes8(const A* a, const B* b, int n, F f) {
  float s[8] = {};
  for (int i = 0; i < n; ++i) s[i % 8] = s[i % 8] + f(a[i], b[i]);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
inline float sum_of_squares(const float* x, int n) { return lanes8(x, x, n, [](float a, float b) { return a * b; }); }
inline float dot(const float* x, const float* y, int n) { return lanes8(x, y, n, [](float a, float b) { return a * b; }); }
inline float dot(const float* x, const bf16* y, int n) { return lanes8(x, y, n, [](float a, bf16 b) { return a * to_float(b); }); }
inline float dot_rounded_products(const float* x, const float* y, int n) { return lanes8(x, y, n, [](float a, float b) { return round_bf16(a * b); }); }
inline void scale_round_bf16(const float* x, float f, const float* s, float* o, int n) { for (int i = 0; i < n; ++i) o[i] = round_bf16(x[i] * f * s[i]); }
inline void sigmoid(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 1.0f / (1.0f + std::exp(-x[i])); }
inline void silu(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = x[i] / (1.0f + std::exp(-x[i])); }
inline void sigmoid_bf16(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = round_bf16(1.0f / (1.0f + std::exp(-x[i]))); }
inline void silu_bf16(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = round_bf16(x[i] / (1.0f + std::exp(-x[i]))); }
inline void round_bf16_array(float* x, int n) { for (int i = 0; i < n; ++i) x[i] = tetrad::round_bf16(x[i]); }
inline void to_float_array(const bf16* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = tetrad::to_float(x[i]); }
inline void to_bf16_array(const float* x, bf16* y, int n) { for (int i = 0; i < n; ++i) y[i] = tetrad::to_bf16(x[i]); }
inline void softmax(const float* x, float* y, int n) {
  float m = x[0];
  for (int i = 1; i < n; ++i) m = x[i] > m ? x[i] : m;
  float s = 0;
  for (int i = 0; i < n; ++i) s += y[i] = std::exp(x[i] - m);
  for (int i = 0; i < n; ++i) y[i] /= s;
}
}
