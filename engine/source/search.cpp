#include "search.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace regard {
namespace {

constexpr double NEVER = -std::numeric_limits<double>::infinity();

struct Written {  // a token and what stands before it
  int32_t token;
  int before;
};

struct Row {
  int sentence;
  int last;  // of the written tokens; -1: none
  double total;
};

struct Choice {
  int row;
  int32_t id;
  double value;
};

class Search {
 public:
  Search(const Model& model, const Texts& source, int32_t start, const Plan& plan)
      : model_(model), plan_(plan), start_(start), state_(model, source), done_(static_cast<size_t>(source.count)) {
    k_ = plan.beam + 1 + plan.forbidden_count;
    if (plan.lexicon.common) state_.limit(plan.lexicon, source);
    for (int i = 0; i < source.count; i++) rows_.push_back({i, -1, 0.0});
  }

  std::vector<std::vector<Hypothesis>> run() {
    std::vector<int32_t> last(rows_.size(), start_), ids;
    std::vector<float> logp, end;
    for (int length = 0; !rows_.empty(); length++) {
      const size_t count = rows_.size(), k = static_cast<size_t>(k_);
      ids.resize(count * k), logp.resize(count * k), end.resize(count);
      state_.step(last.data(), static_cast<int>(count), {k_, ids.data(), logp.data(), nullptr, end.data()});
      parents_.clear(), next_.clear(), last.clear();
      for (size_t first = 0, after = 0; first < count; first = after) {
        for (after = first + 1; after < count && rows_[after].sentence == rows_[first].sentence;) after++;
        choose(first, after, length, ids.data(), logp.data(), end.data());
      }
      bool same = parents_.size() == count;
      for (size_t i = 0; same && i < count; i++) same = parents_[i] == static_cast<int64_t>(i);
      if (!same && !next_.empty()) state_.select(parents_.data(), static_cast<int>(parents_.size()));
      rows_.swap(next_);
      for (const Row& row : rows_) last.push_back(written_[static_cast<size_t>(row.last)].token);
    }
    for (auto& some : done_)
      if (some.size() > static_cast<size_t>(plan_.nbest)) some.resize(static_cast<size_t>(plan_.nbest));
    return std::move(done_);
  }

 private:
  // Continues the rows of one sentence: the ends among the W best are put aside, the W best others go on.
  void choose(size_t first, size_t after, int length, const int32_t* ids, const float* logp, const float* end) {
    const int sentence = rows_[first].sentence, limit = std::max(1, plan_.limits[sentence]);
    const bool full = length >= limit;
    choices_.clear();
    for (size_t row = first; row < after; row++) {
      if (full) {
        choices_.push_back({static_cast<int>(row), model_.shape.end, rows_[row].total + static_cast<double>(end[row])});
        continue;
      }
      for (size_t i = row * static_cast<size_t>(k_); i < (row + 1) * static_cast<size_t>(k_); i++)
        if (!forbidden(ids[i])) choices_.push_back({static_cast<int>(row), ids[i], rows_[row].total + static_cast<double>(logp[i])});
    }
    const size_t most = std::min(choices_.size(), 2 * static_cast<size_t>(plan_.beam));
    std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.value > b.value; });
    int going = 0;
    double likeliest = NEVER;
    const size_t from = next_.size();
    for (size_t rank = 0; rank < most; rank++) {
      const Choice& one = choices_[rank];
      if (!(one.value > NEVER)) continue;
      if (one.id == model_.shape.end) {
        if (rank < static_cast<size_t>(plan_.beam)) finish(one, length, !full || is_natural(one.row, ids, logp));
      } else if (going++ < plan_.beam) {
        likeliest = std::max(likeliest, one.value);
        written_.push_back({one.id, rows_[static_cast<size_t>(one.row)].last});
        next_.push_back({sentence, static_cast<int>(written_.size()) - 1, one.value});
        parents_.push_back(one.row);
      }
    }
    if (next_.size() > from && decided(sentence, limit, length + 1, likeliest)) {
      next_.resize(from);
      parents_.resize(from);
    }
  }

  bool forbidden(int32_t id) const {
    return std::find(plan_.forbidden, plan_.forbidden + plan_.forbidden_count, id) != plan_.forbidden + plan_.forbidden_count;
  }

  // Whether the model itself would have ended a row that reached its limit: its best allowed token is the end.
  bool is_natural(int row, const int32_t* ids, const float* logp) const {
    const size_t from = static_cast<size_t>(row) * static_cast<size_t>(k_);
    size_t best = from;
    for (size_t i = from; i < from + static_cast<size_t>(k_); i++)
      if (!forbidden(ids[i]) && (forbidden(ids[best]) || logp[i] > logp[best])) best = i;
    return ids[best] == model_.shape.end;
  }

  void finish(const Choice& one, int length, bool natural) {
    const Row& row = rows_[static_cast<size_t>(one.row)];
    Hypothesis made{std::vector<int32_t>(static_cast<size_t>(length)), one.value / plan_.powers[length + 1], one.value, natural};
    int at = row.last;
    for (int i = length; i-- > 0; at = written_[static_cast<size_t>(at)].before)
      made.ids[static_cast<size_t>(i)] = written_[static_cast<size_t>(at)].token;
    auto& done = done_[static_cast<size_t>(row.sentence)];
    const auto place = std::upper_bound(done.begin(), done.end(), made,
                                        [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    done.insert(place, std::move(made));
  }

  // Whether nothing alive in a sentence can take the place of what is finished.
  bool decided(int sentence, int limit, int length, double likeliest) const {
    const auto& done = done_[static_cast<size_t>(sentence)];
    const double best = done.empty() ? NEVER : done.front().score;
    const double last = done.size() < static_cast<size_t>(plan_.nbest) ? NEVER : done[static_cast<size_t>(plan_.nbest) - 1].score;
    const bool enough = done.size() >= static_cast<size_t>(plan_.beam) &&
                        (likeliest / plan_.powers[length + 1] <= best || plan_.beam == 1);
    return enough || likeliest / plan_.powers[limit + 1] <= last;
  }

  const Model& model_;
  const Plan& plan_;
  int32_t start_;
  int k_;
  State state_;
  std::vector<Row> rows_, next_;
  std::vector<int64_t> parents_;
  std::vector<Choice> choices_;
  std::vector<Written> written_;
  std::vector<std::vector<Hypothesis>> done_;
};

}  // namespace

std::vector<std::vector<Hypothesis>> search(const Model& model, const Texts& source, int32_t start, const Plan& plan) {
  if (plan.beam < 1 || plan.nbest < 1 || plan.beam + 1 + plan.forbidden_count > model.shape.target_vocabulary)
    throw std::invalid_argument("a beam of " + std::to_string(plan.beam) + " is too wide for the vocabulary");
  return Search(model, source, start, plan).run();
}

}  // namespace regard
