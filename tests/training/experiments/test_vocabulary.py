"""A new vocabulary starts from the embeddings of the old one."""

from __future__ import annotations

import torch

from regard.config.data import TokenizerConfig
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_masked_tokenizer, train_wordpiece
from regard.training.experiments.masked_lm import transfer_embeddings

OLD = train_wordpiece(["red green blue"] * 9, TokenizerConfig())
WEIGHTS = {
    "token_embedding.weight": torch.randn(OLD.vocab_size + 3, 5, generator=torch.Generator().manual_seed(1)),
    "mlm_head_bias": torch.arange(OLD.vocab_size + 3.0),
    "norm.weight": torch.ones(5),
}


def token_id(tokenizer: Tokenizer, token: str) -> int:
    return int(tokenizer.backend.token_to_id(token))


def test_the_same_vocabulary_keeps_its_rows() -> None:
    weights = transfer_embeddings(WEIGHTS, OLD, OLD)
    assert torch.equal(weights["token_embedding.weight"], WEIGHTS["token_embedding.weight"][: OLD.vocab_size])
    assert weights["norm.weight"] is WEIGHTS["norm.weight"]


def test_a_new_token_is_the_mean_of_its_old_subwords() -> None:
    new = train_wordpiece(["blue bluered"] * 9, TokenizerConfig())
    weights = transfer_embeddings(WEIGHTS, OLD, new)
    subword_ids = OLD.encode("bluered").ids
    assert len(subword_ids) > 1
    new_id = token_id(new, "bluered")
    torch.testing.assert_close(
        weights["token_embedding.weight"][new_id], WEIGHTS["token_embedding.weight"][subword_ids].mean(0)
    )
    torch.testing.assert_close(weights["mlm_head_bias"][new_id], WEIGHTS["mlm_head_bias"][subword_ids].mean())
    assert torch.equal(
        weights["token_embedding.weight"][token_id(new, "blue")],
        WEIGHTS["token_embedding.weight"][token_id(OLD, "blue")],
    )


def test_special_tokens_keep_their_role_under_other_names() -> None:
    new = train_masked_tokenizer(["red green"] * 9, TokenizerConfig(kind="words"))
    weights = transfer_embeddings(WEIGHTS, OLD, new)
    for new_token, old_token in (
        ("<mask>", "[MASK]"),
        ("<s>", "[CLS]"),
        ("</s>", "[SEP]"),
        ("<unk>", "[UNK]"),
        ("<pad>", "[PAD]"),
    ):
        embedding = weights["token_embedding.weight"][token_id(new, new_token)]
        assert torch.equal(embedding, WEIGHTS["token_embedding.weight"][token_id(OLD, old_token)])
    assert torch.equal(
        weights["token_embedding.weight"][token_id(new, "▁red")],
        WEIGHTS["token_embedding.weight"][token_id(OLD, "red")],
    )
