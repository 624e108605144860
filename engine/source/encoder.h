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
  const int32_t* types = nullptr;  // of all tokens; null: 0

  int tokens() const { return offsets[count]; }
  int length(int text) const { return offsets[text + 1] - offsets[text]; }
  void check(const Model& model) const;
};

// Whose states are needed: every token's, or those of each text's first token, which are found sooner.
enum class Wanted { all, firsts };

// What is done with states: `take` is told the first token, how many tokens, and their states in a workspace; where only
// firsts are wanted, those of other tokens mean nothing. Threads may call it at the same time, for different tokens.
using Take = std::function<void(int, int, Workspace&)>;

// Reads texts some at a time, by so many threads: each some texts of its own or, of few tokens, some rows of the same.
void encode(const Model& model, const Texts& texts, int threads, Wanted wanted, const Take& take);

}  // namespace regard
