// Greedy and beam search without constraints, step for step as `regard.decoding.search`.
#pragma once
#include <vector>

#include "decoder.h"

namespace regard {

struct SearchRequest {
  int64_t beam;
  int64_t nbest;
  int32_t bos_id;
  const int32_t* max_lengths;
  int64_t num_max_lengths;     // one per text
  const double* length_norms;  // divisor of the score of a text with so many tokens
  int64_t num_length_norms;    // at least the largest max_length + 3
  const int32_t* forbidden;
  int64_t num_forbidden;
  Lexicon lexicon;
  const int32_t* cancelled;  // another thread sets it to end the search; may be null
};

struct Hypothesis {
  std::vector<int32_t> ids;
  double score;
  double logprob;
  bool is_finished;  // by the model, not by its max_length
};

// At most `nbest` hypotheses per source text, best first.
// Throws unless the request fits the model and the source.
std::vector<std::vector<Hypothesis>> search(const Model& model, const TokenBatch& source, const SearchRequest& request,
                                            const AttentionOptions& attention);

}  // namespace regard
