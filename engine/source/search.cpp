#include "search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "checks.h"

namespace regard {
namespace {

constexpr int64_t MAX_BEAM = 1024;
constexpr int64_t MAX_FORBIDDEN = 1 << 16;
constexpr double IMPOSSIBLE = -std::numeric_limits<double>::infinity();

// A token of the tree of hypotheses.
struct TokenNode {
  int32_t token;
  int64_t parent;  // -1: none
};

// A row of the decoder: one hypothesis that is being extended.
struct Beam {
  int64_t text;
  int64_t last_node;  // -1: no token yet
  double logprob;
};

// A hypothesis extended by one token.
struct Continuation {
  int64_t row;
  int32_t token;
  double logprob;
};

class BeamSearch {
 public:
  BeamSearch(const Model& model, const TokenBatch& source, const SearchRequest& request,
             const AttentionOptions& attention)
      : model_(model),
        request_(request),
        attention_(attention),
        k_(request.beam + 1 + request.num_forbidden),
        state_(model, source, attention),
        finished_(source.num_texts) {
    if (request.lexicon.always_allowed) state_.set_shortlist(request.lexicon, source);
    for (int64_t text = 0; text < source.num_texts; text++)
      beams_.push_back({.text = text, .last_node = -1, .logprob = 0.0});
  }

  std::vector<std::vector<Hypothesis>> run() {
    for (int64_t length = 0; !beams_.empty(); length++) {
      step();
      next_beams_.clear();
      parents_.clear();
      for (int64_t first = 0, last; first < std::ssize(beams_); first = last) {
        last = end_of_text(first);
        extend_text(first, last, length);
      }
      reorder_rows();
      beams_.swap(next_beams_);
    }
    for (std::vector<Hypothesis>& hypotheses : finished_)
      if (std::ssize(hypotheses) > request_.nbest) hypotheses.resize(request_.nbest);
    return std::move(finished_);
  }

 private:
  // Appends the last token of each beam and finds its k likeliest continuations.
  void step() {
    if (request_.cancelled && __atomic_load_n(request_.cancelled, __ATOMIC_RELAXED))
      throw std::runtime_error("the search was cancelled");
    const int64_t num_rows = std::ssize(beams_);
    tokens_.clear();
    for (const Beam& beam : beams_)
      tokens_.push_back(beam.last_node < 0 ? request_.bos_id : nodes_[beam.last_node].token);
    ids_.resize(num_rows * k_);
    logprobs_.resize(num_rows * k_);
    eos_logprobs_.resize(num_rows);
    state_.step(tokens_.data(), num_rows, 1,
                {
                    .k = k_,
                    .ids = ids_.data(),
                    .logprobs = logprobs_.data(),
                    .targets = nullptr,
                    .target_logprobs = eos_logprobs_.data(),
                },
                attention_);
  }

  int64_t end_of_text(int64_t first) const {
    int64_t row = first + 1;
    while (row < std::ssize(beams_) && beams_[row].text == beams_[first].text) row++;
    return row;
  }

  // Rows of the decoder follow the beams; nothing moves where none was dropped or repeated.
  void reorder_rows() {
    bool is_unchanged = parents_.size() == beams_.size();
    for (int64_t i = 0; is_unchanged && i < std::ssize(parents_); i++) is_unchanged = parents_[i] == i;
    if (!is_unchanged && !next_beams_.empty()) state_.select_rows(parents_.data(), std::ssize(parents_));
  }

  // Extends the beams of one text: hypotheses that end among the best `beam` are finished, the best others go on.
  void extend_text(int64_t first, int64_t last, int64_t length) {
    const int64_t text = beams_[first].text;
    const int64_t max_length = request_.max_lengths[text];
    const bool is_at_limit = length >= max_length;
    collect_continuations(first, last, is_at_limit);
    const int64_t num_ranks = std::min<int64_t>(std::ssize(continuations_), 2 * request_.beam);
    const int64_t first_new = std::ssize(next_beams_);
    double best_logprob = IMPOSSIBLE;
    for (int64_t rank = 0; rank < num_ranks; rank++) {
      const Continuation& continuation = continuations_[rank];
      if (!(continuation.logprob > IMPOSSIBLE)) continue;
      if (continuation.token == model_.shape.eos_id) {
        const bool is_finished = !is_at_limit || ended_by_model(continuation.row);
        if (rank < request_.beam) finish(continuation, length, is_finished);
      } else if (std::ssize(next_beams_) - first_new < request_.beam) {
        best_logprob = std::max(best_logprob, continuation.logprob);
        add_beam(text, continuation);
      }
    }
    if (std::ssize(next_beams_) > first_new && is_done(text, max_length, length + 1, best_logprob)) {
      next_beams_.resize(first_new);
      parents_.resize(first_new);
    }
  }

  // Allowed continuations of rows `first` to `last`, best first; at the length limit, eos alone.
  void collect_continuations(int64_t first, int64_t last, bool is_at_limit) {
    continuations_.clear();
    for (int64_t row = first; row < last; row++) {
      const double logprob = beams_[row].logprob;
      if (is_at_limit) {
        const double eos_logprob = ended_by_model(row) ? static_cast<double>(eos_logprobs_[row]) : 0.0;  // 0: it is cut
        continuations_.push_back({.row = row, .token = model_.shape.eos_id, .logprob = logprob + eos_logprob});
        continue;
      }
      for (int64_t i = row * k_; i < (row + 1) * k_; i++) {
        if (is_forbidden(ids_[i])) continue;
        const double extended = logprob + static_cast<double>(logprobs_[i]);
        if (std::isnan(extended)) continue;  // of damaged weights; it has no rank
        continuations_.push_back({.row = row, .token = ids_[i], .logprob = extended});
      }
    }
    const auto is_likelier = [](const Continuation& a, const Continuation& b) { return a.logprob > b.logprob; };
    std::stable_sort(continuations_.begin(), continuations_.end(), is_likelier);
  }

