"""Ensemble decoding: several generators predict together by the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.decoding.generator import AttentionProvider, Generator, Rows
from regard.errors import UsageError
from regard.packed_tokens import Candidates, Ids, Tokens


@dataclass(frozen=True)
class EnsembleState:
    """States of all members; a row is the same hypothesis in each of them."""

    members: tuple[Any, ...]

    def select(self, rows: Rows) -> EnsembleState:
        """Select rows by index, in this order."""
        return EnsembleState(tuple(member.select(rows) for member in self.members))


class Ensemble:
    """A generator whose probabilities are the mean of its members' probabilities."""

    def __init__(self, members: Sequence[Generator[Any]]) -> None:
        if not members:
            raise UsageError("an ensemble needs at least one model")
        _check_vocabularies(members)
        self.members = tuple(members)
        self.vocab_size: int = members[0].vocab_size
        self.bos_id: int = members[0].bos_id
        self.eos_id: int = members[0].eos_id
        self.pad_id: int = members[0].pad_id

    def start(self, source: Tokens, max_length: int) -> EnsembleState:
        """State before the first token."""
        return EnsembleState(tuple(member.start(source, max_length) for member in self.members))

    def step(self, tokens: Ids, state: EnsembleState, k: int) -> tuple[Candidates, EnsembleState]:
        """The k most likely next tokens of each row by the mean probability; k = 0: logprobs of the vocabulary."""
        member_candidates: list[Candidates] = []
        member_states: list[Any] = []
        for member, member_state in zip(self.members, state.members, strict=True):
            candidates, next_state = member.step(tokens, member_state, 0)
            member_candidates.append(candidates)
            member_states.append(next_state)
        logprobs = mean_logprobs([candidates.logprobs for candidates in member_candidates])
        ids = member_candidates[0].ids
        eos_logprobs = logprobs[:, self.eos_id]
        if 0 < k < self.vocab_size:
            top = np.argpartition(-logprobs, k - 1, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(logprobs, top, 1), axis=1, kind="stable")
            top = np.take_along_axis(top, order, 1)
            ids = top.astype(np.int32)
            logprobs = np.take_along_axis(logprobs, top, 1)
        return Candidates(ids, logprobs, eos_logprobs), EnsembleState(tuple(member_states))

    def keep_attention(self, state: EnsembleState) -> None:
        """Store the members' attention weights in all following steps."""
        for member, member_state in zip(self.members, state.members, strict=True):
            _require_attention(member).keep_attention(member_state)

    def last_attention(self, state: EnsembleState) -> NDArray[np.float32]:
        """Mean of the members' attention in the last step, [R, S]."""
        attention = [
            _require_attention(member).last_attention(member_state)
            for member, member_state in zip(self.members, state.members, strict=True)
        ]
        return np.asarray(np.mean(attention, axis=0), np.float32)


def _check_vocabularies(members: Sequence[Generator[Any]]) -> None:
    """Refuse members whose vocabulary sizes or special tokens differ."""
    for name in ("vocab_size", "bos_id", "eos_id", "pad_id"):
        expected = getattr(members[0], name)
        for position, member in enumerate(members, start=1):
            actual = getattr(member, name)
            if actual != expected:
                raise UsageError(
                    f"models of an ensemble must share one vocabulary: {name} is {expected} in model 1 and {actual} "
                    f"in model {position}; train them with the same tokenizer"
                )


def _require_attention(member: object) -> AttentionProvider:
    if not isinstance(member, AttentionProvider):
        raise UsageError("a model of the ensemble returns no attention: set coverage_penalty to 0")
    return member


def mean_logprobs(logprobs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Logarithm of the mean probability; all arrays of log-probabilities have the same shape.

    >>> mean_logprobs([np.log([0.5, 0.5]), np.log([0.25, 0.75])]).round(4).tolist()
    [-0.9808, -0.47]
    """
    return np.asarray(np.logaddexp.reduce(logprobs, axis=0) - np.log(len(logprobs)), dtype=logprobs[0].dtype)
