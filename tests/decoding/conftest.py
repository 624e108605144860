"""A generator whose probabilities are tables: small enough for exhaustive search."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from regard.packed_tokens import Candidates, Tokens

PAD = 0
END = 1
START = 3


@dataclass
class TableState:
    sentence: np.ndarray  # [R], whose table each row uses
    last: np.ndarray  # [R], last token
    selections: list[int]  # number of rows of each selection

    def select(self, rows):
        self.selections.append(len(rows))
        return TableState(self.sentence[rows], self.last[rows], self.selections)


class TableGenerator:
    """A Markov chain, of second order with a small vocabulary; its tables depend on the source row alone."""

    pad_id = PAD
    eos_id = END
    bos_id = START

    def __init__(self, vocab_size: int = 7, *, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.sharpness = sharpness
        self.requested: list[int] = []  # k of each step
        self.num_rows: list[int] = []  # of each step
        self.keeps_attention = False

    def table(self, row: np.ndarray) -> np.ndarray:
        """Log-probabilities [second last, last, next] for one source row."""
        rng = np.random.default_rng([self.seed, *row.tolist()])
        num_contexts = self.vocab_size if self.vocab_size < 32 else 1
        logits = rng.normal(size=(num_contexts, self.vocab_size, self.vocab_size)) * self.sharpness
        return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)

    def attention(self, row: np.ndarray, max_length: int) -> np.ndarray:
        """Attention of each token to one source row, [V, max_length]."""
        rng = np.random.default_rng([9, self.seed, *row.tolist()])
        weights = rng.dirichlet(np.full(len(row), 0.3), self.vocab_size)
        return np.pad(weights, ((0, 0), (0, max_length - len(row))))

    def start(self, source: Tokens, max_length: int) -> TableState:
        source_length = int(source.lengths.max())
        self.tables = np.stack([self.table(row) for row in source])
        self.attention_tables = np.stack([self.attention(row, source_length) for row in source])
        self.selections: list[int] = []
        return TableState(np.arange(len(source)), np.full(len(source), START), self.selections)

    def step(self, tokens, state, k):
        self.requested.append(k)
        self.num_rows.append(len(tokens))
        logprobs = self.tables[state.sentence, state.last % self.tables.shape[1], tokens]
        next_state = TableState(state.sentence, np.asarray(tokens), state.selections)
        if k == 0:
            all_ids = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logprobs.shape)
            return Candidates(all_ids, logprobs), next_state
        top = np.argsort(-logprobs, axis=1, kind="stable")[:, :k]
        top_logprobs = np.take_along_axis(logprobs, top, axis=1)
        return Candidates(top.astype(np.int32), top_logprobs, logprobs[:, self.eos_id]), next_state

    def keep_attention(self, state):
        self.keeps_attention = True

    def last_attention(self, state):
        assert self.keeps_attention
        return self.attention_tables[state.sentence, state.last].astype(np.float32)

    def logprob(self, row, ids, *, finished: bool = True) -> float:
        """Log-probability of one text, computed from the table; one that is not finished has no end."""
        table = self.table(np.asarray(row))
        path = [START, START, *ids, *[END] * finished]
        trigrams = zip(path, path[1:], path[2:], strict=False)
        return float(sum(np.float64(table[first % len(table), second, third]) for first, second, third in trigrams))

    def is_finished(self, row, ids, max_length: int) -> bool:
        """Whether a text ends before the maximum length, or there because the end is the most likely token."""
        table = self.table(np.asarray(row))
        context = [START, START, *ids]
        logprobs = table[context[-2] % len(table), context[-1]].copy()
        logprobs[[PAD, START]] = -np.inf
        return len(ids) < max_length or int(logprobs.argmax()) == END

    def all_texts(self, row, max_length: int) -> Iterator[tuple[list[int], float, bool]]:
        """Every text up to the maximum length with its log-probability and whether it is finished, or else cut."""
        vocabulary = [token for token in range(self.vocab_size) if token not in (PAD, END, START)]
        for length in range(max_length + 1):
            for ids in itertools.product(vocabulary, repeat=length):
                finished = self.is_finished(row, ids, max_length)
                yield list(ids), self.logprob(row, ids, finished=finished), finished


@pytest.fixture(scope="session")
def table_generator():
    return TableGenerator


@pytest.fixture(scope="session")
def random_source():
    def build_source(count: int, seed: int = 0, max_length: int = 6) -> Tokens:
        rng = np.random.default_rng(seed)
        rows = []
        for _ in range(count):
            length = rng.integers(1, max_length + 1)
            rows.append([*rng.integers(4, 90, length).tolist(), END])
        return Tokens.from_rows(rows)

    return build_source
