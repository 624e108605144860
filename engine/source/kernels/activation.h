// Activations of a padded row.
#pragma once
#include "vector.h"

namespace regard {
namespace {

inline Floats sigmoid(Floats x) { return spread(1.0f) / (spread(1.0f) + exponential(smaller(spread(0.0f) - x, spread(88.0f)))); }

inline Floats hyperbolic(Floats x) {
  const Floats twice = exponential(smaller(magnitude(x) * spread(2.0f), spread(88.0f)));
  return with_sign(spread(1.0f) - spread(2.0f) / (twice + spread(1.0f)), x);
}

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
inline Floats error_function(Floats x) {
  const Floats size = magnitude(x), t = spread(1.0f) / (spread(1.0f) + spread(0.3275911f) * size);
  Floats p = spread(1.061405429f);
  p = p * t + spread(-1.453152027f);
  p = p * t + spread(1.421413741f);
  p = p * t + spread(-0.284496736f);
  p = p * t + spread(0.254829592f);
  return with_sign(spread(1.0f) - p * t * exponential(spread(0.0f) - size * size), x);
}

// x · Φ(x) by a polynomial, within 2e-5 between -4.3 and 4.3: for products that are not finer than bf16.
inline Floats near_gelu(Floats x) {
  constexpr float TERMS[] = {0.39880207f, -0.06615556f, 0.009695125f, -0.0010713789f, 8.711636e-05f, -5.006035e-06f, 1.9021597e-07f, -4.2487405e-09f, 4.197104e-11f};
  const Floats bound = spread(4.3f), z = larger(smaller(x, bound), spread(0.0f) - bound), square = z * z;
  Floats p = spread(TERMS[8]);
  REGARD_UNROLL for (int i = 7; i >= 0; i--) p = p * square + spread(TERMS[i]);
  return x * (spread(0.5f) + z * p);
}

template <class Function>
inline void each(const float* in, int width, float* out, Function function) {
  for (int i = 0; i < width; i += LANES) store(out + i, function(load(in + i)));
}

void activate(const float* in, int width, int activation, float* out) {
  const Floats half = spread(0.5f), one = spread(1.0f), zero = spread(0.0f);
  switch (activation) {
    case RELU:
      return each(in, width, out, [=](Floats x) { return larger(x, zero); });
    case GELU:
      return each(in, width, out, [=](Floats x) { return half * x * (one + error_function(x * spread(0.70710678f))); });
    case GELU_TANH:
      return each(in, width, out, [=](Floats x) {
        return half * x * (one + hyperbolic(spread(0.79788456f) * (x + spread(0.044715f) * x * x * x)));
      });
    case SILU:
      return each(in, width, out, [=](Floats x) { return x * sigmoid(x); });
    case TANH:
      return each(in, width, out, [=](Floats x) { return hyperbolic(x); });
    case NEAR_GELU:
      return each(in, width, out, [](Floats x) { return near_gelu(x); });
    case QUICK_GELU:
      return each(in, width, out, [=](Floats x) { return x * sigmoid(spread(1.702f) * x); });
    default:
      return each(in, width, out, [](Floats x) { return x; });
  }
}

}  // namespace
}  // namespace regard
