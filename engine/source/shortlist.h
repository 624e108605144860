// The words that a text may be written with, and the rows of the output layer that score them.
#pragma once
#include <vector>

#include "memory.h"
#include "types.h"

namespace regard {

// Which words translate which: those of every text, and those of each source word.
struct Lexicon {
  const int32_t* common = nullptr;  // null: there is none, and all words are used
  int common_count = 0;
  const int32_t* offsets = nullptr;  // [source words + 1]
  const int32_t* words = nullptr;
};

struct Shortlist {
  std::vector<int32_t> ids;  // ascending
  Buffer memory;
  Matrix output{};

  // Where a word stands among them; it must be there.
  int32_t place(int32_t id) const;
};

// The words of a source text, and the part of the output layer that scores them.
Shortlist shortlist_of(Pool& pool, const Matrix& whole, const Lexicon& lexicon, const int32_t* source, int length);

}  // namespace regard
