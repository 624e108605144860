"""A new vocabulary starts from what the old one knows."""

from __future__ import annotations

import torch

from regard.config.data import TokenizerConfig
from regard.text.train import train_masked_tokenizer, train_wordpiece
from regard.training.experiments.masked_lm import transfer_embeddings

OLD = train_wordpiece(["red green blue"] * 9, TokenizerConfig())
WEIGHTS = {
    "words.weight": torch.randn(OLD.vocab_size + 3, 5, generator=torch.Generator().manual_seed(1)),
    "masked_bias": torch.arange(OLD.vocab_size + 3.0),
    "norm.weight": torch.ones(5),
}


def row(tokenizer: object, piece: str) -> int:
    return int(tokenizer.backend.token_to_id(piece))  # type: ignore[attr-defined]


def test_the_same_words_are_the_same_rows() -> None:
    made = transfer_embeddings(WEIGHTS, OLD, OLD)
    assert torch.equal(made["words.weight"], WEIGHTS["words.weight"][: OLD.vocab_size])
    assert made["norm.weight"] is WEIGHTS["norm.weight"]


def test_a_new_word_is_the_mean_of_its_old_pieces() -> None:
    new = train_wordpiece(["blue bluered"] * 9, TokenizerConfig())
    made = transfer_embeddings(WEIGHTS, OLD, new)
    pieces = OLD.encode("bluered").ids
    assert len(pieces) > 1
    torch.testing.assert_close(made["words.weight"][row(new, "bluered")], WEIGHTS["words.weight"][pieces].mean(0))
    torch.testing.assert_close(made["masked_bias"][row(new, "bluered")], WEIGHTS["masked_bias"][pieces].mean())
    assert torch.equal(made["words.weight"][row(new, "blue")], WEIGHTS["words.weight"][row(OLD, "blue")])


def test_special_tokens_keep_their_part_under_other_names() -> None:
    new = train_masked_tokenizer(["red green"] * 9, TokenizerConfig(kind="words"))
    made = transfer_embeddings(WEIGHTS, OLD, new)
    for ours, theirs in (
        ("<mask>", "[MASK]"),
        ("<s>", "[CLS]"),
        ("</s>", "[SEP]"),
        ("<unk>", "[UNK]"),
        ("<pad>", "[PAD]"),
    ):
        assert torch.equal(made["words.weight"][row(new, ours)], WEIGHTS["words.weight"][row(OLD, theirs)])
    assert torch.equal(made["words.weight"][row(new, "▁red")], WEIGHTS["words.weight"][row(OLD, "red")])
