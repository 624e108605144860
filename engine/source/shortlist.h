// Shortlists: the target tokens that a translation may use, and the rows of the output layer that score them.
#pragma once
#include <vector>

#include "buffer_pool.h"
#include "types.h"

namespace regard {

// Target tokens by source token, and those allowed in every text.
struct Lexicon {
  const int32_t* always_allowed = nullptr;  // null: no lexicon, the whole vocabulary is used
  int64_t num_always_allowed = 0;
  const int32_t* offsets = nullptr;
  int64_t num_offsets = 0;  // source vocabulary + 1
  const int32_t* token_ids = nullptr;
  int64_t size = 0;  // number of token ids
};

struct Shortlist {
  std::vector<int32_t> ids;  // ascending
  Buffer memory;
  PackedLinear output;

  // Index of a token of the shortlist; throws if it has none.
  int32_t index_of(int32_t id) const;
};

// Shortlist of a source text: `output` restricted to its tokens.
Shortlist build_shortlist(BufferPool& pool, const PackedLinear& output, const Lexicon& lexicon,
                          const int32_t* source_ids, int64_t length);

}  // namespace regard
