#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace regard {
namespace {

constexpr size_t ROWS = 128;       // that go through all layers together
constexpr size_t STEPS = 8;         // whose keys and values have room together
constexpr float NEVER = -1e30f;    // logit of what stands for no token

}  // namespace

State::State(const Model& model, const Texts& source)
    : model_(model), halves_(model.shape.precision != FLOAT32), room_(32) {
  if (!model.writes()) throw std::invalid_argument("this model reads and does not write");
  for (int text = 0; text < source.count; text++) sentence_.push_back(text);
  if (model.reads()) read(source);
  else recall(source);
}

// Keys and values of what is to be translated.
void State::read(const Texts& source) {
  source.check(model_);
  const size_t tokens = static_cast<size_t>(source.tokens());
  memory_ = Buffer(&model_.pool, tokens * entry_bytes());
  for (size_t i = 0; i < tokens; i++) source_.push_back(memory_.as<unsigned char>() + i * entry_bytes());
  encode(model_, source, 1, Wanted::all, [&](int first, int count, Workspace& space) {
    for (size_t layer = 0; layer < model_.decoder.size(); layer++) {
      model_.arithmetic.apply(space, space.states, space.stride, count, model_.decoder[layer].cross.key_value, nullptr,
                              IDENTITY, space.wide, space.wide_stride, false);
      for (int i = 0; i < count; i++)
        keep(space.wide + static_cast<size_t>(i) * space.wide_stride, layer, source_[static_cast<size_t>(first + i)]);
    }
  });
  offsets_.assign(source.offsets, source.offsets + source.count + 1);
  for (int text = 0; text < source.count; text++) longest_ = std::max(longest_, source.length(text));
  past_.resize(sentence_.size() * room_);
}

// Keys and values of what was written so far: tokens after one another are rows of one pass, because each has left its
// own before the next one looks.
void State::recall(const Texts& source) {
  if (source.count < 1 || source.offsets[0] != 0) throw std::invalid_argument("offsets must start at 0");
  const int length = source.length(0);
  if (length < 0) throw std::invalid_argument("offsets must grow");
  for (int text = 0; text < source.count; text++)
    if (source.length(text) != length) throw std::invalid_argument("texts that are continued together are equally long");
  for (int i = 0; i < source.tokens(); i++) check_token(source.ids[i]);
  if (length) model_.target_positions->check(length);
  length_ = static_cast<size_t>(length);
  while (room_ < length_ + 1) room_ *= 2;
  past_.resize(sentence_.size() * room_);
  if (!length) return;
  const unsigned char* made = make_room(static_cast<size_t>(source.tokens()), 1);
  std::vector<Row> rows;
  Workspace space = workspace(source.tokens());
  for (int i = 0; i < source.tokens(); i++) {
    Entry* past = past_.data() + static_cast<size_t>(i / length) * room_;
    past[i % length] = made + static_cast<size_t>(i) * entry_bytes();
    rows.push_back({past, i % length});
    if (rows.size() < ROWS && i + 1 < source.tokens()) continue;
    pass(source.ids + i + 1 - static_cast<int>(rows.size()), rows, -1, space);
    rows.clear();
  }
}

void State::check_token(int32_t token) const {
  if (token < 0 || token >= model_.shape.target_vocabulary)
    throw std::invalid_argument("token " + std::to_string(token) + " is outside the target vocabulary");
}

Workspace State::workspace(int rows) const {
  return Workspace(model_.pool, std::min(static_cast<size_t>(rows), ROWS), static_cast<size_t>(model_.shape.width),
                   model_.widest(), static_cast<size_t>(model_.shape.decoder_heads),
                   std::max(static_cast<size_t>(longest_), length_ + 1));
}

