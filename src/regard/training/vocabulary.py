"""Tokenizer of a run, and extended vocabularies: new rows of token tables are means of the rows of old subwords."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.checkpoint.atomic import write_file
from regard.config.data import TokenizerConfig
from regard.data.lines import iter_checked_lines, open_bytes
from regard.errors import ConfigError
from regard.models.base import Model
from regard.text.extend import extend_by_texts, extend_by_words, old_subwords
from regard.text.tokenizer import OTHER_SIDE, Tokenizer

EMBEDDINGS = ("token_embedding.weight", "source_embedding.weight", "target_embedding.weight")
TOKEN_TABLES = (  # weights that have a row for each token
    "token_embedding.weight",
    "mlm_head_output.weight",
    "mlm_head_bias",
    "lm_head.weight",
    "lm_head_bias",
)
SOURCE_TABLES = ("source_embedding.weight",)  # of encoder–decoders with two vocabularies
TARGET_TABLES = ("target_embedding.weight", "lm_head.weight", "lm_head_bias")


def load_or_train_tokenizer(folder: Path, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Load the tokenizer of a run that is resumed; train and save one where the run starts."""
    path = folder / "tokenizers" / "text.json"
    if path.exists() and (folder / "run.json").exists():
        return Tokenizer.from_json(path.read_text("utf-8"), where=str(path))
    tokenizer = train()
    write_file(path, tokenizer.to_json().encode())
    return tokenizer


def extend_tokenizer(tokenizer: Tokenizer, config: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
    """Extend a vocabulary by subwords of the texts, or by the words of a file, one per line."""
    if config.extend == "texts":
        return extend_by_texts(tokenizer, texts, config.vocab_size)
    with open_bytes(config.extend) as stream:
        words = [line.text.strip() for line in iter_checked_lines(stream, config.extend)]
    return extend_by_words(tokenizer, [word for word in words if word])


def describe_extension(old: Tokenizer, new: Tokenizer, texts: Sequence[str]) -> str:
    """Describe for the user how many subwords are new, and how much shorter texts become."""
    num_old, num_new = (sum(len(ids) for ids in tokenizer.encode_batch(texts)) for tokenizer in (old, new))
    percent = 100 * (1 - num_new / max(1, num_old))
    return (
        f"vocabulary: {new.vocab_size - old.vocab_size:,} new subwords; the training texts have {num_new:,} tokens, "
        f"{percent:.1f} % fewer than before"
    )


def extend_tables(
    weights: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer, tables: Sequence[str] = TOKEN_TABLES
) -> dict[str, Tensor]:
    """Weights whose token tables have a row for each new token: the mean of the rows of its old subwords.

    >>> from regard.text.train import train_wordpiece
    >>> old = train_wordpiece(["ab c"] * 9, TokenizerConfig())
    >>> new = extend_by_words(old, ["abc"])
    >>> weights = {"token_embedding.weight": torch.arange(float(old.vocab_size))[:, None]}
    >>> subwords = old.encode("abc").ids
    >>> table = extend_tables(weights, old, new)["token_embedding.weight"]
    >>> float(table[-1, 0]) == sum(subwords) / len(subwords), len(table) == new.vocab_size
    (True, True)
    """
    return _append_means(weights, tables, old.vocab_size, old_subwords(old, new))


def extend_shared_tables(
    weights: Mapping[str, Tensor], source: tuple[Tokenizer, Tokenizer], target: tuple[Tokenizer, Tokenizer]
) -> dict[str, Tensor]:
    """Weights whose token tables, shared by source and target, have a row for each new token of either side.

    `source` and `target` are the old and the new tokenizer of a side.
    """
    old_source, new_source = source
    subword_ids = old_subwords(*target)
    for index, source_ids in enumerate(old_subwords(*source)):
        token = str(new_source.backend.id_to_token(old_source.vocab_size + index))
        if not token.startswith(OTHER_SIDE):
            subword_ids[index] = source_ids
    return _append_means(weights, TOKEN_TABLES, old_source.vocab_size, subword_ids)


def _append_means(
    weights: Mapping[str, Tensor], tables: Sequence[str], num_tokens: int, subword_ids: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """Weights whose token tables end with a mean of rows for each list of ids, after the rows of the old tokens."""
    indices = [torch.tensor(ids) for ids in subword_ids]

    def extend(table: Tensor) -> Tensor:
        old_rows = table[:num_tokens].float()
        new_rows = [table[ids].float().mean(0) for ids in indices]
        return torch.cat([old_rows, torch.stack(new_rows)]) if new_rows else old_rows

    return {name: extend(tensor) if name in tables else tensor for name, tensor in weights.items()}


def check_trained(model: Model, freeze: str) -> None:
    """Raise where the embedding of an extended vocabulary is frozen."""
    for name, parameter in model.named_parameters():
        if name in EMBEDDINGS and not parameter.requires_grad:
            raise ConfigError(
                f"trainable.freeze ({freeze}) freezes {name}, whose new rows have to be trained: leave it out of the "
                "patterns, or leave out --extend-vocabulary"
            )
