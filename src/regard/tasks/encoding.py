"""Texts as rows that an encoder reads: special tokens around them, long ones in overlapping windows, nothing silent.

What classifying, tagging and answering share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.attention.noise import Noise
from regard.attention.rows import Chosen, Rows
from regard.config.model import EncoderConfig
from regard.data.batching import epoch_batches, sorted_batches
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.text.framing import Framing
from regard.tokens import Ids, Tokens
from regard.workers import Workers

Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
BUDGET = 4096  # tokens that are read together where nothing is learned
BLOCK = 64  # where something is, their number is rounded up to a multiple: products are prepared for few sizes
OVERLAP = 4  # windows of a long text share a fourth of their tokens
SMALLEST = {"stack.layers": 1, "stack.heads": 1, "stack.feedforward": 1}


@dataclass
class Account:
    """What became of texts that are too long, in tokens without special ones."""

    texts: int = 0
    tokens: int = 0
    longest: int = 0  # tokens of a row
    windowed: int = 0  # texts that are read in several windows
    windows: int = 0  # rows in all
    cut_texts: int = 0
    cut_tokens: int = 0
    blank: int = 0  # texts besides that have nothing to read

    def line(self) -> str:
        """Say it in a line.

        >>> Account(texts=2, tokens=900, longest=512, windowed=1, windows=3).line()
        'nothing cut: 2 texts, 900 tokens; 1 of them longer than 512 tokens, read in windows (3 windows in all)'
        """
        cut = f"nothing cut: {self.texts:,} texts, {self.tokens:,} tokens"
        if self.cut_texts:
            cut = f"{self.cut_texts:,} of {self.texts:,} texts are cut: {self.cut_tokens:,} of {self.tokens:,} tokens"
            cut += " are not read"
        if self.blank:
            cut += f"; {self.blank:,} more without a word, left unlabelled"
        if not self.windowed:
            return cut
        beyond = f"{self.windowed:,} of them longer than {self.longest:,} tokens"
        return f"{cut}; {beyond}, read in windows ({self.windows:,} windows in all)"

    def to_dict(self) -> dict[str, int]:
        """Return it as plain values."""
        return dict(vars(self))

    def add(self, other: Account) -> None:
        """Take another account in."""
        for name in ("texts", "tokens", "windowed", "windows", "cut_texts", "cut_tokens", "blank"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)


@dataclass
class Encoded:
    """Rows that an encoder reads; several may belong to one text."""

    rows: list[Ids] = field(default_factory=list)
    types: list[Ids] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # the text that each row is of
    account: Account = field(default_factory=Account)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, ids: Sequence[int] | Ids, types: Sequence[int] | Ids, owner: int) -> None:
        """Add a row."""
        self.rows.append(np.asarray(ids, dtype=np.int32))
        self.types.append(np.asarray(types, dtype=np.int32))
        self.owners.append(owner)

    @cached_property
    def lengths(self) -> Numbers:
        """[rows, 1], in tokens."""
        return np.array([len(row) for row in self.rows], dtype=np.int64).reshape(-1, 1)

    def batch(self, numbers: Numbers) -> Tokens:
        """Return some of the rows."""
        packed = Tokens.from_rows([self.rows[number] for number in numbers])
        return Tokens(packed.ids, packed.offsets, np.concatenate([self.types[number] for number in numbers]))

    def epoch(self, *, budget: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, budget=budget, seed=seed, epoch=epoch, digest=digest)

    def scored(self, model: Encoder) -> Iterator[tuple[Numbers, Tokens, Floats]]:
        """Yield some rows at a time: their numbers, their tokens and the scores of the model's head."""
        for numbers in sorted_batches(self.lengths, budget=BUDGET):
            tokens = self.batch(numbers)
            yield numbers, tokens, model.scores(tokens)

    @cached_property
    def shares(self) -> Floats:
        """One for a text that is one row; the windows of a text share it, [rows]."""
        owners = np.asarray(self.owners, dtype=np.int64)
        return (1 / np.bincount(owners)[owners]).astype(np.float32)


