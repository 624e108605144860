// Writing: one more token of each row through all layers in one call, then the likeliest tokens after it.
#pragma once
#include "encoder.h"
#include "model.h"
#include "shortlist.h"

namespace regard {

// What a step is asked for, and where its answers go.
struct Asked {
  int k;
  int32_t* ids;           // [rows, k]
  float* logp;            // [rows, k], or [rows, vocabulary] for k = 0
  const int32_t* wanted;  // [rows]; null: the end
  float* wanted_logp;     // [rows]
};

// What generation remembers. Keys and values are written once; rows point at those of their past, so that rows are
// put in another order without moving any.
class State {
 public:
  // Of a translator: `source` is translated. Of a decoder alone: it is continued, and all its texts are equally long.
  State(const Model& model, const Texts& source);

  // Before the first step: each text is written with the words that its source's words have in a lexicon.
  void limit(const Lexicon& lexicon, const Texts& source);
  void step(const int32_t* tokens, int rows, const Asked& asked);
  void select(const int64_t* rows, int count);

 private:
  // A row on its way through the layers: the keys and values of its text, and how many tokens stand before it.
  struct Row {
    const Entry* past;
    int before;
  };

  void read(const Texts& source);
  void recall(const Texts& source);
  void pass(const int32_t* tokens, const std::vector<Row>& rows, int first, Workspace& space);
  void look_back(const std::vector<Row>& rows, int layer, Workspace& space, const SelfLook& part);
  void look_across(int first, int count, int layer, Workspace& space, const CrossLook& part);
  void find(int first, int count, Workspace& space, const Asked& asked) const;
  // The logits of rows from `from` on pass by; without k all are written to `every`, a row of a vocabulary each.
  void pass_by(Workspace& space, int from, int count, const Matrix& output, Best* best, float* every) const;

  const Model& model_;
  const bool halves_;                         // keys and values are bf16
  std::vector<int> sentence_;                 // of each row
  std::vector<Entry> past_;                   // [rows][room_]: layers' keys and values of a row's tokens
  size_t room_, length_ = 0;
  unsigned char* make_room(size_t entries, size_t steps);
  size_t number() const { return halves_ ? sizeof(uint16_t) : sizeof(float); }                  // bytes
  size_t entry_bytes() const { return model_.decoder.size() * model_.entry() * number(); }  // of all layers
  // Writes a layer's keys and values of a token.
  void keep(const float* made, size_t layer, Entry entry) const;
  Workspace workspace(int rows) const;
  void check_token(int32_t token) const;

  std::vector<Buffer> written_;               // keys and values, each for several steps
  size_t used_ = 0;                           // bytes of the last of them
  Buffer memory_;                             // keys and values of the source, [tokens][layers]
  std::vector<Entry> source_;                 // by token
  std::vector<int> offsets_;                  // of the sentences
  int longest_ = 0;
  std::vector<Shortlist> lists_;                  // of the sentences; none: all words
};

}  // namespace regard
