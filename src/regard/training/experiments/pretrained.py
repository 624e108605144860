"""A model that training starts from, and its digest."""

from __future__ import annotations

import hashlib
from typing import Protocol

from torch import Tensor

from regard.checkpoint.weights import digest_tensors
from regard.text.tokenizer import Tokenizer

TOKENIZERS = ("tokenizer", "source", "target")  # attributes; a translation model has two tokenizers


class PretrainedModel(Protocol):
    """A model that training starts from."""

    @property
    def weights(self) -> dict[str, Tensor]: ...


def digest_pretrained(model: PretrainedModel) -> str:
    """SHA-256 of weights and tokenizers: a resumed run reads its tokenizers and frozen weights again."""
    digest = hashlib.sha256(digest_tensors(model.weights).encode())
    for name in TOKENIZERS:
        tokenizer = getattr(model, name, None)
        if isinstance(tokenizer, Tokenizer):
            digest.update(tokenizer.digest.encode())
    return digest.hexdigest()