void State::select(const int64_t* rows, int count) {
  const size_t before = sentence_.size();
  std::vector<int> sentence(static_cast<size_t>(count));
  std::vector<Entry> past(static_cast<size_t>(count) * room_);
  for (int i = 0; i < count; i++) {
    if (rows[i] < 0 || static_cast<size_t>(rows[i]) >= before)
      throw std::invalid_argument("there is no row " + std::to_string(rows[i]) + " to select");
    const size_t row = static_cast<size_t>(rows[i]);
    sentence[static_cast<size_t>(i)] = sentence_[row];
    std::copy_n(past_.begin() + static_cast<std::ptrdiff_t>(row * room_), length_,
                past.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * room_));
  }
  std::vector<bool> alive(lists_.size());
  for (int text : sentence)
    if (!lists_.empty()) alive[static_cast<size_t>(text)] = true;
  for (size_t text = 0; text < lists_.size(); text++)
    if (!alive[text]) lists_[text] = Shortlist{};
  sentence_.swap(sentence);
  past_.swap(past);
}

void State::step(const int32_t* tokens, int rows, const Asked& asked) {
  if (rows < 1 || static_cast<size_t>(rows) != sentence_.size())
    throw std::invalid_argument(std::to_string(rows) + " tokens for " + std::to_string(sentence_.size()) + " rows");
  for (int i = 0; i < rows; i++) {
    check_token(tokens[i]);
    if (asked.wanted) check_token(asked.wanted[i]);
  }
  const int vocabulary = model_.shape.target_vocabulary;
  if (asked.k < 0 || asked.k > vocabulary)
    throw std::invalid_argument("k must be from 0 to " + std::to_string(vocabulary) + ", not " + std::to_string(asked.k));
  model_.target_positions->check(static_cast<int>(length_) + 1);
  const size_t count = static_cast<size_t>(rows);
  if (length_ == room_) {
    std::vector<Entry> past(count * 2 * room_);
    for (size_t row = 0; row < count; row++)
      std::copy_n(past_.begin() + static_cast<std::ptrdiff_t>(row * room_), room_,
                  past.begin() + static_cast<std::ptrdiff_t>(row * 2 * room_));
    past_.swap(past);
    room_ *= 2;
  }
  const unsigned char* made = make_room(count, STEPS);
  Workspace space = workspace(rows);
  std::vector<Row> some;
  for (size_t row = 0; row < count; row++) {
    past_[row * room_ + length_] = made + row * entry_bytes();
    some.push_back({past_.data() + row * room_, static_cast<int>(length_)});
    if (some.size() < ROWS && row + 1 < count) continue;
    const int first = static_cast<int>(row + 1 - some.size());
    pass(tokens + first, some, first, space);
    find(first, static_cast<int>(some.size()), space, asked);
    some.clear();
  }
  length_++;
}

unsigned char* State::make_room(size_t entries, size_t steps) {
  const size_t bytes = entries * entry_bytes();
  if (written_.empty() || written_.back().bytes() - used_ < bytes) {
    written_.emplace_back(&model_.pool, steps * bytes);
    used_ = 0;
  }
  used_ += bytes;
  return written_.back().as<unsigned char>() + used_ - bytes;
}

void State::keep(const float* made, size_t layer, Entry entry) const {
  const size_t count = 2 * static_cast<size_t>(model_.shape.width), at = layer * model_.entry() * number();
  unsigned char* place = static_cast<unsigned char*>(const_cast<void*>(entry)) + at;
  const bool paired = model_.shape.width / model_.shape.decoder_heads % LANES == 0;
  if (halves_) model_.arithmetic.operators->keep(made, count, paired, reinterpret_cast<uint16_t*>(place));
  else std::memcpy(place, made, count * sizeof(float));
}

void State::pass(const int32_t* tokens, const std::vector<Row>& rows, int first, Workspace& space) {
  const int count = static_cast<int>(rows.size());
  for (size_t i = 0; i < rows.size(); i++) {
    float* row = space.states + i * space.stride;
    model_.target.put(tokens[i], model_.shape.width, model_.shape.scale, row);
    std::fill(row + model_.shape.width, row + space.stride, 0.0f);
    model_.target_positions->add(row, rows[i].before);
  }
  for (size_t layer = 0; layer < model_.decoder.size(); layer++) {
    const DecoderBlock& block = model_.decoder[layer];
    look_back(rows, static_cast<int>(layer), space, block.look);
    if (model_.reads()) look_across(first, count, static_cast<int>(layer), space, block.cross);
    model_.arithmetic.think(space, count, block.feedforward);
  }
}

