"""One search over any `Generator`: greedy, beam, diverse beam and sampling are the same steps with other settings.

Each sentence is searched in one *lane*, or in several side by side: one for each draw when sampling, one for each group
of a diverse beam. A lane of width W keeps W unfinished hypotheses. At each step their continuations are ranked by total
log-probability; an end among the W best finishes a hypothesis, the W best others go on.

**When a lane is done.** A finished hypothesis is worth `total / length ** length_power` (its length counts the end),
less the penalty for what was not covered. Log-probabilities are never positive, so whatever continues a hypothesis of
total t is worth at most `t / (limit + 1) ** length_power`: the total can only fall, and no text is longer than its
limit. A lane is done when it has as many finished hypotheses as are asked for that are worth at least that much for
every hypothesis alive, so that none alive could take their place; or when W hypotheses have finished and the best of
them is worth at least what every hypothesis alive would be worth if it ended now at no cost. Where the model is sure,
an end in the middle of a sentence is often the second best token: W such ends must not close a lane whose best text is
still being written. A lane of width 1 is done at its first end. All of this depends on the lane alone: neither which
other sentences are searched beside it nor how many texts are asked for changes the best one.

**Limits.** A hypothesis that reaches its limit is ended there; it counts as unfinished unless the model would have
ended it itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import DecodingConfig
from regard.decoding.beams import BeamTree, Continuations, Values, select_continuations, top_k_columns
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.generator import AttentionProvider, Generator, NativeSearch, Rows, S
from regard.decoding.rules import ForbidSequences, History, NoRepeatNgram, Rule, Sample
from regard.errors import ConfigError, UsageError
from regard.tokens import Candidates, Ids, Tokens

LEAST_COVERAGE = 1e-6  # a source token never looked at counts as looked at this much


@dataclass(frozen=True)
class Hypothesis:
    """One text that the search found."""

    ids: list[int]  # without start and end
    score: float  # what ranks it
    logprob: float  # sum of the log-probabilities, end included
    finished: bool  # whether the model ended it, not the limit


def hypothesis_score(logprob: float, length: int, config: DecodingConfig, coverage: Values | None = None) -> float:
    """Return a text's score: its total by its length, the end counted, less what was not covered (Wu et al. 2016).

    `covered` is how much each source token was looked at in all, [S].

    >>> hypothesis_score(-6.0, 4, DecodingConfig(length_penalty=0.5))
    -3.0
    """
    penalty = 0.0 if coverage is None else float(np.log(np.clip(coverage, LEAST_COVERAGE, 1.0)).sum())
    return float(logprob / length**config.length_penalty) + config.coverage_penalty * penalty


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
    """Return the best texts for each source text, best first.

    `limits` are the most tokens of each, `prefixes` what each must begin with, `forced` the phrases each must hold.
    Prefixes and forced phrases stand above rules and limits. What is kept at each step grows in `tree`.
    """
    if len(source) == 0:
        return []
    if (
        isinstance(generator, NativeSearch)
        and not (rules or prefixes or forced)
        and tree is None
        and _is_plain(config, generator.vocab_size)
    ):
        limited = np.asarray(max_lengths, np.int64)
        found = generator.search(
            source,
            limited,
            beam=config.beam,
            nbest=config.nbest,
            length_penalty=config.length_penalty,
            use_shortlist=not config.whole_vocabulary,
        )
        return [[Hypothesis(*one) for one in some] for some in found]
    none = [ForcedPhrases.none()] * len(source)
    wishes = _SearchRequest(max_lengths, prefixes or [[]] * len(source), none if forced is None else forced)
    return _Search(generator, source, config, wishes, rules, tree).run()


def _is_plain(config: DecodingConfig, vocabulary: int) -> bool:
    """Whether a search is greedy or by beam and nothing else."""
    wishes = config.sample or config.diversity_penalty or config.coverage_penalty or config.no_repeat_ngram
    return not wishes and config.beam + 3 < vocabulary


@dataclass(frozen=True)
class _SearchRequest:
    """What is asked of each sentence."""

    limits: Sequence[int] | NDArray[np.int64]
    prefixes: Sequence[Sequence[int]]
    forced: Sequence[ForcedPhrases]


@dataclass(frozen=True)
class _Beams:
    """Hypotheses still being written, in the order of their lanes."""

    lane: Rows  # [R]
    tokens: Ids  # [R, T]
    logprobs: NDArray[np.float64]  # [R]
    covered: NDArray[np.float64]  # [R, S]; [R, 0] when nobody asks
    progress: list[tuple[int, ...]]  # with the phrases to force, row by row

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def length(self) -> int:
        """How many tokens each has."""
        return int(self.tokens.shape[1])


class _Search(Generic[S]):
    """The settings of one search, and what its lanes have finished."""

    def __init__(
        self,
        generator: Generator[S],
        source: Tokens,
        config: DecodingConfig,
        wishes: _SearchRequest,
        rules: Sequence[Rule],
        tree: BeamTree | None = None,
    ) -> None:
        self.generator, self.source, self.config, self.wishes, self.tree = generator, source, config, wishes, tree
        self.constrained = any(phrases.num_tokens for phrases in wishes.forced)
        self._check()
        count, copies = len(source), config.nbest if config.sample or config.diversity_penalty else 1
        self.copies, self.wanted = copies, config.nbest if copies == 1 else 1  # lanes a sentence, texts a lane
        self.sentence, self.copy = np.repeat(np.arange(count), copies), np.tile(np.arange(copies), count)  # [L]
        widths = np.ones(copies, np.int64) if config.sample else (config.beam + np.arange(copies)[::-1]) // copies
        self.stop = np.tile(widths, count)  # finished hypotheses that make a lane done
        phrases = np.array([forced.num_tokens for forced in wishes.forced])
        self.width = np.maximum(self.stop, np.where(phrases, phrases + 1, 0)[self.sentence])  # a place for each bank
        self.begun = np.array([len(prefix) for prefix in wishes.prefixes])[self.sentence]
        self.limit = np.maximum(np.asarray(wishes.limits, np.int64)[self.sentence], 1)
        self.limit = np.maximum(self.limit, self.begun + phrases[self.sentence])
        self.rules = self._rules(rules)
        self.done: list[list[Hypothesis]] = [[] for _ in self.sentence]
        self.count = np.zeros(len(self.sentence), np.int64)
        self.best = np.full(len(self.sentence), -np.inf)  # score of the best that a lane has finished
        self.last = np.full(len(self.sentence), -np.inf)  # score of the last of those asked for

    def _check(self) -> None:
        for name in ("limits", "prefixes", "forced"):
            given = len(getattr(self.wishes, name))
            if given != len(self.source):
                raise UsageError(f"{name} ({given}) must be as many as the source texts ({len(self.source)})")
        if self.config.diversity_penalty and self.config.nbest < 2:
            raise ConfigError("diverse makes alternatives differ, but nbest is 1: raise nbest")
        if self.config.sample and self.constrained:
            raise ConfigError("words can be forced in a beam search only: drop sample, or the words")
        if self.config.coverage_penalty and not isinstance(self.generator, AttentionProvider):
            raise ConfigError("coverage needs a model that says where it looks, and this one does not: set it to 0")

    def _rules(self, given: Sequence[Rule]) -> list[Rule]:
        """Return all rules, in the order they are applied."""
        config = self.config
        never = {self.generator.pad_id, self.generator.bos_id} - {self.generator.eos_id}
        rules: list[Rule] = [ForbidSequences([[token] for token in sorted(never)]), *given]
        if config.no_repeat_ngram:
            rules.append(NoRepeatNgram(config.no_repeat_ngram))
        if config.sample:
            keys = [hashlib.blake2b(row.astype("<i4").tobytes()).digest() for row in self.source]
            rules.append(
                Sample(keys, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed)
            )
        return rules

    def run(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""
        lanes = len(self.sentence)
        state = self.generator.start(self.source, int(self.limit.max()) + 1)
        if self.config.coverage_penalty and isinstance(self.generator, AttentionProvider):
            self.generator.keep_attention(state)
        if self.copies > 1:
            state = state.select(self.sentence)
        alive = _Beams(
            np.arange(lanes),
            np.zeros((lanes, 0), np.int32),
            np.zeros(lanes),
            np.zeros((lanes, int(self.source.lengths.max()) if self.config.coverage_penalty else 0)),
            [self.wishes.forced[sentence].initial_progress() for sentence in self.sentence.tolist()],
        )
        last = np.full(lanes, self.generator.bos_id, np.int32)
        while True:
            candidates, state = self.generator.step(last, state, self._candidates(alive))
            self._cover(alive, state)
            alive, parents = self._advance(alive, candidates)
            if not len(alive):
                return [self._ranked(sentence) for sentence in range(len(self.source))]
            if len(parents) != len(last) or bool((parents != np.arange(len(parents))).any()):
                state = state.select(parents)
            last = np.ascontiguousarray(alive.tokens[:, -1])

    def _candidates(self, alive: _Beams) -> int:
        """Return how many candidates of each row to ask for; 0: all."""
        given = alive.length < self.begun[alive.lane]
        reaches = [rule.extra_candidates(alive.length) for rule in self.rules]
        if self.constrained or given.any() or None in reaches:
            return 0
        count = self._most(alive) + sum(reach or 0 for reach in reaches)
        return count if count < self.generator.vocab_size else 0

    def _most(self, alive: _Beams) -> int:
        """Return how many candidates of a row could be kept at most: W and the end; more where some are marked down."""
        return int(self.width[alive.lane].max()) + 1 + (self.config.beam if self.config.diversity_penalty else 0)

    def _cover(self, alive: _Beams, state: S) -> None:
        """Add what was looked at in this step."""
        if self.config.coverage_penalty:
            assert isinstance(self.generator, AttentionProvider)
            looked = self.generator.last_attention(state)
            alive.covered[:, : looked.shape[1]] += looked  # narrower once the longest sources have left

    def _advance(self, alive: _Beams, candidates: Candidates) -> tuple[_Beams, Rows]:
        """Return the hypotheses one token longer, and which row each comes from; what ends is put aside."""
        allowed, natural = self._allowed(alive, candidates)
        values = alive.logprobs[:, None] + allowed.logprobs
        choice = self._choose(alive, allowed, values)
        totals, tokens = values[choice.rows, choice.column], allowed.ids[choice.rows, choice.column]
        for row, total in zip(choice.rows[choice.ends].tolist(), totals[choice.ends].tolist(), strict=True):
            self._finish(alive, row, total, bool(natural[row]))
        on = ~choice.ends
        on[on] = ~self._decided(alive.lane[choice.rows[on]], totals[on], alive.length + 1)
        if self.tree is not None:
            self.tree.add_step(choice.rows, tokens, totals, on)
        parents = choice.rows[on]
        progress = [
            self._forced(alive, row).advance(alive.progress[row], token, alive.length)
            for row, token in zip(parents.tolist(), tokens[on].tolist(), strict=True)
        ]
        longer = np.concatenate([alive.tokens[parents], tokens[on][:, None]], axis=1)
        return _Beams(alive.lane[parents], longer, totals[on], alive.covered[parents], progress), parents

    def _allowed(self, alive: _Beams, candidates: Candidates) -> tuple[Candidates, NDArray[np.bool_]]:
        """Return what rules, prefixes and limits leave, and in which rows an end would be the model's own, [R]."""
        history = History(alive.tokens, self.sentence[alive.lane], self.copy[alive.lane])
        allowed = candidates
        for rule in self.rules:
            allowed = rule(history, allowed)
        allowed = self._narrow(alive, allowed)
        full = alive.length >= self.limit[alive.lane]
        given = np.where(full, self.generator.eos_id, -1)
        for row in np.flatnonzero(alive.length < self.begun[alive.lane]).tolist():
            given[row] = self.wishes.prefixes[history.sentence[row]][alive.length]
        best = allowed.ids[np.arange(len(alive)), allowed.logprobs.argmax(axis=1)]
        natural = ~full | (best == self.generator.eos_id)
        rows = np.flatnonzero(given >= 0)
        if len(rows):
            ids, logp = allowed.ids.copy(), allowed.logprobs.copy()
            ids[rows], logp[rows] = given[rows, None], -np.inf
            logp[rows, 0] = self._told(candidates, rows, given[rows])
            allowed = Candidates(ids, logp)
        return allowed, natural

    def _told(self, candidates: Candidates, rows: Rows, tokens: Rows) -> Values:
        """Return the log-probabilities of given tokens: of the end, or of any where all were asked for."""
        if candidates.eos_logprobs is not None and bool((tokens == self.generator.eos_id).all()):
            return candidates.eos_logprobs[rows]
        return candidates.logprobs[rows, tokens]  # columns are tokens

    def _narrow(self, alive: _Beams, allowed: Candidates) -> Candidates:
        """Return no more candidates than could be kept, and the tokens that bring forced phrases further."""
        most = self._most(alive)
        if not self.constrained and allowed.ids.shape[1] <= 2 * most:
            return allowed
        logp = allowed.logprobs.copy()
        more = [self._constrain(alive, row, logp[row]) for row in range(len(alive))] if self.constrained else []
        columns = top_k_columns(logp, most)
        values = np.take_along_axis(logp, columns, axis=1)
        if any(more):
            beside = np.full((len(alive), max(map(len, more))), -1)
            for row, wanted in enumerate(more):
                fresh = [token for token in wanted if token not in columns[row]]
                beside[row, : len(fresh)] = fresh
            columns = np.concatenate([columns, np.maximum(beside, 0)], axis=1)
            values = np.take_along_axis(logp, columns, axis=1)
            values[:, -beside.shape[1] :][beside < 0] = -np.inf
        return Candidates(np.take_along_axis(allowed.ids, columns, axis=1), values)

    def _constrain(self, alive: _Beams, row: int, logp: Values) -> list[int]:
        """Return the tokens that bring a row's forced phrases further; what would break them is struck from `logp`."""
        phrases, progress = self._forced(alive, row), alive.progress[row]
        wanted = phrases.next_tokens(progress, alive.length)
        if not phrases.is_satisfied(progress):
            logp[self.generator.eos_id] = -np.inf
        if phrases.must_end_word(progress):
            logp[phrases.continues] = -np.inf
        fitting = phrases.feasible_tokens(progress, alive.length, int(self.limit[alive.lane[row]]) - alive.length)
        if fitting is not None:
            kept = logp[fitting]
            logp[:] = -np.inf
            logp[fitting] = kept
        return wanted

    def _forced(self, alive: _Beams, row: int) -> ForcedPhrases:
        return self.wishes.forced[int(self.sentence[alive.lane[row]])]

    def _choose(self, alive: _Beams, allowed: Candidates, values: NDArray[np.float64]) -> Continuations:
        """Return the continuations that are kept; groups of a diverse beam choose one after another."""
        banks = self._banks(alive, allowed) if self.constrained else None
        width, end = self.width[alive.lane], self.generator.eos_id
        if not self.config.diversity_penalty:
            return select_continuations(alive.lane, allowed.ids, values, width, end, banks)
        used: list[list[int]] = [[] for _ in range(len(self.source))]  # tokens of the groups before, by sentence
        parts = []
        for rows in (np.flatnonzero(self.copy[alive.lane] == copy) for copy in range(self.copies)):
            if not len(rows):
                continue
            counts = [
                [used[sentence].count(token) for token in ids]
                for sentence, ids in zip(self.sentence[alive.lane[rows]], allowed.ids[rows].tolist(), strict=True)
            ]
            marked = values[rows] - self.config.diversity_penalty * np.array(counts)
            inner = banks[rows] if banks is not None else None
            found = select_continuations(alive.lane[rows], allowed.ids[rows], marked, width[rows], end, inner)
            parts.append(Continuations(rows[found.rows], found.column, found.ends))
            for row, column in zip(parts[-1].rows, parts[-1].column, strict=True):
                used[self.sentence[alive.lane[row]]].append(int(allowed.ids[row, column]))
        row, column, ends = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "column", "ends")
        )
        order = np.argsort(alive.lane[row], kind="stable")
        return Continuations(row[order], column[order], ends[order])

    def _banks(self, alive: _Beams, allowed: Candidates) -> NDArray[np.int64]:
        """Return how many tokens of forced phrases a text would hold after each candidate, [R, k]."""
        banks = np.zeros(allowed.ids.shape, np.int64)
        for row, column in np.argwhere(allowed.logprobs > -np.inf).tolist():
            phrases = self._forced(alive, row)
            if phrases.num_tokens:
                after = phrases.advance(alive.progress[row], int(allowed.ids[row, column]), alive.length)
                banks[row, column] = phrases.tokens_matched(after)
        return banks

    def _finish(self, alive: _Beams, row: int, total: float, natural: bool) -> None:
        """Put a finished hypothesis aside."""
        lane, ids = int(alive.lane[row]), alive.tokens[row].tolist()
        sentence = int(self.sentence[lane])
        covered = alive.covered[row, : self.source.lengths[sentence]] if self.config.coverage_penalty else None
        finished = natural and self._forced(alive, row).is_satisfied(alive.progress[row])
        done = self.done[lane]
        if self.config.diversity_penalty and any(ids == other.ids for other in chain(*self._beside(sentence))):
            return  # another group has it
        done.append(Hypothesis(ids, hypothesis_score(total, len(ids) + 1, self.config, covered), total, finished))
        done.sort(key=_rank)
        self.count[lane] += 1
        self.best[lane] = done[0].score
        if len(done) >= self.wanted:
            self.last[lane] = done[self.wanted - 1].score

    def _decided(self, lane: Rows, totals: NDArray[np.float64], length: int) -> NDArray[np.bool_]:
        """Return for each continuation, now of `length` tokens, whether its lane is done."""
        likeliest = np.full(len(self.sentence), -np.inf)
        np.maximum.at(likeliest, lane, totals)
        ceiling = likeliest / (self.limit + 1.0) ** self.config.length_penalty
        present = likeliest / (length + 1.0) ** self.config.length_penalty
        enough = (self.count >= self.stop) & ((present <= self.best) | (self.width == 1))
        decided: NDArray[np.bool_] = enough | (ceiling <= self.last)
        return decided[lane]

    def _beside(self, sentence: int) -> list[list[Hypothesis]]:
        """Return what the lanes of a sentence have finished."""
        return self.done[sentence * self.copies : (sentence + 1) * self.copies]

    def _ranked(self, sentence: int) -> list[Hypothesis]:
        """Return the hypotheses of a sentence, best first."""
        lanes = self._beside(sentence)
        leaders = sorted(chain(*(lane[: self.wanted] for lane in lanes)), key=_rank)
        others = sorted(chain(*(lane[self.wanted :] for lane in lanes)), key=_rank)
        return sorted([*leaders, *others][: self.config.nbest], key=_rank)


def _rank(hypothesis: Hypothesis) -> float:
    return -hypothesis.score
