#include "encoder.h"

#include <algorithm>
#include <stdexcept>

#include "parallel.h"

namespace regard {
namespace {

constexpr int TOKENS = 128;      // read together: few enough to stay near the processor, enough to use weights often
constexpr int ROWS_OF_ONE = 8;   // a thread more pays for so many rows

// Texts that are read together. Each reader has some of their rows, and all look at the keys and values of all.
struct Passage {
  const Texts& texts;
  int first, last;  // texts
  float* seen[2];   // queries, keys and values of all rows; of the layer before, others may not be done yet
  size_t stride;

  int begin() const { return texts.offsets[first]; }
  int count() const { return texts.offsets[last] - begin(); }
};

// Rows from `from` to `to` of a passage, in a workspace of their own.
class Reader {
 public:
  Reader(const Model& model, const Passage& passage, int from, int to, Workspace& space)
      : model_(model), passage_(passage), from_(from), to_(to), space_(space) {}

  // Reads in as many steps as there are layers, and one more. A step needs the queries, keys and values that all readers
  // of the passage made in the step before.
  void run_step(int step, Wanted wanted) {
    const int layers = static_cast<int>(model_.encoder.size());
    if (step == 0) embed();
    else finish_layer(step - 1, wanted == Wanted::firsts && step == layers);
    if (step < layers) project(model_.encoder[static_cast<size_t>(step)].look, passage_.seen[step % 2]);
    else if (model_.shape.norm_before) model_.arithmetic.norm_rows(space_.states, space_.stride, to_ - from_, model_.encoder_norm);
  }

  // Reads a passage that has no other readers.
  void read(Wanted wanted) {
    for (int step = 0; step <= static_cast<int>(model_.encoder.size()); step++) run_step(step, wanted);
  }

 private:
  // Calls `take` with each text's rows that are ours: where it begins, its length, first and last of ours in it.
  template <class Taker>
  void each_text(Taker take) const {
    const Texts& texts = passage_.texts;
    for (int text = passage_.first; text < passage_.last; text++) {
      const int start = texts.offsets[text] - passage_.begin(), length = texts.length(text);
      const int first = std::max(0, from_ - start), last = std::min(length, to_ - start);
      if (first < last) take(start, length, first, last);
    }
  }

  void embed() {
    const Texts& texts = passage_.texts;
    const regard_shape& shape = model_.shape;
    each_text([&](int start, int, int first, int last) {
      for (int at = first; at < last; at++) {
        float* row = space_.states + static_cast<size_t>(start + at - from_) * space_.stride;
        const int token = passage_.begin() + start + at;
        model_.source.put(texts.ids[token], shape.width, shape.scale, row);
        std::fill(row + shape.width, row + space_.stride, 0.0f);  // what a damaged file's padding left there
        model_.source_positions->add(row, shape.first_place + at);
        if (!shape.types) continue;
        const int type = texts.types ? texts.types[token] : 0;
        const float* kind = model_.types + static_cast<size_t>(type) * static_cast<size_t>(shape.width);
        for (int i = 0; i < shape.width; i++) row[i] += kind[i];
      }
    });
    if (shape.embedding_norm) model_.arithmetic.norm_rows(space_.states, space_.stride, to_ - from_, model_.embedding_norm);
  }

  // Makes queries, keys and values of our rows.
  void project(const SelfLook& part, float* seen) {
    const Arithmetic& arithmetic = model_.arithmetic;
    const int width = model_.shape.width, heads = model_.shape.encoder_heads, count = to_ - from_;
    float* own = seen + static_cast<size_t>(from_) * passage_.stride;
    arithmetic.apply(space_, space_.states, space_.stride, count, part.qkv, arithmetic.norm_before ? &part.norm : nullptr,
                     IDENTITY, own, passage_.stride, false);
    if (!model_.source_positions->turns()) return;
    each_text([&](int start, int, int first, int last) {
      for (int at = first; at < last; at++)  // queries and keys
        model_.source_positions->turn(seen + static_cast<size_t>(start + at) * passage_.stride, 2 * heads, width / heads, at);
    });
  }

  // What follows the projections of a layer; `few`: for the first tokens of texts alone.
  void finish_layer(int layer, bool few) {
    const EncoderBlock& block = model_.encoder[static_cast<size_t>(layer)];
    const int rows = look(block.look, passage_.seen[layer % 2], few);
    model_.arithmetic.think(space_, rows, block.feedforward);
    if (few) put_back(rows);
  }

  // Every token looks at all tokens of its own text, or the first ones alone, whose states are then moved to the front.
  // How many rows there are after it is returned.
  int look(const SelfLook& part, const float* seen, bool few) {
    const Arithmetic& arithmetic = model_.arithmetic;
    const int width = model_.shape.width, heads = model_.shape.encoder_heads;
    int rows = few ? 0 : to_ - from_;
    each_text([&](int start, int length, int first, int last) {
      if (few && first > 0) return;
      const int place = few ? rows++ : start + first - from_;
      arithmetic.operators->read({seen + static_cast<size_t>(start) * passage_.stride, passage_.stride, length, first,
                                  few ? 1 : last, heads, width / heads, space_.scores,
                                  space_.mixed + static_cast<size_t>(place) * space_.stride, space_.stride});
      if (few) move(start - from_, place);
    });
    arithmetic.apply(space_, space_.mixed, space_.stride, rows, part.out, nullptr, IDENTITY, space_.states, space_.stride, true);
    if (!arithmetic.norm_before) arithmetic.norm_rows(space_.states, space_.stride, rows, part.norm);
    return rows;
  }