void State::look_back(const std::vector<Row>& rows, int layer, Workspace& space, const SelfLook& part) {
  const Arithmetic& arithmetic = model_.arithmetic;
  const int width = model_.shape.width, heads = model_.shape.decoder_heads, count = static_cast<int>(rows.size());
  const size_t wide = static_cast<size_t>(width), key = static_cast<size_t>(layer) * model_.entry();
  arithmetic.apply(space, space.states, space.stride, count, part.qkv, arithmetic.norm_before ? &part.norm : nullptr,
                   IDENTITY, space.wide, space.wide_stride, false);
  for (size_t i = 0; i < rows.size(); i++) {
    const auto [past, before] = rows[i];
    const Row& next = rows[std::min(i + 1, rows.size() - 1)];
    float* row = space.wide + i * space.wide_stride;
    if (model_.target_positions->turns()) model_.target_positions->turn(row, 2 * heads, width / heads, before);
    keep(row + width, static_cast<size_t>(layer), past[before]);
    arithmetic.operators->attend({row, space.wide_stride, 1, past, halves_, before + 1, key, key + wide, heads, width / heads,
                                  space.scores, space.mixed + i * space.stride, space.stride, next.past,
                                  i + 1 < rows.size() ? next.before : 0});
  }
  arithmetic.apply(space, space.mixed, space.stride, count, part.out, nullptr, IDENTITY, space.states, space.stride, true);
  if (!arithmetic.norm_before) arithmetic.norm_rows(space.states, space.stride, count, part.norm);
}

void State::look_across(int first, int count, int layer, Workspace& space, const CrossLook& part) {
  const Arithmetic& arithmetic = model_.arithmetic;
  const int width = model_.shape.width, heads = model_.shape.decoder_heads;
  const size_t wide = static_cast<size_t>(width), key = static_cast<size_t>(layer) * model_.entry();
  arithmetic.apply(space, space.states, space.stride, count, part.query, arithmetic.norm_before ? &part.norm : nullptr,
                   IDENTITY, space.wide, space.wide_stride, false);
  for (int i = 0, next = 0; i < count; i = next) {  // rows of one sentence look together
    const int sentence = sentence_[static_cast<size_t>(first + i)];
    for (next = i + 1; next < count && sentence_[static_cast<size_t>(first + next)] == sentence;) next++;
    const int from = offsets_[static_cast<size_t>(sentence)];
    const size_t later = static_cast<size_t>(next < count ? sentence_[static_cast<size_t>(first + next)] : sentence);
    const int coming = next < count ? offsets_[later + 1] - offsets_[later] : 0;
    arithmetic.operators->attend({space.wide + static_cast<size_t>(i) * space.wide_stride, space.wide_stride, next - i,
                                  source_.data() + from, halves_, offsets_[static_cast<size_t>(sentence) + 1] - from,
                                  key, key + wide, heads, width / heads, space.scores,
                                  space.mixed + static_cast<size_t>(i) * space.stride, space.stride,
                                  source_.data() + offsets_[later], coming});
  }
  arithmetic.apply(space, space.mixed, space.stride, count, part.out, nullptr, IDENTITY, space.states, space.stride, true);
  if (!arithmetic.norm_before) arithmetic.norm_rows(space.states, space.stride, count, part.norm);
}

void State::limit(const Lexicon& lexicon, const Texts& source) {
  for (int text = 0; text < source.count; text++)
    lists_.push_back(shortlist_of(model_.pool, model_.output, lexicon, source.ids + source.offsets[text], source.length(text)));
}

