"""What all models that read one text and write another share: words, the output, shifted rows, the search's face."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.noise import Noise, drop
from regard.blocks.heads import target_log_probabilities, vocabulary_loss
from regard.blocks.packed import Product
from regard.errors import UsageError
from regard.models.packing import Packable, output_product
from regard.tokens import Candidates, Tokens

BLOCK = 128  # training batches have a multiple of this many tokens


class WriterConfig(Protocol):
    """The settings that every writer has."""

    @property
    def source_vocabulary(self) -> int: ...
    @property
    def target_vocabulary(self) -> int: ...
    @property
    def shared(self) -> bool: ...
    @property
    def tied(self) -> bool: ...
    @property
    def output_bias(self) -> bool: ...
    @property
    def scale_embedding(self) -> bool: ...
    @property
    def dropout(self) -> float: ...
    @property
    def places(self) -> int: ...
    @property
    def pad(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def start(self) -> int: ...


class Writer(Packable):
    """Reads a source text, writes a target text; how, its kinds say."""

    settings: WriterConfig

    def make_words(self, settings: WriterConfig, width: int, written: int) -> None:
        """Make tables of words of a width, and the output from states of width `written`."""
        self.settings = settings
        if settings.shared:
            self.words = nn.Embedding(settings.target_vocabulary, width)
        else:
            self.source_words = nn.Embedding(settings.source_vocabulary, width)
            self.target_words = nn.Embedding(settings.target_vocabulary, width)
        if not settings.tied:
            self.output = nn.Linear(written, settings.target_vocabulary, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(settings.target_vocabulary)) if settings.output_bias else None

    # the generator's face: what a search needs to know
    @property
    def vocabulary(self) -> int:
        return self.settings.target_vocabulary

    @property
    def start_token(self) -> int:
        return self.settings.start

    @property
    def end_token(self) -> int:
        return self.settings.end

    @property
    def pad_token(self) -> int:
        return self.settings.pad

    def start(self, source: Tokens, room: int) -> Any:
        """Return the state before the first token: one row for each source sentence."""
        raise NotImplementedError

    def step(self, tokens: NDArray[np.int32], state: Any, k: int) -> tuple[Candidates, Any]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        raise NotImplementedError

    def watch(self, state: Any) -> None:
        """Let each following step keep where it looked."""
        if not self.looks():
            raise UsageError("a model without attention looks nowhere: set coverage to 0")
        state.watched = True

    def attention(self, state: Any) -> NDArray[np.float32]:
        """Return where each row looked in the last step, [R, S]: the last layer's heads averaged."""
        if state.looked is None:
            raise UsageError("call watch(state) before the step whose attention is asked for")
        looked: NDArray[np.float32] = state.looked
        return looked

    def looks(self) -> dict[str, int]:
        """Return the sites where what is written looks at the source, first layer first, each with its heads."""
        raise NotImplementedError

    # words and output
    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.table("target").weight if self.settings.tied else self.output.weight

    def table(self, side: str) -> nn.Embedding:
        """Return the table of words of a side, source or target."""
        if self.settings.shared:
            return self.words
        return self.source_words if side == "source" else self.target_words

    def embedded(self, ids: Tensor, side: str) -> Tensor:
        """Return the words of a side, scaled where that is asked for."""
        words = self.table(side)
        states: Tensor = words(ids)
        return states * math.sqrt(words.embedding_dim) if self.settings.scale_embedding else states

    def dropped(self, states: Tensor, side: str, noise: Noise | None) -> Tensor:
        """Return embedded states with dropout."""
        return drop(states, self.settings.dropout, noise, f"{side}.embedding")

    @staticmethod
    def block(noise: Noise | None) -> int:
        """Training meets thousands of batches: their sizes are rounded so that products are prepared for few."""
        return 1 if noise is None else BLOCK

    def shifted(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Return the rows with the start in front, and the rows with the end behind."""
        given = np.insert(target.ids, target.offsets[:-1], self.settings.start)
        wanted = np.insert(target.ids, target.offsets[1:], self.settings.end)
        offsets = (target.offsets + np.arange(len(target) + 1)).astype(np.int32)
        return Tokens(given, offsets), Tokens(wanted, offsets)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over all target tokens and the end."""
        given, wanted = self.shifted(target)
        hidden = self(source, given, noise)
        targets, rows = self.door(wanted, self.block(noise))
        return vocabulary_loss(hidden, self.output_weight, self.output_bias, targets, smoothing, rows.filled)

    @torch.no_grad()
    def score_tokens(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Return the log-probability of each target token and of the end, row by row."""
        given, wanted = self.shifted(target)
        hidden = self(source, given)
        found = target_log_probabilities(hidden, self.output_weight, self.output_bias, self.door(wanted)[0])
        return np.split(found.cpu().numpy(), wanted.offsets[1:-1])

    @torch.no_grad()
    def distributions(self, source: Tokens, target: Tokens) -> NDArray[np.float32]:
        """Return the log-probabilities of all tokens before each target token and before the end, [N, V]."""
        hidden = self(source, self.shifted(target)[0])
        logits = nn.functional.linear(hidden, self.output_weight, self.output_bias)
        return torch.log_softmax(logits.float(), dim=-1).cpu().numpy()

    def output_product(self, pack: bool) -> Product:
        """Return the way from hidden states to logits."""
        return output_product(self.output_weight, self.output_bias, pack)


def rows_by_sentence(rows: NDArray[np.int64], before: int, sentences: int) -> NDArray[np.int64]:
    """Return which sentences' memories chosen rows need; `before`: rows there were, equally many a sentence.

    Where each sentence keeps equally many rows, its memory is needed once; elsewhere each row has one of its own.

    >>> rows_by_sentence(np.array([0, 1, 4, 5]), before=6, sentences=3).tolist()
    [0, 2]
    >>> rows_by_sentence(np.array([0, 4, 5]), before=6, sentences=3).tolist()
    [0, 2, 2]
    """
    owner = rows // max(1, before // max(1, sentences))
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(np.append(first, len(owner)))
    even = len(counts) > 0 and bool((counts == counts[0]).all())
    return owner[first] if even else owner
