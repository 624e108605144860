// Activation functions over a padded row, and the product of a gated feed-forward layer.
#pragma once
#include "simd.h"

namespace regard {
namespace {

// exp() overflows above 88.
inline Floats exp_clamped(Floats x) { return exp(min(x, broadcast(88.0f))); }

inline Floats sigmoid(Floats x) {
  const Floats one = broadcast(1.0f);
  return one / (one + exp_clamped(broadcast(0.0f) - x));
}

inline Floats tanh(Floats x) {
  const Floats one = broadcast(1.0f);
  const Floats two = broadcast(2.0f);
  const Floats exp_2x = exp_clamped(abs(x) * two);
  return copysign(one - two / (exp_2x + one), x);
}

// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
inline Floats erf(Floats x) {
  const Floats one = broadcast(1.0f);
  const Floats size = abs(x);
  const Floats t = one / (one + broadcast(0.3275911f) * size);
  Floats p = broadcast(1.061405429f);
  p = p * t + broadcast(-1.453152027f);
  p = p * t + broadcast(1.421413741f);
  p = p * t + broadcast(-0.284496736f);
  p = p * t + broadcast(0.254829592f);
  return copysign(one - p * t * exp(broadcast(0.0f) - size * size), x);
}

inline Floats gelu(Floats x) {
  return broadcast(0.5f) * x * (broadcast(1.0f) + erf(x * broadcast(0.70710678f)));
}

inline Floats gelu_tanh(Floats x) {
  const Floats inner = broadcast(0.79788456f) * (x + broadcast(0.044715f) * x * x * x);
  return broadcast(0.5f) * x * (broadcast(1.0f) + tanh(inner));
}

// x · Φ(x) by an odd polynomial, within 2e-5 between -4.3 and 4.3: accurate enough where the matmul rounds to bf16 or
// int8.
inline Floats fast_gelu(Floats x) {
  constexpr float COEFFICIENTS[] = {0.39880207f,   -0.06615556f,  0.009695125f,   -0.0010713789f, 8.711636e-05f,
                                    -5.006035e-06f, 1.9021597e-07f, -4.2487405e-09f, 4.197104e-11f};
  const Floats bound = broadcast(4.3f);
  const Floats z = max(min(x, bound), broadcast(0.0f) - bound);
  const Floats square = z * z;
  Floats p = broadcast(COEFFICIENTS[8]);
  REGARD_UNROLL for (int i = 7; i >= 0; i--) p = p * square + broadcast(COEFFICIENTS[i]);
  return x * (broadcast(0.5f) + z * p);
}

template <class Function>
inline void map_row(const float* in, int64_t size, float* out, Function function) {
  for (int64_t i = 0; i < size; i += LANES) store(out + i, function(load(in + i)));
}

// Tails are loaded partially: in a gated layer, the right row begins where the left one ends.
void multiply(const float* left, const float* right, int64_t size, float* out) {
  const int64_t full = size / LANES * LANES;
  const int64_t tail = size - full;
  for (int64_t i = 0; i < full; i += LANES) store(out + i, load(left + i) * load(right + i));
  if (tail) store(out + full, load_partial(left + full, tail) * load_partial(right + full, tail));
}

void activate(const float* in, int64_t size, int activation, float* out) {
  switch (activation) {
    case RELU:
      return map_row(in, size, out, [](Floats x) { return max(x, broadcast(0.0f)); });
    case GELU:
      return map_row(in, size, out, [](Floats x) { return gelu(x); });
    case GELU_TANH:
      return map_row(in, size, out, [](Floats x) { return gelu_tanh(x); });
    case SILU:
      return map_row(in, size, out, [](Floats x) { return x * sigmoid(x); });
    case TANH:
      return map_row(in, size, out, [](Floats x) { return tanh(x); });
    case QUICK_GELU:
      return map_row(in, size, out, [](Floats x) { return x * sigmoid(broadcast(1.702f) * x); });
    case FAST_GELU:
      return map_row(in, size, out, [](Floats x) { return fast_gelu(x); });
    default:
      return map_row(in, size, out, [](Floats x) { return x; });
  }
}

}  // namespace
}  // namespace regard
