"""Search over any `Generator`: greedy, beam, diverse beam and sampling are one algorithm with different settings.

Each sentence is searched in one *lane*, or in several independent ones: one per sample, or one per group of a diverse
beam search (Vijayakumar et al. 2018). A lane of width W keeps a beam of W unfinished hypotheses. At each step all their
continuations are ranked by logprob. An end-of-sequence token among the W best finishes a hypothesis; the W best other
continuations are the next beam.

**When a lane stops.** The score of a finished hypothesis is `logprob / length ** length_penalty` minus the coverage
penalty; logprob and length count the end-of-sequence token. Log-probabilities are never positive, so extending a
hypothesis can only lower its logprob p; no hypothesis has more than `max_length` tokens, and the coverage penalty only
lowers the score. Whatever extends the hypothesis therefore scores at most `p / (max_length + 1) ** length_penalty`. A
lane stops

- when as many hypotheses as requested have finished and score at least this bound for every hypothesis of the beam:
  no hypothesis of the beam can displace them; or
- when W hypotheses have finished, and the best of them scores at least what every hypothesis of the beam would score if
  it ended now at no cost. The comparison is necessary: where the model is confident, an end in the middle of a sentence
  is often the second-best token, and W such ends must not stop a lane whose best hypothesis is unfinished. A lane of
  width 1 stops at its first end without it.

Both conditions depend on the lane alone. Neither the other sentences of the batch nor the number of hypotheses
requested changes the best hypothesis.

**Maximum length.** A hypothesis that reaches its maximum length is cut there, unless the model ends it there itself. A
cut hypothesis is unfinished; its logprob and its length count the generated tokens alone. The bound holds for it, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from regard.cancellation import check_cancelled
from regard.config.inference import DecodingConfig
from regard.decoding.beams import Beams, BeamTree, Continuations, Lanes, Values, select_continuations, top_k_columns
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.generator import AttentionProvider, Generator, NativeSearch, Rows, S
from regard.decoding.rules import ForbidSequences, History, NoRepeatNgram, Rule, Sample
from regard.errors import ConfigError, UsageError
from regard.packed_tokens import Candidates, Tokens

MIN_COVERAGE = 1e-6  # attention that a source token counts as having received at least


@dataclass(frozen=True)
class Hypothesis:
    """One generated text.

    >>> Hypothesis([7, 8], score=-0.5, logprob=-1.5, finished=True).ids
    [7, 8]
    """

    ids: list[int]  # without start and end tokens
    score: float  # ranks the hypotheses of a sentence
    logprob: float  # sum over all tokens, and the end where the model generated it
    finished: bool  # whether the model ended it, rather than the maximum length


def hypothesis_score(logprob: float, length: int, config: DecodingConfig, coverage: Values | None = None) -> float:
    """Score of a hypothesis: length-normalised logprob minus the coverage penalty (Wu et al. 2016).

    `length` counts the end token where the model generated it; `coverage` is the attention that each source token
    received in all steps, [S].

    >>> hypothesis_score(-6.0, 4, DecodingConfig(length_penalty=0.5))
    -3.0
    >>> hypothesis_score(0.0, 0, DecodingConfig())  # an empty text that was cut before its end
    0.0
    """
    penalty = 0.0 if coverage is None else float(np.log(np.clip(coverage, MIN_COVERAGE, 1.0)).sum())
    return float(logprob / max(length, 1) ** config.length_penalty) + config.coverage_penalty * penalty


def search(
    generator: Generator[S],
    source: Tokens,
    config: DecodingConfig,
    *,
    max_lengths: Sequence[int] | NDArray[np.int64],
    rules: Sequence[Rule] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    forced: Sequence[ForcedPhrases] | None = None,
    tree: BeamTree | None = None,
) -> list[list[Hypothesis]]:
    """Search the best hypotheses of each source text, best first.

    Per text, `max_lengths` limits the number of tokens, `prefixes` are the token ids that it begins with, and `forced`
    the phrases that it contains. Prefixes and forced phrases take precedence over rules and maximum lengths. `tree`
    records the hypotheses that each step keeps.
    """
    if len(source) == 0:
        return []
    is_unconstrained = not (rules or prefixes or forced) and tree is None
    if isinstance(generator, NativeSearch) and is_unconstrained and _is_plain(config, generator.vocab_size):
        return _search_natively(generator, source, config, np.asarray(max_lengths, np.int64))
    request = _SearchRequest(
        max_lengths=max_lengths,
        prefixes=prefixes or [[]] * len(source),
        forced=[ForcedPhrases.none()] * len(source) if forced is None else forced,
    )
    return _Search(generator, source, config, request, rules, tree).run()


def _is_plain(config: DecodingConfig, vocab_size: int) -> bool:
    """Whether a search is plain greedy or beam search."""
    has_extras = config.sample or config.diversity_penalty or config.coverage_penalty or config.no_repeat_ngram
    return not has_extras and config.beam + 3 < vocab_size


def _search_natively(
    generator: NativeSearch, source: Tokens, config: DecodingConfig, max_lengths: Rows
) -> list[list[Hypothesis]]:
    sentences = generator.search(
        source,
        max_lengths,
        beam=config.beam,
        nbest=config.nbest,
        length_penalty=config.length_penalty,
        use_shortlist=config.shortlist,
    )
    return [
        [Hypothesis(ids, score, logprob=logprob, finished=finished) for ids, score, logprob, finished in hypotheses]
        for hypotheses in sentences
    ]


@dataclass(frozen=True)
class _SearchRequest:
    """Requirements on the output, one of each per sentence."""

    max_lengths: Sequence[int] | NDArray[np.int64]
    prefixes: Sequence[Sequence[int]]
    forced: Sequence[ForcedPhrases]


class _Search(Generic[S]):
    """Settings of one search, and the finished hypotheses of its lanes."""

    def __init__(
        self,
        generator: Generator[S],
        source: Tokens,
        config: DecodingConfig,
        request: _SearchRequest,
        rules: Sequence[Rule],
        tree: BeamTree | None = None,
    ) -> None:
        self.generator = generator
        self.source = source
        self.config = config
        self.request = request
        self.tree = tree
        self.has_forced_phrases = any(phrases.num_tokens for phrases in request.forced)
        self._check()
        self.lanes = Lanes.lay_out(
            config,
            max_lengths=np.asarray(request.max_lengths, np.int64),
            prefix_lengths=np.array([len(prefix) for prefix in request.prefixes]),
            phrase_tokens=np.array([phrases.num_tokens for phrases in request.forced]),
        )
        self.rules = self._build_rules(rules)
        num_lanes = len(self.lanes)
        self.finished: list[list[Hypothesis]] = [[] for _ in range(num_lanes)]
        self.num_finished = np.zeros(num_lanes, np.int64)
        self.best_score = np.full(num_lanes, -np.inf)  # of a lane's finished hypotheses
        self.last_score = np.full(num_lanes, -np.inf)  # of the last one requested; −∞ until so many have finished

    def _check(self) -> None:
        for name in ("max_lengths", "prefixes", "forced"):
            count = len(getattr(self.request, name))
            if count != len(self.source):
                raise UsageError(f"{name} ({count}) must be as many as the source texts ({len(self.source)})")
        if self.config.diversity_penalty and self.config.nbest < 2:
            raise ConfigError("diversity_penalty makes alternatives differ, but nbest is 1: raise nbest")
        if self.config.sample and self.has_forced_phrases:
            raise ConfigError("phrases can be forced in a beam search only: drop sample, or the phrases")
        if self.config.coverage_penalty and not isinstance(self.generator, AttentionProvider):
            raise ConfigError("coverage_penalty needs a model with attention, and this one has none: set it to 0")

    def _build_rules(self, rules: Sequence[Rule]) -> list[Rule]:
        """All rules, in the order of application."""
        config = self.config
        never_generated = {self.generator.pad_id, self.generator.bos_id} - {self.generator.eos_id}
        all_rules: list[Rule] = [ForbidSequences([[token] for token in sorted(never_generated)]), *rules]
        if config.no_repeat_ngram:
            all_rules.append(NoRepeatNgram(config.no_repeat_ngram))
        if config.sample:
            keys = [hashlib.blake2b(row.astype("<i4").tobytes()).digest() for row in self.source]
            all_rules.append(
                Sample(keys, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed)
            )
        return all_rules

    def run(self) -> list[list[Hypothesis]]:
        """Search all lanes until they stop; return the hypotheses of each sentence, best first."""
        state = self.generator.start(self.source, int(self.lanes.max_length.max()) + 1)
        has_coverage = bool(self.config.coverage_penalty)
        if has_coverage and isinstance(self.generator, AttentionProvider):
            self.generator.keep_attention(state)
        if self.lanes.per_sentence > 1:
            state = state.select(self.lanes.sentence)
        progress = [self.request.forced[sentence].initial_progress() for sentence in self.lanes.sentence.tolist()]
        beams = Beams.initial(progress, source_length=int(self.source.lengths.max()) if has_coverage else 0)
        last_tokens = np.full(len(beams), self.generator.bos_id, np.int32)
        while True:
            check_cancelled()
            candidates, state = self.generator.step(last_tokens, state, self._num_candidates(beams))
            self._add_coverage(beams, state)
            beams, parents = self._advance(beams, candidates)
            if not len(beams):
                return [self._rank_hypotheses(sentence) for sentence in range(len(self.source))]
            is_unchanged = len(parents) == len(last_tokens) and bool((parents == np.arange(len(parents))).all())
            if not is_unchanged:
                state = state.select(parents)
            last_tokens = np.ascontiguousarray(beams.tokens[:, -1])

    def _num_candidates(self, beams: Beams) -> int:
        """Number of candidates per row to request from the generator; 0: the whole vocabulary."""
        is_in_prefix = beams.length < self.lanes.prefix_length[beams.lane]
        extras = [rule.extra_candidates(beams.length) for rule in self.rules]
        if self.has_forced_phrases or is_in_prefix.any() or None in extras:
            return 0
        count = self._max_kept(beams) + sum(extra or 0 for extra in extras)
        return count if count < self.generator.vocab_size else 0

    def _max_kept(self, beams: Beams) -> int:
        """Most candidates of a row that a step can keep: W and the end; more where the diversity penalty reorders."""
        return int(self.lanes.width[beams.lane].max()) + 1 + (self.config.beam if self.config.diversity_penalty else 0)

    def _add_coverage(self, beams: Beams, state: S) -> None:
        """Add the attention of this step to the coverage."""
        if self.config.coverage_penalty:
            assert isinstance(self.generator, AttentionProvider)
            attention = self.generator.last_attention(state)
            beams.coverage[:, : attention.shape[1]] += attention  # narrower once the longest sources are finished

    def _advance(self, beams: Beams, candidates: Candidates) -> tuple[Beams, Rows]:
        """Extend the hypotheses by one token; return them with the row that each extends. Store those that end."""
        allowed, ends_naturally = self._restrict(beams, candidates)
        candidate_logprobs = beams.logprobs[:, None] + allowed.logprobs
        selected = self._select(beams, allowed, candidate_logprobs)
        logprobs = candidate_logprobs[selected.rows, selected.columns]
        tokens = allowed.ids[selected.rows, selected.columns]
        ended_rows = selected.rows[selected.is_end].tolist()
        for row, logprob in zip(ended_rows, logprobs[selected.is_end].tolist(), strict=True):
            self._finish(beams, row, logprob, bool(ends_naturally[row]))
        is_alive = ~selected.is_end
        lanes = beams.lane[selected.rows[is_alive]]
        is_alive[is_alive] = ~self._has_stopped(lanes, logprobs[is_alive], beams.length + 1)
        if self.tree is not None:
            self.tree.add_step(selected.rows, tokens, logprobs, is_alive)
        parents = selected.rows[is_alive]
        next_tokens = tokens[is_alive]
        progress = [
            self._phrases_of(beams, row).advance(beams.progress[row], token, beams.length)
            for row, token in zip(parents.tolist(), next_tokens.tolist(), strict=True)
        ]
        next_beams = Beams(
            lane=beams.lane[parents],
            tokens=np.concatenate([beams.tokens[parents], next_tokens[:, None]], axis=1),
            logprobs=logprobs[is_alive],
            coverage=beams.coverage[parents],
            progress=progress,
        )
        return next_beams, parents

    def _restrict(self, beams: Beams, candidates: Candidates) -> tuple[Candidates, NDArray[np.bool_]]:
        """Apply rules, prefixes and maximum lengths; return also in which rows an end is the model's own, [R]."""
        history = History(beams.tokens, self.lanes.sentence[beams.lane], lane=self.lanes.index_in_sentence[beams.lane])
        allowed = candidates
        for rule in self.rules:
            allowed = rule(history, allowed)
        allowed = self._prune(beams, allowed)
        is_full = beams.length >= self.lanes.max_length[beams.lane]
        forced_ids = np.where(is_full, self.generator.eos_id, -1)  # [R], −1: no token is forced
        for row in np.flatnonzero(beams.length < self.lanes.prefix_length[beams.lane]).tolist():
            forced_ids[row] = self.request.prefixes[history.sentence[row]][beams.length]
        best_ids = allowed.ids[np.arange(len(beams)), allowed.logprobs.argmax(axis=1)]
        ends_naturally = ~is_full | (best_ids == self.generator.eos_id)
        rows = np.flatnonzero(forced_ids >= 0)
        if len(rows):
            ids = allowed.ids.copy()
            ids[rows] = forced_ids[rows, None]
            logprobs = allowed.logprobs.copy()
            logprobs[rows] = -np.inf
            logprobs[rows, 0] = self._logprobs_of(candidates, rows, forced_ids[rows])
            logprobs[~ends_naturally, 0] = 0.0  # a hypothesis that is cut has no end to pay for
            allowed = Candidates(ids, logprobs)
        return allowed, ends_naturally

    def _logprobs_of(self, candidates: Candidates, rows: Rows, token_ids: Rows) -> Values:
        """Log-probabilities of one token per row: of the end, or of any token where the whole vocabulary is known."""
        if candidates.eos_logprobs is not None and bool((token_ids == self.generator.eos_id).all()):
            return candidates.eos_logprobs[rows]
        return candidates.logprobs[rows, token_ids]  # the columns are token ids

    def _prune(self, beams: Beams, allowed: Candidates) -> Candidates:
        """Reduce the candidates to those that the step can keep, plus those that advance forced phrases."""
        max_kept = self._max_kept(beams)
        if not self.has_forced_phrases and allowed.ids.shape[1] <= 2 * max_kept:
            return allowed
        logprobs = allowed.logprobs.copy()
        phrase_tokens: list[list[int]] = []
        if self.has_forced_phrases:
            phrase_tokens = [self._constrain_row(beams, row, logprobs[row]) for row in range(len(beams))]
        columns = top_k_columns(logprobs, max_kept)
        if not any(phrase_tokens):
            kept_logprobs = np.take_along_axis(logprobs, columns, axis=1)
            return Candidates(np.take_along_axis(allowed.ids, columns, axis=1), kept_logprobs)
        extra = np.full((len(beams), max(len(tokens) for tokens in phrase_tokens)), -1)  # −1: no token
        for row, tokens in enumerate(phrase_tokens):
            new_tokens = [token for token in tokens if token not in columns[row]]
            extra[row, : len(new_tokens)] = new_tokens
        columns = np.concatenate([columns, np.maximum(extra, 0)], axis=1)
        kept_logprobs = np.take_along_axis(logprobs, columns, axis=1)
        kept_logprobs[:, -extra.shape[1] :][extra < 0] = -np.inf
        return Candidates(np.take_along_axis(allowed.ids, columns, axis=1), kept_logprobs)

    def _constrain_row(self, beams: Beams, row: int, logprobs: Values) -> list[int]:
        """Mask in place the tokens that violate a row's forced phrases; return the tokens that advance them."""
        phrases = self._phrases_of(beams, row)
        progress = beams.progress[row]
        if not phrases.is_satisfied(progress):
            logprobs[self.generator.eos_id] = -np.inf
        if phrases.must_end_word(progress):
            logprobs[phrases.continues_word] = -np.inf
        remaining = int(self.lanes.max_length[beams.lane[row]]) - beams.length
        feasible = phrases.feasible_tokens(progress, beams.length, remaining)
        if feasible is not None:
            feasible_logprobs = logprobs[feasible]
            logprobs[:] = -np.inf
            logprobs[feasible] = feasible_logprobs
        return phrases.next_tokens(progress, beams.length)

    def _phrases_of(self, beams: Beams, row: int) -> ForcedPhrases:
        return self.request.forced[int(self.lanes.sentence[beams.lane[row]])]

    def _select(self, beams: Beams, allowed: Candidates, logprobs: NDArray[np.float64]) -> Continuations:
        """Select the continuations of the next beam, and those that end."""
        banks = self._count_phrase_tokens(beams, allowed) if self.has_forced_phrases else None
        if self.config.diversity_penalty:
            return self._select_diverse(beams, allowed, logprobs, banks)
        width = self.lanes.width[beams.lane]
        return select_continuations(beams.lane, allowed.ids, logprobs, width, self.generator.eos_id, banks)

    def _select_diverse(
        self, beams: Beams, allowed: Candidates, logprobs: NDArray[np.float64], banks: NDArray[np.int64] | None
    ) -> Continuations:
        """Select group by group; a token costs the penalty once per use by previous groups of the sentence."""
        sentence = self.lanes.sentence[beams.lane]  # [R]
        used_tokens: list[list[int]] = [[] for _ in range(len(self.source))]  # by previous groups, per sentence
        groups: list[Continuations] = []
        for group in range(self.lanes.per_sentence):
            rows = np.flatnonzero(self.lanes.index_in_sentence[beams.lane] == group)
            if not len(rows):
                continue
            use_counts = [
                [used_tokens[index].count(token) for token in ids]
                for index, ids in zip(sentence[rows], allowed.ids[rows].tolist(), strict=True)
            ]
            selected = select_continuations(
                beams.lane[rows],
                allowed.ids[rows],
                scores=logprobs[rows] - self.config.diversity_penalty * np.array(use_counts),
                width=self.lanes.width[beams.lane[rows]],
                eos_id=self.generator.eos_id,
                banks=None if banks is None else banks[rows],
            )
            selected_rows = rows[selected.rows]
            groups.append(Continuations(selected_rows, selected.columns, is_end=selected.is_end))
            for row, column in zip(selected_rows, selected.columns, strict=True):
                used_tokens[sentence[row]].append(int(allowed.ids[row, column]))
        rows = np.concatenate([group.rows for group in groups])
        columns = np.concatenate([group.columns for group in groups])
        is_end = np.concatenate([group.is_end for group in groups])
        order = np.argsort(beams.lane[rows], kind="stable")
        return Continuations(rows[order], columns[order], is_end=is_end[order])

    def _count_phrase_tokens(self, beams: Beams, allowed: Candidates) -> NDArray[np.int64]:
        """Bank of each candidate, [R, k]: the number of phrase tokens that the hypothesis would then contain."""
        banks = np.zeros(allowed.ids.shape, np.int64)
        for row, column in np.argwhere(allowed.logprobs > -np.inf).tolist():
            phrases = self._phrases_of(beams, row)
            if phrases.num_tokens:
                progress = phrases.advance(beams.progress[row], int(allowed.ids[row, column]), beams.length)
                banks[row, column] = phrases.tokens_matched(progress)
        return banks

    def _finish(self, beams: Beams, row: int, logprob: float, ends_naturally: bool) -> None:
        """Store a hypothesis that has ended."""
        lane = int(beams.lane[row])
        sentence = int(self.lanes.sentence[lane])
        ids = beams.tokens[row].tolist()
        if self.config.diversity_penalty:
            hypotheses = chain.from_iterable(self._finished_by_lane(sentence))
            if any(ids == hypothesis.ids for hypothesis in hypotheses):
                return  # another group has the same text
        coverage = beams.coverage[row, : self.source.lengths[sentence]] if self.config.coverage_penalty else None
        is_finished = ends_naturally and self._phrases_of(beams, row).is_satisfied(beams.progress[row])
        score = hypothesis_score(logprob, len(ids) + is_finished, self.config, coverage)
        finished = self.finished[lane]
        finished.append(Hypothesis(ids, score, logprob=logprob, finished=is_finished))
        finished.sort(key=_sort_key)
        self.num_finished[lane] += 1
        self.best_score[lane] = finished[0].score
        if len(finished) >= self.lanes.num_requested:
            self.last_score[lane] = finished[self.lanes.num_requested - 1].score

    def _has_stopped(self, lanes: Rows, logprobs: NDArray[np.float64], length: int) -> NDArray[np.bool_]:
        """Whether the lane of each continuation, now of `length` tokens, stops (see the module's docstring)."""
        max_logprob = np.full(len(self.lanes), -np.inf)  # [L]
        np.maximum.at(max_logprob, lanes, logprobs)
        score_bound = max_logprob / (self.lanes.max_length + 1.0) ** self.config.length_penalty
        score_if_ended_now = max_logprob / (length + 1.0) ** self.config.length_penalty
        is_best_finished = (score_if_ended_now <= self.best_score) | (self.lanes.width == 1)
        is_beam_finished = (self.num_finished >= self.lanes.beam) & is_best_finished
        has_stopped: NDArray[np.bool_] = is_beam_finished | (score_bound <= self.last_score)
        return has_stopped[lanes]

    def _finished_by_lane(self, sentence: int) -> list[list[Hypothesis]]:
        """Finished hypotheses of each lane of a sentence."""
        return self.finished[sentence * self.lanes.per_sentence : (sentence + 1) * self.lanes.per_sentence]

    def _rank_hypotheses(self, sentence: int) -> list[Hypothesis]:
        """The n best hypotheses of a sentence, best first; those that each lane was to find take precedence."""
        requested: list[Hypothesis] = []
        surplus: list[Hypothesis] = []
        for hypotheses in self._finished_by_lane(sentence):
            requested.extend(hypotheses[: self.lanes.num_requested])
            surplus.extend(hypotheses[self.lanes.num_requested :])
        ranked = sorted(requested, key=_sort_key) + sorted(surplus, key=_sort_key)
        return sorted(ranked[: self.config.nbest], key=_sort_key)


def _sort_key(hypothesis: Hypothesis) -> float:
    return -hypothesis.score
