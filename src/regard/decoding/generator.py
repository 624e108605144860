"""What a search asks of a model: `Generator`; a torch model, a compiled engine and an ensemble all satisfy it."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard.tokens import Candidates, Ids, Tokens

Rows = NDArray[np.int64]


class GeneratorState(Protocol):
    """What generation remembers, one row for each text being written."""

    def select(self, rows: Rows) -> Self:
        """Return the rows with these numbers, in this order; rows may be dropped and repeated.

        The state itself may be used up.
        """
        ...


S = TypeVar("S", bound=GeneratorState)


class Generator(Protocol[S]):
    """Writes one token after another; all arrays are NumPy's."""

    @property
    def vocab_size(self) -> int:
        """How many token numbers there are."""
        ...

    @property
    def bos_id(self) -> int:
        """The token that every text starts from; never written."""
        ...

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        ...

    @property
    def pad_id(self) -> int:
        """The token that fills rows; never written."""
        ...

    def start(self, source: Tokens, max_length: int) -> S:
        """Return the state before the first token, one row a source text; `room` is the longest output."""
        ...

    def step(self, tokens: Ids, state: S, k: int) -> tuple[Candidates, S]:
        """Return the k best next tokens of each row, given one more token of each; k = 0: all log-probabilities.

        Beside the k best, the end's log-probability is told. The state handed in may be used up.
        """
        ...


@runtime_checkable
class NativeSearch(Protocol):
    """A generator that can do a whole plain search by itself, as `search` would do it."""

    @property
    def vocab_size(self) -> int:
        """How many token numbers there are."""
        ...

    def search(
        self,
        source: Tokens,
        max_lengths: Rows,
        *,
        beam: int,
        nbest: int,
        length_penalty: float,
        use_shortlist: bool = False,
    ) -> list[list[tuple[list[int], float, float, bool]]]:
        """Return the best texts for each source text: ids, score, total, and whether the model ended it.

        `listed` lets it choose among the words that it has listed for a text, if it has.
        """
        ...


@runtime_checkable
class AttentionProvider(Protocol):
    """A generator that can say where it looked; the penalty for coverage needs it."""

    def keep_attention(self, state: GeneratorState) -> None:
        """Let each following step keep where it looked."""
        ...

    def last_attention(self, state: GeneratorState) -> NDArray[np.float32]:
        """Return where each row looked in the last step, [R, S]: a share of 1 over its source's tokens, zeros after."""
        ...
