"""A new vocabulary for a model that knows another: each new token starts from what the old tokens know of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.tasks.filling import Word
from regard.text.framing import Framing
from regard.text.tokenizer import Tokenizer

TABLES = ("words.weight", "masked_output.weight", "masked_bias")  # weights that have a row for each token


def old_tokens(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return for each new token the old ones that it starts from: itself, or the pieces that its text has there.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.wordpieces import learn_word_pieces
    >>> old, new = (learn_word_pieces([text] * 9, TokenizerConfig()) for text in ("ab c", "abc ab"))
    >>> found = old_tokens(old, new)
    >>> [old.pieces(found[new.backend.token_to_id(piece)]) for piece in ("[MASK]", "ab", "abc", "##b")]
    [['[MASK]'], ['ab'], ['ab', '##c'], ['##b']]
    """
    frames = Framing(old), Framing(new)
    roles = {getattr(frames[1], role): getattr(frames[0], role) for role in ("pad", "unknown", "start", "end", "mask")}
    written = old.encode_all([Word.of(new, number).text for number in range(new.size)])
    found = []
    for number in range(new.size):
        same = old.backend.token_to_id(str(new.backend.id_to_token(number)))
        same = roles[number] if roles.get(number, -1) >= 0 else same
        found.append([same] if same is not None else written[number] or [max(old.unknown, 0)])
    return found


def carried(weights: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer) -> dict[str, Tensor]:
    """Return the weights with rows for the new tokens, each the mean of the rows of the old ones it starts from."""
    pieces = old_tokens(old, new)
    lengths = torch.tensor([len(numbers) for numbers in pieces])
    taken = torch.tensor([number for numbers in pieces for number in numbers])
    owner = torch.arange(len(pieces)).repeat_interleave(lengths)

    def moved(table: Tensor) -> Tensor:
        flat = table.reshape(len(table), -1).float()
        summed = torch.zeros(len(pieces), flat.shape[1]).index_add_(0, owner, flat[taken])
        return (summed / lengths[:, None]).reshape(len(pieces), *table.shape[1:])

    return {name: moved(weight) if name in TABLES else weight for name, weight in weights.items()}