def windows(count: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Return where windows of at most `room` tokens begin and end, each sharing at least `overlap` with the next.

    >>> windows(10, 6, 2), windows(5, 6, 2)
    ([(0, 6), (4, 10)], [(0, 5)])
    """
    made, first = [], 0
    while first + room < count:
        made.append((first, first + room))
        first += room - overlap
    return [*made, (max(0, min(first, count - room)) if made else 0, count)]


def read_texts(framing: Framing, texts: Sequence[str], pairs: Sequence[str] | None, longest: int) -> Encoded:
    """Return texts as rows of at most `longest` tokens: a long one in windows, a long pair cut."""
    if pairs is not None:
        tokens, cut = framing.rows(texts, pairs, longest=longest)
        made = Encoded(account=Account(cut.texts, cut.tokens, longest, 0, len(tokens), cut.cut_texts, cut.cut_tokens))
        assert tokens.segments is not None
        for number, row in enumerate(tokens):
            made.add(row, tokens.segments[tokens.offsets[number] : tokens.offsets[number + 1]], number)
        return made
    room = longest - framing.room()
    if room < 2:
        raise UsageError(f"rows of {longest} tokens have no room for a text: see --max-length")
    made = Encoded(account=Account(texts=len(texts), longest=longest))
    for number, ids in enumerate(framing.tokenizer.encode_all(texts)):
        found = windows(len(ids), room, room // OVERLAP)
        made.account.tokens += len(ids)
        made.account.windowed += len(found) > 1
        for first, last in found:
            made.add(*framing.frame(ids[first:last]), number)
    made.account.windows = len(made)
    return made


def text_scores(model: Encoder, read: Encoded, texts: int) -> Floats:
    """Return the scores of each text, [texts, labels]: the mean over its windows."""
    made = np.zeros((texts, model.config.outputs), dtype=np.float32)
    owners = np.asarray(read.owners, dtype=np.int64)
    for numbers, _, scores in read.scored(model):
        np.add.at(made, owners[numbers], scores * read.shares[numbers, None])
    return made


def encoder_states(
    model: Encoder,
    tokens: Tokens,
    noise: Noise | None,
    states: Tensor | None = None,
    places: Numbers | None = None,
) -> tuple[Tensor, Rows]:
    """Return a state for each token, to be learned from, and the layout of the rows; or the states that are given.

    Where only some places among the packed tokens are needed, the states are theirs alone, and the layout, too.
    """
    block = BLOCK if noise is not None and states is None else 1
    ids, rows = model.door(tokens, block)
    if states is not None:
        return states.to(model.device(), model.words.weight.dtype), rows
    chosen = None if places is None else Chosen(rows, places, block)
    made = model(ids, rows, model.door_types(tokens, rows.spare), noise, chosen)
    layout = rows if chosen is None else chosen
    return made[: layout.filled], layout


class KeptStates:
    """States of an encoder that does not change, made once: of chosen places of each row."""

    def __init__(self, model: Encoder, read: Encoded, places: Sequence[Numbers] | None = None) -> None:
        self.offsets = np.zeros(len(read) + 1, dtype=np.int64)
        chosen = [np.zeros(1, dtype=np.int64)] * len(read) if places is None else places  # usually the first token
        np.cumsum([len(one) for one in chosen], out=self.offsets[1:])
        self.states = torch.zeros(int(self.offsets[-1]), model.config.width, dtype=torch.float16)
        batches = sorted_batches(read.lengths, budget=BUDGET)

        def encode(indices: Numbers) -> list[Tensor]:
            tokens = read.batch(indices)
            states = torch.from_numpy(model.encode(tokens))
            rows = [chosen[index] + int(start) for index, start in zip(indices, tokens.offsets, strict=False)]
            return [states[torch.from_numpy(row)].half() for row in rows]

        # a batch for each thread, as they become free: a core that others use delays nothing but its own batch
        for indices, selected in zip(batches, Workers(torch.get_num_threads()).map(encode, batches), strict=True):
            for index, states in zip(indices, selected, strict=True):
                self.states[self.offsets[index] : self.offsets[index + 1]] = states

    def of(self, numbers: Numbers) -> Tensor:
        """Return the states of some rows, one row behind the other."""
        return torch.cat([self.states[self.offsets[number] : self.offsets[number + 1]] for number in numbers])


def head_alone(config: EncoderConfig) -> EncoderConfig:
    """Return the config of a model that has no more than the head of another, for states that are kept."""
    return config.override({"vocabulary": 1, "places": 1, "first_place": 0, "types": 0, **SMALLEST})


def summed_losses(
    scores: Tensor,
    wanted: Tensor,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # scores [N, labels], wanted [N], weights [labels], shares [N]
    """Return the sums over rows of what is minimised – smoothed, weighed by label and row – and of the plain loss.

    >>> minimised, plain = summed_losses(torch.zeros(2, 4), torch.tensor([0, 1]))
    >>> round(plain.item(), 4), bool(minimised == plain)
    (2.7726, True)
    """
    wanted = wanted.to(scores.device)
    each = cross_entropy(scores, wanted, reduction="none")
    plain = each
    if smoothing:
        each = (1 - smoothing) * each - smoothing * torch.log_softmax(scores, dim=1).mean(1)
    if weights is not None:
        each = each * weights.to(scores.device)[wanted]
    if shares is not None:
        each, plain = each * shares.to(scores.device), plain * shares.to(scores.device)
    return each.sum(), plain.detach().sum()


def balanced_weights(counts: Numbers) -> Floats:
    """Return a weight for each label, so that all labels weigh the same in all; what never occurs weighs nothing.

    >>> balanced_weights(np.array([3, 1, 0])).tolist()
    [0.6666666865348816, 2.0, 0.0]
    """
    occurs = counts > 0
    made = np.zeros(len(counts), dtype=np.float32)
    made[occurs] = counts.sum() / (occurs.sum() * counts[occurs])
    return made
