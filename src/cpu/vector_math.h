#pragma once
// Arithmetic on contiguous float arrays, by the vector units of the machine. n >= 0 elements everywhere; an output may be one of its
// inputs but may not overlap it otherwise. Nothing is allocated.
//
// Elementwise: an element's bits depend on its inputs alone, not on its place, n or the vector width.
// Reductions ("8-lane order"): lane l of eight sums f(x[i]) over i = l, l+8, ... ascending, every product rounded before it is added; then
//   ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
// Both hold on every machine. exp and what is built on it differ in the last bit between machines with and without a fused multiply-add;
// nothing else does.
// NaN and infinities: as IEEE arithmetic gives them; a NaN input is a NaN output, never a number.
// Tests: unit/vector_math_test
#include "base/bf16.h"

namespace tetrad::cpu {

// --- Conversion ---
void to_float_array(const bf16* x, float* y, int n);
void to_bf16_array(const float* x, bf16* y, int n);  // to nearest, ties to even
void round_bf16_array(float* x, int n);              // in place, to the nearest bf16

// --- Transcendental functions, within 1 unit in the last place of the exact value for exp (subnormal results included), 3 for the others
// ---
void exp(const float* x, float* y, int n);           // 0 below about -103.97, infinity above about 88.72
void sigmoid(const float* x, float* y, int n);       // 1 / (1 + exp(-x)), each step rounded to float32
void silu(const float* x, float* y, int n);          // x / (1 + exp(-x)); NaN at -infinity, as the formula has it
void sigmoid_bf16(const float* x, float* y, int n);  // round_bf16(sigmoid(x))
void silu_bf16(const float* x, float* y, int n);     // round_bf16(silu(x))
void softplus(const float* x, float* y, int n);      // log(1 + exp(x)); x itself above 20

// --- Elementwise; bf(.) is round_bf16, every operation is rounded to float32 first ---
void scale_round_bf16(const float* x, float f, const float* s, float* y, int n);  // y = bf((x * f) * s)
void mul_round_bf16(const float* a, const float* b, float* y, int n);             // y = bf(a * b)
void add_round_bf16(const float* a, const float* b, float* y, int n);             // y = bf(a + b)
void scale(float f, const float* x, float* y, int n);                             // y = f * x
void add_product(const float* a, const float* b, float* y, int n);                // y = y + a * b
void add_product(const float* a, const bf16* b, float* y, int n);
void add_scaled(float f, const bf16* x, float* y, int n);            // y = y + f * x
void add_rounded_product(float f, const float* x, float* y, int n);  // y = y + bf(f * x)
void inject_round_bf16(float f, const float* x, float* y, int n);    // y = bf(y + bf(f * x))

// out[d] = bf((bf(gate[0, d] * x[0, d]) + bf(gate[1, d] * x[1, d]) + ...) / rows), rows added in ascending order; gate, x: [rows, n].
void gated_mean_bf16(const float* gate, const float* x, int rows, float* out, int n);

// --- Reductions in 8-lane order; 0 for n == 0 ---
float sum(const float* x, int n);
float sum_of_squares(const float* x, int n);
float dot(const float* x, const float* y, int n);
float dot(const float* x, const bf16* y, int n);
float dot_rounded_products(const float* x, const float* y, int n);  // products rounded to bf16 before they are added

// The largest element; NaN if there is one; -infinity for n == 0.
float max_value(const float* x, int n);

// y = exp(x - max_value(x)) / sum in 8-lane order. All NaN if x holds a NaN or +infinity, or nothing but -infinity.
void softmax(const float* x, float* y, int n);

}  // namespace tetrad::cpu
