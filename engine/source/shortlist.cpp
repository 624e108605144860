#include "shortlist.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "layers.h"
#include "packing.h"

namespace regard {
namespace {

std::vector<int32_t> allowed_tokens(const Lexicon& lexicon, const int32_t* source_ids, int64_t length) {
  std::vector<int32_t> ids(lexicon.always_allowed, lexicon.always_allowed + lexicon.num_always_allowed);
  for (int64_t i = 0; i < length; i++) {
    const int64_t begin = lexicon.offsets[source_ids[i]];
    const int64_t end = lexicon.offsets[source_ids[i] + 1];
    if (begin < 0 || begin > end || end > lexicon.size)
      throw std::invalid_argument("the lexicon of source token " + std::to_string(source_ids[i]) +
                                  " has offsets outside of its " + std::to_string(lexicon.size) + " tokens");
    ids.insert(ids.end(), lexicon.token_ids + begin, lexicon.token_ids + end);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

int32_t Shortlist::index_of(int32_t id) const {
  const auto entry = std::lower_bound(ids.begin(), ids.end(), id);
  if (entry == ids.end() || *entry != id)
    throw std::invalid_argument("token " + std::to_string(id) + " is not in the shortlist");
  return static_cast<int32_t>(entry - ids.begin());
}

Shortlist build_shortlist(BufferPool& pool, const PackedLinear& output, const Lexicon& lexicon,
                          const int32_t* source_ids, int64_t length) {
  Shortlist shortlist;
  shortlist.ids = allowed_tokens(lexicon, source_ids, length);
  const std::vector<int32_t>& ids = shortlist.ids;
  if (ids.empty() || ids.front() < 0 || ids.back() >= output.outputs)
    throw std::invalid_argument("a shortlist must consist of tokens of the vocabulary");
  const bool is_int8 = output.precision == INT8;
  const int64_t outputs = std::ssize(ids);
  const int64_t padded = pad(outputs);
  const int64_t num_bytes = packed_bytes(outputs, output.inputs, output.precision);
  const int64_t num_groups = num_bytes / (padded * 4);  // a group has four bytes in every precision
  shortlist.memory = Buffer(&pool, num_bytes + 3 * padded * static_cast<int64_t>(sizeof(float)));
  uint32_t* packed = shortlist.memory.as<uint32_t>();
  float* scales = reinterpret_cast<float*>(packed + num_bytes / 4);
  float* bias = scales + padded;
  int32_t* corrections = reinterpret_cast<int32_t*>(bias + padded);
  const uint32_t* all_packed = static_cast<const uint32_t*>(output.packed);
  for (int64_t index = 0; index < padded; index++) {
    uint32_t* to = packed + index / LANES * num_groups * LANES + index % LANES;
    if (index >= outputs) {
      for (int64_t i = 0; i < num_groups; i++) to[i * LANES] = 0;
      bias[index] = 0;  // its logits are replaced before they are compared
      scales[index] = 0;
      corrections[index] = 0;
      continue;
    }
    const int64_t id = ids[index];
    const uint32_t* from = all_packed + id / LANES * num_groups * LANES + id % LANES;
    for (int64_t i = 0; i < num_groups; i++) to[i * LANES] = from[i * LANES];
    bias[index] = output.bias[id];
    scales[index] = is_int8 ? output.scales[id] : 0;
    corrections[index] = is_int8 ? output.corrections[id] : 0;
  }
  shortlist.output = {
      .precision = output.precision,
      .outputs = outputs,
      .inputs = output.inputs,
      .packed = packed,
      .scales = is_int8 ? scales : nullptr,
      .corrections = is_int8 ? corrections : nullptr,
      .bias = bias,
  };
  return shortlist;
}

}  // namespace regard
