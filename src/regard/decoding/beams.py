"""Lanes of a search, their beams, the selection of the next beam, and the beam tree.

A step keeps the best continuations of each lane, or the best of each bank in turn where phrases are forced. `BeamTree`
records which hypotheses each step kept and which hypothesis each of them extends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import DecodingConfig
from regard.decoding.generator import Rows
from regard.packed_tokens import Ids

Values = NDArray[np.floating]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Lanes:
    """The L lanes of a search, sentence by sentence: one per sample or group of a diverse beam, else one."""

    per_sentence: int
    num_requested: int  # hypotheses that a lane is to find
    sentence: Rows  # [L], index of the sentence
    index_in_sentence: Rows  # [L], index among the lanes of the sentence
    beam: Rows  # [L], finished hypotheses with which a lane may stop
    width: Rows  # [L], unfinished hypotheses that a lane keeps
    prefix_length: Rows  # [L]
    max_length: Rows  # [L]

    def __len__(self) -> int:
        return len(self.sentence)

    @classmethod
    def lay_out(cls, config: DecodingConfig, max_lengths: Rows, prefix_lengths: Rows, phrase_tokens: Rows) -> Lanes:
        """Lay out the lanes from the maximum length, prefix length and number of forced tokens of each sentence."""
        num_sentences = len(max_lengths)
        per_sentence = config.nbest if config.sample or config.diversity_penalty else 1
        sentence = np.repeat(np.arange(num_sentences), per_sentence)
        if config.sample:
            beams = np.ones(per_sentence, np.int64)
        else:  # the groups of a diverse search share the beam
            beams = (config.beam + np.arange(per_sentence)[::-1]) // per_sentence
        beam = np.tile(beams, num_sentences)
        num_banks = np.where(phrase_tokens, phrase_tokens + 1, 0)
        min_length = prefix_lengths + phrase_tokens
        return cls(
            per_sentence=per_sentence,
            num_requested=config.nbest if per_sentence == 1 else 1,
            sentence=sentence,
            index_in_sentence=np.tile(np.arange(per_sentence), num_sentences),
            beam=beam,
            width=np.maximum(beam, num_banks[sentence]),  # at least one hypothesis per bank
            prefix_length=prefix_lengths[sentence],
            max_length=np.maximum(np.maximum(max_lengths, 1), min_length)[sentence],
        )


@dataclass(frozen=True)
class Beams:
    """The unfinished hypotheses of all lanes, in the order of lanes."""

    lane: Rows  # [R]
    tokens: Ids  # [R, T]
    logprobs: NDArray[np.float64]  # [R]
    coverage: NDArray[np.float64]  # [R, S]; [R, 0] without coverage penalty
    progress: list[tuple[int, ...]]  # with the forced phrases, per row

    @classmethod
    def initial(cls, progress: list[tuple[int, ...]], *, source_length: int) -> Beams:
        """One empty hypothesis per lane, with its progress; `source_length` is 0 without coverage penalty."""
        num_lanes = len(progress)
        return cls(
            lane=np.arange(num_lanes),
            tokens=np.zeros((num_lanes, 0), np.int32),
            logprobs=np.zeros(num_lanes),
            coverage=np.zeros((num_lanes, source_length)),
            progress=progress,
        )

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def length(self) -> int:
        """Number of tokens of each hypothesis."""
        return int(self.tokens.shape[1])


@dataclass(frozen=True)
class Continuations:
    """The continuations that a step keeps, by lane, best first."""

    rows: Rows  # hypothesis that is extended
    columns: Rows  # which of its candidates extends it
    is_end: NDArray[np.bool_]  # whether that candidate is the end-of-sequence token


def select_continuations(
    lane: Rows,  # [R], ascending
    ids: Ids,  # [R, k]
    scores: Values,  # [R, k], −∞: not allowed
    width: Rows,  # [R], width W of each row's lane
    eos_id: int,
    banks: NDArray[np.int64] | None = None,  # [R, k]
) -> Continuations:
    """Select in each lane the endings among its W best continuations, and its W best other continuations.

    >>> ids = np.array([[1, 5], [6, 7]])
    >>> scores = np.array([[-1.0, -3.0], [-2.0, -9.0]])
    >>> selected = select_continuations(np.array([0, 0]), ids, scores, np.array([2, 2]), eos_id=1)
    >>> list(zip(selected.rows.tolist(), selected.columns.tolist(), selected.is_end.tolist()))
    [(0, 0, True), (1, 0, False), (0, 1, False)]
    """
    _, first_row, lane_sizes = np.unique(lane, return_index=True, return_counts=True)
    num_candidates = scores.shape[1]
    lane_rank = np.repeat(np.arange(len(first_row)), lane_sizes)  # [R], index of each row's lane among those present
    row_in_lane = np.arange(len(lane)) - first_row[lane_rank]  # [R]
    lane_scores = _group_by_lane(scores, lane_rank, row_in_lane, -np.inf)
    lane_width = width[first_row][:, None]
    if banks is None:
        order = top_k_columns(lane_scores, 2 * int(lane_width.max()))
    else:
        order = _rank_by_bank(lane_scores, _group_by_lane(banks, lane_rank, row_in_lane, 0))
    is_allowed = np.take_along_axis(lane_scores, order, axis=1) > -np.inf
    rows = np.minimum(first_row[:, None] + order // num_candidates, len(lane) - 1)
    columns = order % num_candidates
    is_end = is_allowed & (ids[rows, columns] == eos_id)
    is_unfinished = is_allowed & ~is_end
    is_selected_end = is_end & (np.arange(order.shape[1]) < lane_width)
    is_selected_unfinished = is_unfinished & (np.cumsum(is_unfinished, axis=1) <= lane_width)
    is_selected = is_selected_end | is_selected_unfinished
    return Continuations(rows[is_selected], columns[is_selected], is_end=is_end[is_selected])


def top_k_columns(values: Values, k: int) -> NDArray[np.int64]:
    """Columns of the `k` largest values of each row, largest first; of equal values the left one comes first.

    >>> top_k_columns(np.array([[1.0, 3.0, 2.0, 3.0]]), 3).tolist()
    [[1, 3, 2]]
    """
    if values.shape[1] > 4 * k + 64:  # partition first: sorting k values is cheaper than sorting all
        top = np.sort(np.argpartition(-values, k - 1, axis=1)[:, :k], axis=1)
        order = np.argsort(-np.take_along_axis(values, top, axis=1), axis=1, kind="stable")
        return np.take_along_axis(top, order, axis=1)
    return np.argsort(-values, axis=1, kind="stable")[:, :k]


def _group_by_lane(matrix: NDArray[Scalar], lane_rank: Rows, row_in_lane: Rows, fill: float) -> NDArray[Scalar]:
    """Lay the continuations [R, k] of a lane's rows side by side: [lanes, max rows of a lane · k].

    A lane is one beam of a sentence, a row one of its hypotheses; lanes with fewer rows are padded with `fill`.
    """
    num_lanes = int(lane_rank[-1]) + 1
    max_rows = int(row_in_lane.max()) + 1
    grouped = np.full((num_lanes, max_rows, matrix.shape[1]), fill, dtype=matrix.dtype)
    grouped[lane_rank, row_in_lane] = matrix
    return grouped.reshape(num_lanes, -1)


def _rank_by_bank(scores: Values, banks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order the columns of each row round-robin over banks: the best of each bank, then the second best of each, …

    The fullest bank comes first. What a bank cannot fill is left to the other banks (Post and Vilar 2018, section 3.2).
    """
    order = np.empty(scores.shape, np.int64)
    for row, (row_scores, row_banks) in enumerate(zip(scores, banks, strict=True)):
        by_bank = np.lexsort((-row_scores, row_banks))  # by bank, best first within a bank
        sorted_scores = row_scores[by_bank]
        sorted_banks = row_banks[by_bank]
        starts = np.flatnonzero(np.diff(sorted_banks, prepend=-1))
        bank_sizes = np.diff(np.append(starts, len(sorted_banks)))
        rank_in_bank = np.arange(len(sorted_banks)) - np.repeat(starts, bank_sizes)
        rank_in_bank = np.where(sorted_scores > -np.inf, rank_in_bank, len(sorted_banks))
        order[row] = by_bank[np.lexsort((-sorted_banks, rank_in_bank))]
    return order


