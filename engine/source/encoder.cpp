#include "encoder.h"

#include <algorithm>
#include <stdexcept>

namespace regard {
namespace {

constexpr int TOKENS = 128;  // read together: few enough to stay near the processor, enough to use weights often

// Every token looks at all tokens of its own text.
void look(const Model& model, Workspace& space, const Texts& texts, int first, int last, const SelfLook& part) {
  const Arithmetic& arithmetic = model.arithmetic;
  const int width = model.shape.width, heads = model.shape.encoder_heads;
  const int begin = texts.offsets[first], count = texts.offsets[last] - begin;
  const size_t wide = static_cast<size_t>(width);
  arithmetic.apply(space, space.states, space.stride, count, part.qkv, arithmetic.norm_before ? &part.norm : nullptr,
                   IDENTITY, space.wide, space.wide_stride, false);
  std::vector<const float*> entries(static_cast<size_t>(count));
  for (int i = 0; i < count; i++) entries[static_cast<size_t>(i)] = space.wide + static_cast<size_t>(i) * space.wide_stride;
  for (int text = first; text < last; text++) {
    const int from = texts.offsets[text] - begin, length = texts.length(text);
    float* rows = space.wide + static_cast<size_t>(from) * space.wide_stride;
    if (model.source_positions->turns())
      for (int at = 0; at < length; at++) {
        float* row = rows + static_cast<size_t>(at) * space.wide_stride;
        model.source_positions->turn(row, 2 * heads, width / heads, at);  // queries and keys
      }
    arithmetic.operators->attend({rows, space.wide_stride, length, entries.data() + from, length, wide, 2 * wide, heads,
                                  width / heads, space.scores, space.mixed + static_cast<size_t>(from) * space.stride,
                                  space.stride, nullptr, 0});
  }
  arithmetic.apply(space, space.mixed, space.stride, count, part.out, nullptr, IDENTITY, space.states, space.stride, true);
  if (!arithmetic.norm_before) arithmetic.norm_rows(space.states, space.stride, count, part.norm);
}

}  // namespace

void Texts::check(const Model& model) const {
  if (count < 1 || offsets[0] != 0) throw std::invalid_argument("offsets must start at 0");
  for (int text = 0; text < count; text++) {
    if (offsets[text + 1] <= offsets[text]) throw std::invalid_argument("a source text has no tokens");
    model.source_positions->check(length(text));
  }
  for (int i = 0; i < tokens(); i++)
    if (ids[i] < 0 || ids[i] >= model.shape.source_vocabulary)
      throw std::invalid_argument("token " + std::to_string(ids[i]) + " is outside the source vocabulary");
}

void encode(const Model& model, const Texts& texts, const std::function<void(int, int, Workspace&)>& take) {
  texts.check(model);
  int longest = 0;
  for (int text = 0; text < texts.count; text++) longest = std::max(longest, texts.length(text));
  const size_t rows = static_cast<size_t>(std::min(texts.tokens(), std::max(TOKENS, longest)));
  Workspace space(model.pool, rows, static_cast<size_t>(model.shape.width), model.widest(),
                  static_cast<size_t>(model.shape.encoder_heads), static_cast<size_t>(longest));
  for (int first = 0, last = 0; first < texts.count; first = last) {
    const int begin = texts.offsets[first];
    for (last = first + 1; last < texts.count && texts.offsets[last + 1] - begin <= TOKENS;) last++;
    const int count = texts.offsets[last] - begin;
    for (int text = first; text < last; text++)
      for (int at = 0; at < texts.length(text); at++) {
        float* row = space.states + static_cast<size_t>(texts.offsets[text] - begin + at) * space.stride;
        model.source.put(texts.ids[texts.offsets[text] + at], model.shape.width, model.shape.scale, row);
        model.source_positions->add(row, at);
      }
    for (const EncoderBlock& block : model.encoder) {
      look(model, space, texts, first, last, block.look);
      model.arithmetic.think(space, count, block.feedforward);
    }
    if (model.shape.norm_before) model.arithmetic.norm_rows(space.states, space.stride, count, model.encoder_norm);
    take(begin, count, space);
  }
}

}  // namespace regard
