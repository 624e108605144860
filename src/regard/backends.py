"""`EncoderBackend` and `DecoderBackend`: what pipelines need of a model, whatever computes it.

Torch models implement them (`Bert`, `Gpt`, `Transformer`, …), and so do models in the engine (`engine.backend`). A
pipeline holds a backend and never asks which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.packed_tokens import Ids, Tokens

if TYPE_CHECKING:
    from regard.config.models import BertConfig
    from regard.models.bert import Bert

Floats = NDArray[np.float32]
PositionCodes = tuple[str, Floats]  # name of a positional scheme, codes [positions, width]
ConfigT = TypeVar("ConfigT", covariant=True)
GeneratorT = TypeVar("GeneratorT", covariant=True)
ModelT = TypeVar("ModelT", covariant=True)


class EncoderBackend(Protocol):
    """Encoder: hidden states, embeddings and logits of packed texts."""

    @property
    def config(self) -> BertConfig:
        """Config of the model."""
        ...

    @property
    def makes_batches(self) -> bool:
        """Whether `embed_texts` takes any number of texts and divides them into batches itself."""
        ...

    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:  # [tokens, hidden]
        """Hidden states of all tokens."""
        ...

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:  # [texts, hidden · poolings]
        """Embedding of each text."""
        ...

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Logits of the head, of texts or of tokens."""
        ...

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        ...

    def position_codes(self, count: int) -> PositionCodes | None:
        """Codes of the first positions; None where positions are neither embedded nor rotated."""
        ...

    @property
    def backend_name(self) -> str:
        """What computes the model, and in which precision: `engine int8`, `torch float32`."""
        ...

    def torch_model(self) -> Bert:
        """The model in torch, for gradients and parameters; built on first use."""
        ...


class DecoderBackend(Protocol[ConfigT, GeneratorT, ModelT]):
    """Model that generates text: a translation model or a causal language model."""

    @property
    def config(self) -> ConfigT:
        """Config of the model."""
        ...

    def generator(self, *, with_attention: bool = False) -> GeneratorT:
        """The generator of one search, which also completes it; `with_attention` is for a coverage penalty."""
        ...

    def torch_model(self) -> ModelT:
        """The model in torch, for gradients, parameters and attention sites; built on first use."""
        ...
