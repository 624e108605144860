// Greedy and beam search without special wishes, step for step as `regard.decoding.search` does it.
#pragma once
#include <vector>

#include "decoder.h"

namespace regard {

struct Plan {
  int beam, nbest;
  const int32_t* limits;     // [sentences], most tokens of each text
  const double* powers;      // [longest limit + 3]: each length to the power that scores are divided by
  const int32_t* forbidden;  // tokens that are never written
  int forbidden_count;
  Lexicon lexicon;
};

struct Hypothesis {
  std::vector<int32_t> ids;
  double score, total;
  bool finished;  // by the model, not by the limit
};

// The best texts for each source text, best first, at most `nbest`.
std::vector<std::vector<Hypothesis>> search(const Model& model, const Texts& source, int32_t start, const Plan& plan);

}  // namespace regard
