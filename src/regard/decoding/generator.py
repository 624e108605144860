"""The interface between search and model: `Generator`, implemented by torch models, the engine and ensembles."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard.backends import PositionCodes
from regard.packed_tokens import Candidates, Ids, Tokens

Rows = NDArray[np.int64]


class GeneratorState(Protocol):
    """State of a generation, such as the key–value cache; one row per hypothesis."""

    def select(self, rows: Rows) -> Self:
        """Select rows by index, in this order; rows may be dropped and repeated.

        The old state may be invalid afterwards.
        """
        ...


S = TypeVar("S", bound=GeneratorState)


class Generator(Protocol[S]):
    """Predicts one token after another; all arrays are NumPy arrays.

    A model that implements these attributes and methods can be searched; no base class is needed. This one repeats its
    source, and its state is what is left of each:

    >>> class Rest:
    ...     def __init__(self, rows):
    ...         self.rows = rows
    ...     def select(self, rows):
    ...         return Rest([self.rows[row] for row in rows])
    >>> class Echo:
    ...     vocab_size, bos_id, eos_id, pad_id = 9, 1, 0, 1
    ...     def start(self, source, max_length):
    ...         return Rest([row.tolist() for row in source])
    ...     def step(self, tokens, state, k):
    ...         logprobs = np.full((len(tokens), self.vocab_size), -9, np.float32)
    ...         for row, rest in enumerate(state.rows):
    ...             logprobs[row, rest[0] if rest else self.eos_id] = 0
    ...         ids = np.argsort(-logprobs, kind="stable")[:, :k] if k else np.argsort(logprobs * 0, kind="stable")
    ...         candidates = Candidates(ids, np.take_along_axis(logprobs, ids, 1), logprobs[:, self.eos_id])
    ...         return candidates, Rest([rest[1:] for rest in state.rows])
    >>> from regard.search import beam_search
    >>> beam_search(Echo(), [[5, 7, 5]], max_length=9)[0][0].ids
    [5, 7, 5]
    """

    @property
    def vocab_size(self) -> int:
        """Size of the output vocabulary."""
        ...

    @property
    def bos_id(self) -> int:
        """Token that every text starts from; never generated."""
        ...

    @property
    def eos_id(self) -> int:
        """End-of-sequence token."""
        ...

    @property
    def pad_id(self) -> int:
        """Padding token; never generated."""
        ...

    def start(self, source: Tokens, max_length: int) -> S:
        """State before the first token, one row per source text; outputs have at most `max_length` tokens."""
        ...

    def step(self, tokens: Ids, state: S, k: int) -> tuple[Candidates, S]:
        """Append one token to each row; return the k most likely next tokens. k = 0: logprobs of the vocabulary.

        With k > 0, the candidates include the logprob of the end-of-sequence token. The old state may be invalid
        afterwards.
        """
        ...


class TracedModel(Protocol):
    """A model whose attention can be traced."""

    @property
    def config(self) -> Any:
        """Config of the model, of any family."""
        ...

    @property
    def backend_name(self) -> str:
        """What computes the model, and in which precision."""
        ...

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        ...

    def position_codes(self, count: int) -> PositionCodes | None:
        """Scheme and codes of the first positions; None where the scheme neither embeds nor rotates."""
        ...


class ScoringGenerator(Generator[S], TracedModel, Protocol):
    """A generator that also scores given outputs; these passes are what a trace sees."""

    def shift_targets(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Decoder input (bos in front of each sequence) and labels (eos at its end)."""
        ...

    def cross_attention_sites(self) -> dict[str, int]:
        """Sites that attend to the source, first layer first, with their number of heads."""
        ...

    def target_logprobs(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Log-probability of every target token and of the end-of-sequence token, by text."""
        ...

    def next_token_logprobs(self, source: Tokens, target: Tokens) -> NDArray[np.float32]:
        """Log-probabilities of the vocabulary before every target token and before the end, [N, V]."""
        ...


class LanguageModel(Generator[S], TracedModel, Protocol):
    """A causal language model, which also scores given texts; these passes are what a trace sees."""

    def read(self, tokens: Tokens) -> None:
        """Read sequences for the traces that are open."""
        ...

    def next_token_logprobs(self, tokens: Tokens) -> NDArray[np.float32]:
        """Log-probabilities of the vocabulary after every token, [N, V]."""
        ...

    def summed_loss(self, tokens: Tokens) -> float:
        """Cross-entropy of all tokens but the first of each sequence, in nats."""
        ...


@runtime_checkable
class NativeSearch(Protocol):
    """A generator with its own implementation of plain greedy and beam search, equivalent to `search`."""

    @property
    def vocab_size(self) -> int:
        """Size of the output vocabulary."""
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
        """Search the best hypotheses of each source text: ids, score, logprob, and whether the model ended it.

        `use_shortlist` restricts the output to the shortlist of the text, if the model has one.
        """
        ...


@runtime_checkable
class AttentionProvider(Protocol):
    """A generator that returns its cross-attention; the coverage penalty needs it."""

    def keep_attention(self, state: GeneratorState) -> None:
        """Store attention weights in all following steps."""
        ...

    def last_attention(self, state: GeneratorState) -> NDArray[np.float32]:
        """Attention of the last step over source tokens, [R, S]; rows sum to 1, zeros after the source's end."""
        ...
