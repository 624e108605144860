"""What a masked-word model puts into the gaps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.blocks.heads import best_tokens
from regard.models.encoder import Encoder
from regard.tasks.language import Numbers
from regard.text.tokenizer import Tokenizer
from regard.text.wordpieces import MORE
from regard.tokens import Ids, Tokens


@torch.inference_mode()
def best_words(model: Encoder, rows: Tokens, places: Numbers, k: int) -> tuple[Ids, NDArray[np.float32]]:
    """Return the k likeliest tokens at places of the rows laid end to end, likeliest first, and their probabilities."""
    states = torch.from_numpy(model.encode(rows)[places]).to(model.device(), model.output_weight.dtype)
    hidden = model.masked_states(states)
    logits = torch.nn.functional.linear(hidden, model.output_weight, model.output_bias).float()
    ids, chances = best_tokens(logits, min(k, logits.shape[1]))
    return ids.cpu().numpy().astype(np.int32), chances.exp().cpu().numpy()


@dataclass(frozen=True)
class Word:
    """A token as it goes into a text."""

    text: str
    glued: bool  # whether it continues the word before

    @classmethod
    def of(cls, tokenizer: Tokenizer, number: int) -> Word:
        """Return a token as people write it.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.wordpieces import learn_word_pieces
        >>> tokenizer = learn_word_pieces(["ab abab"] * 9, TokenizerConfig())
        >>> Word.of(tokenizer, tokenizer.backend.token_to_id("##ab"))
        Word(text='ab', glued=True)
        """
        piece = str(tokenizer.backend.id_to_token(number) or "")
        if piece.startswith(MORE) and len(piece) > len(MORE):
            return cls(piece.removeprefix(MORE), True)
        return cls(tokenizer.decode([number]).strip() or piece, False)

    def into(self, before: str, after: str) -> str:
        """Return the text with the word between these parts of it."""
        return f"{before.rstrip() if self.glued else before}{self.text}{after}"


def gap_text(tokenizer: Tokenizer, ids: Sequence[int], place: int, mask: int, around: int = 12) -> str:
    """Return the words around a place as text, the mask token in the gap."""
    left, right = ids[max(0, place - around) : place], ids[place + 1 : place + 1 + around]
    name = str(tokenizer.backend.id_to_token(mask))
    return " ".join(filter(None, [tokenizer.decode(left).removeprefix(MORE), name, tokenizer.decode(right)]))