@dataclass
class BeamTree:
    """The hypotheses that the search of one text kept at each step; finished and pruned ones have no successor.

    >>> tree = BeamTree()
    >>> tree.add_step(np.array([0, 0]), np.array([7, 1]), np.array([-0.1, -2.0]), np.array([True, False]))
    >>> tree.add_step(np.array([0]), np.array([8]), np.array([-0.3]), np.array([True]))
    >>> tree.steps
    [[(-1, 7, -0.1), (-1, 1, -2.0)], [(0, 8, -0.3)]]
    """

    # per step (index of the parent in the previous step, token id, logprob of the hypothesis)
    steps: list[list[tuple[int, int, float]]] = field(default_factory=list)
    _alive: list[int] = field(default_factory=list)  # indices in the last step of the hypotheses in the beam

    def add_step(
        self,
        parents: NDArray[np.int64],  # which hypothesis of the beam each one extends
        tokens: NDArray[np.integer],
        logprobs: NDArray[np.float64],
        is_alive: NDArray[np.bool_],  # which of them stay in the beam, in their order
    ) -> None:
        """Append one step of the search."""
        parent_indices = [self._alive[row] if self.steps else -1 for row in parents.tolist()]
        self.steps.append(list(zip(parent_indices, tokens.tolist(), logprobs.tolist(), strict=True)))
        self._alive = np.flatnonzero(is_alive).tolist()

    def contains(self, ids: list[int]) -> bool:
        """Whether the token ids are a path of this tree.

        >>> tree = BeamTree([[(-1, 7, -0.1)], [(0, 8, -0.3)]])
        >>> tree.contains([7, 8]), tree.contains([8])
        (True, False)
        """
        reached = {-1}
        for token_id, step in zip(ids, self.steps, strict=False):
            reached = {
                index for index, (parent, token, _) in enumerate(step) if parent in reached and token == token_id
            }
        return bool(reached) and len(ids) <= len(self.steps)
