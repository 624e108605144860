"""The copy task: models of every family learn to copy strings of digits.

A translator writes the digits of its source again, a causal model those before a boundary, and an encoder predicts them
at the masks after a boundary (masked language modelling).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.packed_tokens import Tokens

VOCAB_SIZE = 9
EOS = 1
MASK = 2
BOUNDARY = 3
DIGITS = range(4, VOCAB_SIZE)
ROWS_PER_UPDATE = 32


def all_strings(length: int) -> list[list[int]]:
    return [list(digits) for digits in itertools.product(DIGITS, repeat=length)]


def draw_strings(rng: np.random.Generator, length: int) -> list[list[int]]:
    """Strings of one update."""
    return rng.integers(DIGITS.start, DIGITS.stop, (ROWS_PER_UPDATE, length)).tolist()


def learn_to_copy(model: Any, *, length: int, updates: int, learning_rate: float) -> float:
    """Train on strings of digits; return the mean probability of their copies."""
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(updates):
        loss = copy_loss(model, draw_strings(rng, length))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copy_probability(model, all_strings(length))


def copy_loss(model: Any, strings: list[list[int]]) -> Tensor:
    """Loss per token."""
    match model.config.family:
        case "bert":
            return cross_entropy(mask_logits(model, strings), torch.tensor(strings).flatten())
        case "gpt":
            loss, _ = model.loss(Tokens.from_rows([[*string, BOUNDARY, *string] for string in strings]))
        case _:
            loss, _ = model.loss(sources(strings), Tokens.from_rows(strings))
    return loss / (len(strings) * (len(strings[0]) + 1))


def copy_probability(model: Any, strings: list[list[int]]) -> float:
    """Mean probability of the tokens of all copies, given those before."""
    length = len(strings[0])
    match model.config.family:
        case "bert":
            with torch.no_grad():
                logprobs = mask_logits(model, strings).log_softmax(-1).unflatten(0, (len(strings), length)).numpy()
        case "gpt":
            tokens = Tokens.from_rows([[*string, BOUNDARY, *string] for string in strings])
            all_logprobs = model.next_token_logprobs(tokens).reshape(len(strings), 2 * length + 1, -1)
            logprobs = all_logprobs[:, length : 2 * length]
        case _:
            rows = model.target_logprobs(sources(strings), Tokens.from_rows(strings))
            return float(np.exp(np.stack(rows)[:, :length]).mean())
    return float(np.exp(select_tokens(logprobs, strings)).mean())


def sources(strings: list[list[int]]) -> Tokens:
    return Tokens.from_rows([[*string, EOS] for string in strings])


def mask_logits(model: Any, strings: list[list[int]]) -> Tensor:
    """Logits of an encoder at the masks after each string, [strings · length, vocabulary]."""
    tokens = Tokens.from_rows([[*string, BOUNDARY, *[MASK] * len(string)] for string in strings])
    ids, batch = model.to_tensors(tokens)
    logits: Tensor = model.output_logits(model(ids, batch), batch)
    return logits[ids == MASK]


def select_tokens(logprobs: NDArray[np.float32], strings: list[list[int]]) -> NDArray[np.float32]:
    """Log-probabilities of the digits of each string, [strings, length]."""
    return np.take_along_axis(logprobs, np.array(strings)[:, :, None], axis=2)[:, :, 0]
