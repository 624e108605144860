"""An ensemble: several generators that agree on every token by the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.decoding.generator import AttentionProvider, Generator, Rows
from regard.errors import UsageError
from regard.tokens import Candidates, Ids, Tokens


@dataclass(frozen=True)
class EnsembleState:
    """The states of all members, row by row the same texts."""

    members: tuple[Any, ...]

    def select(self, rows: Rows) -> EnsembleState:
        """Return the rows with these numbers, in this order."""
        return EnsembleState(tuple(member.select(rows) for member in self.members))


class Ensemble:
    """A generator whose probabilities are the mean of its members'."""

    def __init__(self, members: Sequence[Generator[Any]]) -> None:
        if not members:
            raise UsageError("an ensemble needs at least one model")
        self.members = tuple(members)
        for name in ("vocab_size", "bos_id", "eos_id", "pad_id"):
            values = [getattr(member, name) for member in members]
            for number, value in enumerate(values):
                if value != values[0]:
                    raise UsageError(
                        f"models of an ensemble must write the same tokens: {name.replace('_', ' ')} is {values[0]} "
                        f"in the first and {value} in number {number + 1}; train them with one tokenizer"
                    )
        self.vocab_size: int = members[0].vocab_size
        self.bos_id: int = members[0].bos_id
        self.eos_id: int = members[0].eos_id
        self.pad_id: int = members[0].pad_id

    def start(self, source: Tokens, room: int) -> EnsembleState:
        """Return the state before the first token."""
        return EnsembleState(tuple(member.start(source, room) for member in self.members))

    def step(self, tokens: Ids, state: EnsembleState, k: int) -> tuple[Candidates, EnsembleState]:
        """Return the k best next tokens of each row by the members' mean; k = 0: all log-probabilities."""
        found = [member.step(tokens, inner, 0) for member, inner in zip(self.members, state.members, strict=True)]
        logp = mean_logprobs([candidates.logprobs for candidates, _ in found])
        state, ids = EnsembleState(tuple(inner for _, inner in found)), found[0][0].ids
        end = logp[:, self.eos_id]
        if 0 < k < self.vocab_size:
            best = np.argpartition(-logp, k - 1, axis=1)[:, :k]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(logp, best, 1), axis=1, kind="stable"), 1)
            ids, logp = best.astype(np.int32), np.take_along_axis(logp, best, 1)
        return Candidates(ids, logp, end), state

    def keep_attention(self, state: EnsembleState) -> None:
        """Let each following step keep where the members looked."""
        for member, inner in zip(self.members, state.members, strict=True):
            _attending(member).keep_attention(inner)

    def last_attention(self, state: EnsembleState) -> NDArray[np.float32]:
        """Return where the members looked in the last step, on average, [R, S]."""
        pairs = zip(self.members, state.members, strict=True)
        return np.asarray(
            np.mean([_attending(member).last_attention(inner) for member, inner in pairs], axis=0), np.float32
        )


def _attending(member: object) -> AttentionProvider:
    if not isinstance(member, AttentionProvider):
        raise UsageError("a model of the ensemble does not say where it looks: set coverage to 0")
    return member


def mean_logprobs(logprobs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the logarithm of the mean of probabilities that are given as logarithms, all of one shape.

    >>> mean_logprobs([np.log([0.5, 0.5]), np.log([0.25, 0.75])]).round(4).tolist()
    [-0.9808, -0.47]
    """
    return np.asarray(np.logaddexp.reduce(logprobs, axis=0) - np.log(len(logprobs)), dtype=logprobs[0].dtype)