void State::find(int first, int count, Workspace& space, const Asked& asked) const {
  const Arithmetic& arithmetic = model_.arithmetic;
  const int vocabulary = model_.shape.target_vocabulary;
  const size_t k = static_cast<size_t>(asked.k);
  std::vector<Best> best(static_cast<size_t>(count));
  for (int i = 0; i < count; i++) {
    const size_t row = static_cast<size_t>(first + i);
    float* states = space.states + static_cast<size_t>(i) * space.stride;
    if (arithmetic.norm_before)
      arithmetic.operators->norm(states, model_.shape.width, model_.decoder_norm.weight, model_.decoder_norm.bias,
                                 arithmetic.epsilon, states);
    arithmetic.prepare(space, i, states, model_.output);
    Best& one = best[static_cast<size_t>(i)];
    one = {-3e38f, {}, asked.k, 0, asked.wanted ? asked.wanted[row] : model_.shape.end, 0, nullptr, nullptr};
    if (asked.k) one.values = asked.logp + row * k, one.ids = asked.ids + row * k;
  }
  if (lists_.empty())
    pass_by(space, 0, count, model_.output, best.data(), asked.logp + static_cast<size_t>(first) * static_cast<size_t>(vocabulary));
  for (int i = 0, next = 0; !lists_.empty() && i < count; i = next) {  // rows of one sentence have the same words
    const int sentence = sentence_[static_cast<size_t>(first + i)];
    const Shortlist& words = lists_[static_cast<size_t>(sentence)];
    if (words.ids.size() < std::max(k, size_t{1}) || !asked.k)
      throw std::invalid_argument(std::to_string(asked.k) + " of " + std::to_string(words.ids.size()) + " words are asked for");
    for (next = i; next < count && sentence_[static_cast<size_t>(first + next)] == sentence; next++) {
      Best& one = best[static_cast<size_t>(next)];
      one.wanted = words.place(one.wanted);
    }
    pass_by(space, i, next - i, words.output, best.data() + i, nullptr);
    for (int row = i; row < next; row++)
      for (size_t j = 0; j < k; j++) {
        int32_t& id = best[static_cast<size_t>(row)].ids[j];
        id = words.ids[static_cast<size_t>(id)];
      }
  }
  for (int i = 0; i < count; i++) {
    const Best& one = best[static_cast<size_t>(i)];
    double sum = 0;
    for (float part : one.sums) sum += static_cast<double>(part);
    const double total = static_cast<double>(one.largest) + std::log(sum);
    const size_t row = static_cast<size_t>(first + i), size = k ? k : static_cast<size_t>(vocabulary);
    float* logp = asked.logp + row * size;
    for (size_t j = 0; j < size; j++) logp[j] = static_cast<float>(static_cast<double>(logp[j]) - total);
    asked.wanted_logp[row] = static_cast<float>(static_cast<double>(one.wanted_logit) - total);
  }
}

void State::pass_by(Workspace& space, int from, int count, const Matrix& output, Best* best, float* every) const {
  const Operators& operators = *model_.arithmetic.operators;
  const int blocks = (output.outputs + LANES - 1) / LANES;
  const size_t stride = operand_stride(output);
  const Operand rows{space.values + static_cast<size_t>(from) * stride * number_bytes(output.precision), stride,
                     space.scales + from, space.offsets + from};
  for (int block = 0; block < blocks; block += VOCABULARY_BLOCKS) {
    const int some = std::min(VOCABULARY_BLOCKS, blocks - block), begin = block * LANES;
    const int real = std::min(some * LANES, output.outputs - begin);
    operators.product(rows, count, output, block, some, space.logits, LOGIT_STRIDE, false);
    for (int i = 0; i < count; i++) {
      float* logits = space.logits + static_cast<size_t>(i) * LOGIT_STRIDE;
      std::fill(logits + real, logits + some * LANES, NEVER);
      operators.scan(logits, begin, some * LANES, best[i]);
      if (!best[i].k) std::copy_n(logits, real, every + static_cast<size_t>(i) * static_cast<size_t>(output.outputs) + begin);
    }
  }
}

}  // namespace regard
