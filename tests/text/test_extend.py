"""Extended vocabularies: old tokens keep their ids, new words become single tokens, for every kind of tokenizer."""

from __future__ import annotations

import pytest

from regard.config.data import TokenizerConfig
from regard.errors import CheckpointError, DataError
from regard.text.extend import extend_by_texts, extend_by_words
from regard.text.special_tokens import with_mask_token
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer, train_wordpiece

OLD_TEXTS = ["the cat sat on the mat with a rat and a hat"] * 20
NEW_TEXTS = ["the cathode emits thermions", "a thermion of the cathode"] * 20


def trained(kind: str) -> Tokenizer:
    if kind == "bert":
        return train_wordpiece(OLD_TEXTS, TokenizerConfig())
    return with_mask_token(train_tokenizer(OLD_TEXTS, TokenizerConfig(kind=kind)))


def assert_extends(extended: Tokenizer, tokenizer: Tokenizer) -> None:
    """Assert that old tokens keep their ids, special ones included, and that ids have no gaps."""
    old_vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    vocabulary = extended.backend.get_vocab(with_added_tokens=True)
    assert old_vocabulary.items() < vocabulary.items()
    assert sorted(vocabulary.values()) == list(range(extended.vocab_size))
    assert extended.special_ids == tokenizer.special_ids


@pytest.mark.parametrize("kind", ["bert", "bpe", "unigram", "wordpiece", "words"])
def test_texts_extend_a_vocabulary(kind: str) -> None:
    tokenizer = trained(kind)
    extended = extend_by_texts(tokenizer, NEW_TEXTS)
    assert_extends(extended, tokenizer)
    old_length = len(tokenizer.encode("cathode").ids)
    assert len(extended.encode("cathode").ids) < old_length or tokenizer.unk_id in tokenizer.encode("cathode").ids
    assert extended.decode(extended.encode("the cathode").ids) == "the cathode"
    assert extended.to_json() == extend_by_texts(tokenizer, NEW_TEXTS).to_json()


@pytest.mark.parametrize("kind", ["bert", "bpe", "unigram", "wordpiece", "words"])
def test_words_become_single_tokens(kind: str) -> None:
    tokenizer = trained(kind)
    extended = extend_by_words(tokenizer, ["cathode", "mathat"])
    assert_extends(extended, tokenizer)
    for word in ("cathode", "mathat"):
        assert [subword.strip("▁") for subword in extended.encode(f"the {word}").subwords] == ["the", word]
    if kind != "bpe":  # whose merges go through shorter tokens, which are new, too
        assert extended.encode("the cat sat").ids == tokenizer.encode("the cat sat").ids


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(DataError, match="no word to extend the vocabulary by"):
        extend_by_words(trained("bert"), [])


def test_a_vocabulary_with_gaps_is_refused() -> None:
    tokenizer = trained("bert")
    text = tokenizer.to_json().replace(f": {tokenizer.vocab_size - 1}\n", f": {tokenizer.vocab_size + 9}\n")
    with pytest.raises(CheckpointError):
        extend_by_words(Tokenizer.from_json(text), ["cathode"])
