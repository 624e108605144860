// Logits as they pass by: the best few, the sum of their exponentials, and one that is wanted; none is kept.
#pragma once
#include "vector.h"

namespace regard {
namespace {

inline void take(Best& best, float value, int32_t id) {
  int at = best.count < best.k ? best.count++ : best.k - 1;
  for (; at > 0 && best.values[at - 1] < value; at--) {
    best.values[at] = best.values[at - 1];
    best.ids[at] = best.ids[at - 1];
  }
  best.values[at] = value;
  best.ids[at] = id;
}

// `count` is a multiple of 16; the tokens are `first`, `first` + 1, …
void scan(const float* logits, int first, int count, Best& best) {
  Floats most = load(logits);
  for (int i = LANES; i < count; i += LANES) most = larger(most, load(logits + i));
  const float top = largest(most);
  Floats sums = load(best.sums);
  if (top > best.largest) {
    sums = sums * exponential(spread(best.largest - top));
    best.largest = top;
  }
  const Floats base = spread(best.largest);
  for (int i = 0; i < count; i += LANES) sums = sums + exponential(load(logits + i) - base);
  store(best.sums, sums);
  if (best.wanted >= first && best.wanted < first + count) best.wanted_logit = logits[best.wanted - first];
  if (best.k == 0) return;
  for (int i = 0; i < count; i += LANES) {
    if (best.count == best.k && !(top > best.values[best.k - 1])) return;
    unsigned found = best.count < best.k ? 0xffffu : above(load(logits + i), spread(best.values[best.k - 1]));
    for (int lane = 0; found; lane++, found >>= 1) {
      const float value = logits[i + lane];
      if ((found & 1u) && (best.count < best.k || value > best.values[best.k - 1])) take(best, value, first + i + lane);
    }
  }
}

}  // namespace
}  // namespace regard