  void add_beam(int64_t text, const Continuation& continuation) {
    nodes_.push_back({.token = continuation.token, .parent = beams_[continuation.row].last_node});
    next_beams_.push_back({.text = text, .last_node = std::ssize(nodes_) - 1, .logprob = continuation.logprob});
    parents_.push_back(continuation.row);
  }

  bool is_forbidden(int32_t id) const {
    const int32_t* end = request_.forbidden + request_.num_forbidden;
    return std::find(request_.forbidden, end, id) != end;
  }

  // Whether the model itself would have ended a row at its length limit: its likeliest allowed token is eos.
  bool ended_by_model(int64_t row) const {
    const int64_t first = row * k_;
    int64_t best = first;
    for (int64_t i = first; i < first + k_; i++) {
      if (is_forbidden(ids_[i])) continue;
      if (is_forbidden(ids_[best]) || logprobs_[i] > logprobs_[best]) best = i;
    }
    return ids_[best] == model_.shape.eos_id;
  }

  void finish(const Continuation& continuation, int64_t length, bool is_finished) {
    const Beam& beam = beams_[continuation.row];
    Hypothesis hypothesis{
        .ids = std::vector<int32_t>(length),
        .score = continuation.logprob / request_.length_norms[length + is_finished],
        .logprob = continuation.logprob,
        .is_finished = is_finished,
    };
    int64_t node = beam.last_node;
    for (int64_t i = length - 1; i >= 0; i--) {
      hypothesis.ids[i] = nodes_[node].token;
      node = nodes_[node].parent;
    }
    std::vector<Hypothesis>& hypotheses = finished_[beam.text];
    const auto is_better = [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; };
    const auto rank = std::upper_bound(hypotheses.begin(), hypotheses.end(), hypothesis, is_better);
    hypotheses.insert(rank, std::move(hypothesis));
  }

  // Whether no beam of a text can still displace a finished hypothesis.
  bool is_done(int64_t text, int64_t max_length, int64_t length, double best_logprob) const {
    const std::vector<Hypothesis>& hypotheses = finished_[text];
    const int64_t num_finished = std::ssize(hypotheses);
    const double best_score = num_finished ? hypotheses.front().score : IMPOSSIBLE;
    const double worst_score = num_finished < request_.nbest ? IMPOSSIBLE : hypotheses[request_.nbest - 1].score;
    const double score_now = best_logprob / request_.length_norms[length + 1];
    const double score_at_limit = best_logprob / request_.length_norms[max_length + 1];
    const bool has_enough = num_finished >= request_.beam && (score_now <= best_score || request_.beam == 1);
    return has_enough || score_at_limit <= worst_score;
  }

  const Model& model_;
  const SearchRequest& request_;
  const AttentionOptions& attention_;
  const int64_t k_;
  DecoderState state_;
  std::vector<Beam> beams_;
  std::vector<Beam> next_beams_;
  std::vector<int64_t> parents_;  // row of each next beam's parent
  std::vector<Continuation> continuations_;
  std::vector<TokenNode> nodes_;
  std::vector<std::vector<Hypothesis>> finished_;

  std::vector<int32_t> tokens_;  // buffers of a step
  std::vector<int32_t> ids_;
  std::vector<float> logprobs_;
  std::vector<float> eos_logprobs_;
};

void check_request(const SearchRequest& request, const regard_shape& shape, int64_t num_texts) {
  check_range("beam", request.beam, 1, MAX_BEAM);
  check_range("nbest", request.nbest, 1, request.beam);
  check_range("num_forbidden", request.num_forbidden, 0, MAX_FORBIDDEN);
  check_array("forbidden", request.forbidden, request.num_forbidden, request.num_forbidden);
  const int64_t num_candidates = request.beam + 1 + request.num_forbidden;
  if (num_candidates > shape.target_vocab_size)
    throw std::invalid_argument("a beam of " + std::to_string(request.beam) + " is too wide for a vocabulary of " +
                                std::to_string(shape.target_vocab_size) + " tokens");
  check_range("bos_id", request.bos_id, 0, shape.target_vocab_size - 1);
  check_array("max_lengths", request.max_lengths, request.num_max_lengths, num_texts);
  int64_t max_length = 1;
  for (int64_t text = 0; text < num_texts; text++) {
    check_range("a max_length", request.max_lengths[text], 1, MAX_TEXT_LENGTH);
    max_length = std::max<int64_t>(max_length, request.max_lengths[text]);
  }
  check_array("length_norms", request.length_norms, request.num_length_norms, max_length + 3);
  const Lexicon& lexicon = request.lexicon;
  if (!lexicon.always_allowed) return;
  check_range("num_always_allowed", lexicon.num_always_allowed, 1, shape.target_vocab_size);
  check_array("lexicon_offsets", lexicon.offsets, lexicon.num_offsets, shape.source_vocab_size + 1);
  check_array("lexicon", lexicon.token_ids, lexicon.size, lexicon.size);
}

}  // namespace

std::vector<std::vector<Hypothesis>> search(const Model& model, const TokenBatch& source,
                                            const SearchRequest& request, const AttentionOptions& attention) {
  source.check(model);
  check_request(request, model.shape, source.num_texts);
  return BeamSearch(model, source, request, attention).run();
}

}  // namespace regard
