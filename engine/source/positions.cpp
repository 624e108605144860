#include "positions.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace regard {
namespace {

// Sines, then cosines (Vaswani et al. 2017, section 3.5); an odd width has one sine more.
void sinusoids(int at, int width, float* out) {
  const int halves = (width + 1) / 2;
  for (int i = 0; i < halves; i++) {
    const double angle = at * std::exp(i * (-2 * std::log(10000.0) / width));
    out[i] = static_cast<float>(std::sin(angle));
    if (halves + i < width) out[halves + i] = static_cast<float>(std::cos(angle));
  }
}

}  // namespace

Positions::Positions(int kind, int places, int width, const float* learned)
    : kind_(kind), places_(places), width_(width), learned_(learned) {
  if (kind != REGARD_SINUSOIDAL) return;
  table_.resize(static_cast<size_t>(places) * static_cast<size_t>(width));
  for (int at = 0; at < places; at++) sinusoids(at, width, table_.data() + static_cast<size_t>(at) * static_cast<size_t>(width));
}

void Positions::check(int length) const {
  if (kind_ == REGARD_LEARNED && length > places_)
    throw std::invalid_argument("a row has " + std::to_string(length) + " places but the model learned " +
                                std::to_string(places_) + ": split it");
}

void Positions::add(float* row, int at) const {
  if (kind_ != REGARD_SINUSOIDAL && kind_ != REGARD_LEARNED) return;
  std::vector<float> beyond;
  const float* from = kind_ == REGARD_LEARNED ? learned_ : table_.data();
  if (at >= places_) {
    beyond.resize(static_cast<size_t>(width_));
    sinusoids(at, width_, beyond.data());
    from = beyond.data();
  } else {
    from += static_cast<size_t>(at) * static_cast<size_t>(width_);
  }
  for (int i = 0; i < width_; i++) row[i] += from[i];
}

void Positions::turn(float* row, int heads, int width, int at) const {
  const int half = width / 2;
  for (int i = 0; i < half; i++) {
    const float rate = std::exp(static_cast<float>(i) * static_cast<float>(-std::log(10000.0) / half));
    const float angle = static_cast<float>(at) * rate, cosine = std::cos(angle), sine = std::sin(angle);
    for (int head = 0; head < heads; head++) {
      float* left = row + head * width + i;
      float* right = left + half;
      const float l = *left, r = *right;
      *left = l * cosine - r * sine;
      *right = r * cosine + l * sine;
    }
  }
}

}  // namespace regard
