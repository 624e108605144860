// Reading: whole source texts through the encoder, without padding.
#pragma once
#include <functional>

#include "model.h"

namespace regard {

// Texts laid end to end; checked before use.
struct Texts {
  const int32_t* ids;
  const int32_t* offsets;
  int count;

  int tokens() const { return offsets[count]; }
  int length(int text) const { return offsets[text + 1] - offsets[text]; }
  void check(const Model& model) const;
};

// Reads texts some at a time; `take` is told the first token, how many tokens, and their states in the workspace.
void encode(const Model& model, const Texts& texts, const std::function<void(int, int, Workspace&)>& take);

}  // namespace regard
