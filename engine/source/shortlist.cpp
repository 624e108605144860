#include "shortlist.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "layers.h"
#include "packing.h"

namespace regard {
namespace {

constexpr float NEVER = -1e30f;  // bias of what fills up a block

}  // namespace

int32_t Shortlist::place(int32_t id) const {
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  if (found == ids.end() || *found != id)
    throw std::invalid_argument("word " + std::to_string(id) + " is not among those to write with");
  return static_cast<int32_t>(found - ids.begin());
}

Shortlist shortlist_of(Pool& pool, const Matrix& whole, const Lexicon& lexicon, const int32_t* source, int length) {
  Shortlist made;
  std::vector<int32_t>& ids = made.ids;
  ids.assign(lexicon.common, lexicon.common + lexicon.common_count);
  for (int i = 0; i < length; i++)
    ids.insert(ids.end(), lexicon.words + lexicon.offsets[source[i]], lexicon.words + lexicon.offsets[source[i] + 1]);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty() || ids.front() < 0 || ids.back() >= whole.outputs)
    throw std::invalid_argument("words to write with must be of the vocabulary");
  const size_t outputs = ids.size(), wide = padded(outputs), lanes = LANES;
  const size_t bytes = packed_bytes(outputs, static_cast<size_t>(whole.inputs), whole.precision);
  const size_t groups = bytes / (wide * 4);  // of four bytes, in every precision
  made.memory = Buffer(&pool, bytes + 3 * wide * sizeof(float));
  uint32_t* packed = made.memory.as<uint32_t>();
  float* scales = reinterpret_cast<float*>(packed + bytes / 4);
  float* bias = scales + wide;
  int32_t* corrections = reinterpret_cast<int32_t*>(bias + wide);
  const uint32_t* from = static_cast<const uint32_t*>(whole.packed);
  for (size_t n = 0; n < wide; n++) {
    const bool real = n < outputs;
    const size_t id = real ? static_cast<size_t>(ids[n]) : 0;
    const uint32_t* column = from + id / lanes * groups * lanes + id % lanes;
    uint32_t* to = packed + n / lanes * groups * lanes + n % lanes;
    for (size_t i = 0; i < groups; i++) to[i * lanes] = real ? column[i * lanes] : 0;
    bias[n] = real ? whole.bias[id] : NEVER;
    scales[n] = real && whole.scales ? whole.scales[id] : 0;
    corrections[n] = real && whole.corrections ? whole.corrections[id] : 0;
  }
  const bool bytewise = whole.precision == INT8;
  made.output = {whole.precision, static_cast<int>(outputs), whole.inputs, packed, bytewise ? scales : nullptr, bytewise ? corrections : nullptr, bias};
  return made;
}

}  // namespace regard
