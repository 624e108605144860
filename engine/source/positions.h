// Where each token stands: numbers added to its words, or turns of queries and keys.
#pragma once
#include <cstddef>
#include <vector>

#include "../include/regard_engine.h"

namespace regard {

class Positions {
 public:
  // `learned` is a table [places, width] for learned ones.
  Positions(int kind, int places, int width, const float* learned);

  // Throws where a text has more places than were learned.
  void check(int length) const;
  void add(float* row, int at) const;
  bool turns() const { return kind_ == REGARD_ROTARY; }
  // Turns the heads of a row by its place (Su et al. 2021).
  void turn(float* row, int heads, int width, int at) const;

 private:
  int kind_, places_, width_;
  const float* learned_;
  std::vector<float> table_;
};

}  // namespace regard
