#include "pooling.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace regard {
namespace {

void pool(int kind, const float* states, size_t stride, int length, size_t width, float* out) {
  std::memcpy(out, states, width * sizeof(float));
  if (kind == REGARD_FIRST) return;
  for (int row = 1; row < length; row++) {
    const float* next = states + static_cast<size_t>(row) * stride;
    if (kind == REGARD_MEAN)
      for (size_t i = 0; i < width; i++) out[i] += next[i];
    else
      for (size_t i = 0; i < width; i++) out[i] = std::max(out[i], next[i]);
  }
  const float share = 1.0f / static_cast<float>(length);
  for (size_t i = 0; i < width && kind == REGARD_MEAN; i++) out[i] *= share;
}

}  // namespace

void read(const Model& model, const Texts& texts, const Poolings& poolings, int threads, float* out) {
  for (int i = 0; i < poolings.count; i++)
    if (poolings.kinds[i] < REGARD_MEAN || poolings.kinds[i] > REGARD_MAXIMUM)
      throw std::invalid_argument("no pooling " + std::to_string(poolings.kinds[i]));
  const size_t width = static_cast<size_t>(model.shape.width), several = static_cast<size_t>(poolings.count);
  const bool firsts = several == 1 && poolings.kinds[0] == REGARD_FIRST;
  encode(model, texts, threads, firsts ? Wanted::firsts : Wanted::all, [&](int first, int count, Workspace& space) {
    if (!several) {
      for (int i = 0; i < count; i++)
        std::memcpy(out + static_cast<size_t>(first + i) * width, space.states + static_cast<size_t>(i) * space.stride,
                    width * sizeof(float));
      return;
    }
    const int32_t* begin = std::lower_bound(texts.offsets, texts.offsets + texts.count, first);
    for (int text = static_cast<int>(begin - texts.offsets); text < texts.count && texts.offsets[text] < first + count; text++)
      for (size_t i = 0; i < several; i++)
        pool(poolings.kinds[i], space.states + static_cast<size_t>(texts.offsets[text] - first) * space.stride, space.stride,
             texts.length(text), width, out + (static_cast<size_t>(text) * several + i) * width);
  });
}

}  // namespace regard
