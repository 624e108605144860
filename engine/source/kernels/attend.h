// Attention: each query takes a mix of values by softmax(query · keys); rows of one text share what they look at.
#pragma once
#include <type_traits>

#include "vector.h"

namespace regard {
namespace {

constexpr int LOOK_HEADS = 4;      // heads that are compared while a key is at hand
constexpr float ANY = 3e38f, NOWHERE = -1e30f;  // most that a score may be, of keys that are there and that are not
constexpr float BOUNDS[2 * LANES] = {
    ANY,     ANY,     ANY,     ANY,     ANY,     ANY,     ANY,     ANY,     ANY,     ANY,     ANY,
    ANY,     ANY,     ANY,     ANY,     ANY,     NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE,
    NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE};

template <bool EVEN, class Stored>
inline Floats part_of_head(const Stored* head, int at, int width) {
  if constexpr (EVEN && std::is_same_v<Stored, uint16_t>) return load_paired(head + at);
  return EVEN || at + LANES <= width ? load(head + at) : load_part(head + at, width - at);
}

// Asks for an entry that is needed soon.
template <class Stored>
inline void fetch(const Look& given, int t) {
  if (t >= given.next_count) return;
  const Stored* entry = static_cast<const Stored*>(given.next[t]);
  for (int i = 0; i < given.heads * given.width; i += static_cast<int>(64 / sizeof(Stored))) {
    __builtin_prefetch(entry + given.key + i, 0, 2);
    __builtin_prefetch(entry + given.value + i, 0, 2);
  }
}

// Scores of one query: all heads of a key while it is at hand, sixteen keys together; [heads][padded].
template <bool EVEN, class Stored>
inline void compare(const Look& given, const float* query, int padded, float* scores) {
  const Floats scale = spread(1.0f / __builtin_sqrtf(static_cast<float>(given.width)));
  for (int first = 0; first < given.count; first += LANES) {
    const int some = given.count - first < LANES ? given.count - first : LANES;
    for (int group = 0; group < given.heads; group += LOOK_HEADS) {
      const int heads = given.heads - group < LOOK_HEADS ? given.heads - group : LOOK_HEADS;
      Floats dots[LOOK_HEADS][LANES];
      for (int t = 0; t < some; t++) {
        const Stored* key = static_cast<const Stored*>(given.entries[first + t]) + given.key + group * given.width;
        const float* q = query + group * given.width;
        for (int head = 0; head < heads; head++, key += given.width, q += given.width) {
          Floats dot = part_of_head<EVEN>(q, 0, given.width) * part_of_head<EVEN>(key, 0, given.width);
          for (int at = LANES; at < given.width; at += LANES)
            dot = dot + part_of_head<EVEN>(q, at, given.width) * part_of_head<EVEN>(key, at, given.width);
          dots[head][t] = dot;
        }
      }
      for (int head = 0; head < heads; head++) {
        for (int t = some; t < LANES; t++) dots[head][t] = dots[head][0];
        store(scores + (group + head) * padded + first, smaller(sums(dots[head]) * scale, load(BOUNDS + LANES - some)));
      }
    }
    for (int t = 0; t < some; t++) fetch<Stored>(given, first + t);
  }
}

// Turns scores into shares of 1 times what is returned.
inline float soften(float* scores, int padded) {
  Floats most = load(scores), total = spread(0);
  for (int t = LANES; t < padded; t += LANES) most = larger(most, load(scores + t));
  const Floats top = spread(largest(most));
  for (int t = 0; t < padded; t += LANES) {
    const Floats weights = exponential(load(scores + t) - top);
    store(scores + t, weights);
    total = total + weights;
  }
  return sum(total);
}

// Mixes PARTS · 16 numbers of the values by one head's weights.
template <int PARTS, bool EVEN, class Stored>
inline void mix(const Look& given, const float* weights, size_t from, int at, float total, float* out) {
  Floats mixed[PARTS];
  for (int p = 0; p < PARTS; p++) mixed[p] = spread(0);
  for (int t = 0; t < given.count; t++) {
    const Stored* value = static_cast<const Stored*>(given.entries[t]) + given.value + from;
    const Floats weight = spread(weights[t]);
    for (int p = 0; p < PARTS; p++)
      mixed[p] = mixed[p] + weight * part_of_head<EVEN>(value, at + p * LANES, given.width);
  }
  const Floats share = spread(1.0f / total);
  for (int p = 0; p < PARTS; p++) {
    float* place = out + from + at + p * LANES;
    if (EVEN || at + (p + 1) * LANES <= given.width)
      store(place, mixed[p] * share);
    else
      store_part(place, mixed[p] * share, given.width - at - p * LANES);
  }
}

template <bool EVEN, class Stored>
inline void look(const Look& given) {
  const int padded = (given.count + LANES - 1) / LANES * LANES;
  for (int row = 0; row < given.rows; row++) {
    float* out = given.mixed + static_cast<size_t>(row) * given.mixed_stride;
    compare<EVEN, Stored>(given, given.queries + static_cast<size_t>(row) * given.stride, padded, given.scores);
    for (int head = 0; head < given.heads; head++) {
      float* weights = given.scores + head * padded;
      const size_t from = static_cast<size_t>(head) * static_cast<size_t>(given.width);
      const float total = soften(weights, padded);
      int at = 0;
      if (EVEN) {
        for (; at + 4 * LANES <= given.width; at += 4 * LANES) mix<4, true, Stored>(given, weights, from, at, total, out);
        for (; at + 2 * LANES <= given.width; at += 2 * LANES) mix<2, true, Stored>(given, weights, from, at, total, out);
      }
      for (; at < given.width; at += LANES) mix<1, EVEN, Stored>(given, weights, from, at, total, out);
    }
  }
}

void attend(const Look& given) {
  const bool even = given.width % LANES == 0;
  if (given.halves)
    even ? look<true, uint16_t>(given) : look<false, uint16_t>(given);
  else
    even ? look<true, float>(given) : look<false, float>(given);
}

}  // namespace
}  // namespace regard