  void move(int from, int to) {
    if (from == to) return;
    std::copy_n(space_.states + static_cast<size_t>(from) * space_.stride, space_.stride,
                space_.states + static_cast<size_t>(to) * space_.stride);
  }

  // Puts the states at the front back to where their texts begin, the last one first.
  void put_back(int rows) {
    std::vector<int> begins;
    each_text([&](int start, int, int first, int) {
      if (first == 0) begins.push_back(start - from_);
    });
    while (rows-- > 0) move(rows, begins[static_cast<size_t>(rows)]);
  }

  const Model& model_;
  const Passage& passage_;
  const int from_, to_;
  Workspace& space_;
};

// The first texts of passages of at most so many tokens, longer texts alone, and the end.
std::vector<int> cut(const Texts& texts, int most) {
  std::vector<int> made{0};
  for (int text = 1; text < texts.count; text++)
    if (texts.offsets[text + 1] - texts.offsets[made.back()] > most) made.push_back(text);
  made.push_back(texts.count);
  return made;
}

}  // namespace

void Texts::check(const Model& model) const {
  if (!model.reads()) throw std::invalid_argument("this model continues texts and reads no others");
  if (count < 1 || offsets[0] != 0) throw std::invalid_argument("offsets must start at 0");
  for (int text = 0; text < count; text++) {
    if (offsets[text + 1] <= offsets[text]) throw std::invalid_argument("a source text has no tokens");
    model.source_positions->check(length(text) + model.shape.first_place);
  }
  for (int i = 0; i < tokens(); i++) {
    if (ids[i] < 0 || ids[i] >= model.shape.source_vocabulary)
      throw std::invalid_argument("token " + std::to_string(ids[i]) + " is outside the source vocabulary");
    if (types && model.shape.types && (types[i] < 0 || types[i] >= model.shape.types))
      throw std::invalid_argument("type " + std::to_string(types[i]) + " is not one of " + std::to_string(model.shape.types));
  }
}

void encode(const Model& model, const Texts& texts, int threads, Wanted wanted, const Take& take) {
  texts.check(model);
  const regard_shape& shape = model.shape;
  int longest = 0;
  for (int text = 0; text < texts.count; text++) longest = std::max(longest, texts.length(text));
  const int even = (texts.tokens() + threads - 1) / threads;  // of several threads, each has something to do
  const std::vector<int> cuts = cut(texts, std::min(TOKENS, std::max(even, 1)));
  const int passages = static_cast<int>(cuts.size()) - 1;
  const int most = std::min(texts.tokens(), std::max(TOKENS, longest));  // rows of a passage
  const size_t stride = row_stride(3 * static_cast<size_t>(shape.width));
  const auto space_for = [&](int rows) {
    const size_t room = static_cast<size_t>(shape.width / shape.encoder_heads + 4) * padded(static_cast<size_t>(longest));
    return Workspace(model.pool, static_cast<size_t>(rows), static_cast<size_t>(shape.width), model.widest(), 1, room);
  };
  const auto seen_for = [&](int rows) { return Buffer(&model.pool, static_cast<size_t>(rows) * stride * sizeof(float)); };
  // Helpers get no memory of their own: they may outlive this call, and the model.
  if (passages >= threads || threads == 1) {
    const int members = std::min(threads, passages);
    std::vector<Workspace> spaces;
    std::vector<Buffer> seen;
    for (int member = 0; member < members; member++) spaces.push_back(space_for(most)), seen.push_back(seen_for(most));
    run_steps(members, 1, passages, [&](int, int number, int member) {
      Workspace& space = spaces[static_cast<size_t>(member)];
      float* const projected = seen[static_cast<size_t>(member)].as<float>();
      const Passage passage{texts, cuts[static_cast<size_t>(number)], cuts[static_cast<size_t>(number) + 1],
                            {projected, projected}, stride};
      Reader(model, passage, 0, passage.count(), space).read(wanted);
      take(passage.begin(), passage.count(), space);
    });
    return;
  }
  const Buffer one = seen_for(most), other = seen_for(most);
  Workspace whole = space_for(most);
  const int steps = shape.encoder_layers + 1;
  for (int number = 0; number < passages; number++) {
    const int first = cuts[static_cast<size_t>(number)], last = cuts[static_cast<size_t>(number) + 1];
    const int count = texts.offsets[last] - texts.offsets[first], team = std::clamp(count / ROWS_OF_ONE, 1, threads);
    const Passage passage{texts, first, last, {one.as<float>(), other.as<float>()}, stride};
    std::vector<Workspace> spaces;
    for (int part = 0; part < team; part++) spaces.push_back(space_for(count / team + 1));
    // any thread may compute any part's next step: its states are in the part's workspace, not in the thread's
    run_steps(team, steps, team, [&](int step, int part, int) {
      const int from = count * part / team, to = count * (part + 1) / team;
      Workspace& space = spaces[static_cast<size_t>(part)];
      Reader(model, passage, from, to, space).run_step(step, wanted);
      if (step + 1 == steps)
        std::copy_n(space.states, static_cast<size_t>(to - from) * space.stride,
                    whole.states + static_cast<size_t>(from) * whole.stride);
    });
    take(passage.begin(), count, whole);
  }
}

}  // namespace regard
