"""A generator made of tables: small enough to be searched through completely, and slow at nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from regard.tokens import Candidates, Tokens

PAD, END, START = 0, 1, 3


@dataclass
class TableState:
    sentence: np.ndarray  # [R], which table each row reads
    last: np.ndarray  # [R]
    selections: list[int]

    def select(self, rows):
        self.selections.append(len(rows))
        return TableState(self.sentence[rows], self.last[rows], self.selections)


class TableGenerator:
    """A Markov chain, of second order when it is small; its tables depend on the source row and nothing else."""

    pad_id, eos_id, bos_id = PAD, END, START

    def __init__(self, vocabulary: int = 7, *, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocab_size, self.seed, self.sharpness = vocabulary, seed, sharpness
        self.asked: list[int] = []  # k of each step
        self.rows: list[int] = []  # rows of each step

    def table(self, row: np.ndarray) -> np.ndarray:
        """Log-probabilities [before, last, next] for one source row."""
        chance = np.random.default_rng([self.seed, *row.tolist()])
        before = self.vocab_size if self.vocab_size < 32 else 1
        logits = chance.normal(size=(before, self.vocab_size, self.vocab_size)) * self.sharpness
        return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)

    def start(self, source: Tokens, room: int) -> TableState:
        self.tables = np.stack([self.table(row) for row in source])
        self.looks = np.stack([self.look(row, int(source.lengths.max())) for row in source])
        selections: list[int] = []
        self.selections = selections
        return TableState(np.arange(len(source)), np.full(len(source), START), selections)

    def look(self, row: np.ndarray, most: int) -> np.ndarray:
        """Where each token looks, [V, most]."""
        chance = np.random.default_rng([9, self.seed, *row.tolist()])
        shares = chance.dirichlet(np.full(len(row), 0.3), self.vocab_size)
        return np.pad(shares, ((0, 0), (0, most - len(row))))

    def step(self, tokens, state, k):
        self.asked.append(k)
        self.rows.append(len(tokens))
        logp = self.tables[state.sentence, state.last % self.tables.shape[1], tokens]
        state = TableState(state.sentence, np.asarray(tokens), state.selections)
        if k == 0:
            return Candidates(np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logp.shape), logp), state
        best = np.argsort(-logp, axis=1, kind="stable")[:, :k]
        found = np.take_along_axis(logp, best, axis=1)
        return Candidates(best.astype(np.int32), found, logp[:, self.eos_id]), state

    def keep_attention(self, state):
        self.watched = True

    def last_attention(self, state):
        assert self.watched
        return self.looks[state.sentence, state.last].astype(np.float32)

    def total(self, row, ids) -> float:
        """The log-probability of one text, by hand."""
        table = self.table(np.asarray(row))
        path = [START, START, *ids, END]
        return float(
            sum(np.float64(table[a % len(table), b, c]) for a, b, c in zip(path, path[1:], path[2:], strict=False))
        )

    def everything(self, row, limit: int):
        """Every text up to the limit with its log-probability."""
        words = [token for token in range(self.vocab_size) if token not in (PAD, END, START)]
        for length in range(limit + 1):
            for ids in itertools.product(words, repeat=length):
                yield list(ids), self.total(row, ids)


@pytest.fixture(scope="session")
def table_generator():
    return TableGenerator


@pytest.fixture(scope="session")
def random_source():
    def make(count: int, seed: int = 0, longest: int = 6) -> Tokens:
        chance = np.random.default_rng(seed)
        return Tokens.from_rows(
            [[*chance.integers(4, 90, chance.integers(1, longest + 1)).tolist(), END] for _ in range(count)]
        )

    return make
