"""Extended vocabularies: old tokens keep their ids, new words become single tokens, for every kind of tokenizer."""

from __future__ import annotations

import json

import pytest

from regard.config.data import TokenizerConfig
from regard.errors import CheckpointError, DataError, UsageError
from regard.text.extend import extend_by_texts, extend_by_words, old_subwords
from regard.text.special_tokens import with_mask_token
from regard.text.tokenizer import Tokenizer
from regard.text.train import NUM_BYTES, train_tokenizer, train_wordpiece

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


def test_bpe_goes_on_merging_from_the_old_subwords() -> None:
    tokenizer = train_tokenizer(["reading readers read"] * 30, TokenizerConfig())
    extended = extend_by_texts(tokenizer, ["areadable areadables"] * 30)
    assert tokenizer.encode("areadable").subwords == ["▁", "a", "read", "a", "b", "l", "e"]
    assert extended.encode("areadable").subwords == ["▁areadable"]
    merges = json.loads(extended.to_json())["model"]["merges"]
    old_merges = json.loads(tokenizer.to_json())["model"]["merges"]
    assert merges[: len(old_merges)] == old_merges
    old_tokens = tokenizer.backend.get_vocab()
    first_new = merges[len(old_merges)]
    assert set(first_new) <= old_tokens.keys()


def test_many_old_subwords_leave_room_for_new_ones() -> None:
    words = [f"{first}{second}" for first in "abcdefghijklmnop" for second in ("ab", "cd", "ef", "gh", "ij", "kl")]
    tokenizer = train_tokenizer([" ".join(words)] * 9, TokenizerConfig())
    texts = [" ".join(words), "zabcdef zabcdef zabcdef"] * 9
    extended = extend_by_texts(tokenizer, texts, size=NUM_BYTES + 8)
    assert len(extended.encode("zabcdef").ids) < len(tokenizer.encode("zabcdef").ids)
    assert extended.vocab_size <= tokenizer.vocab_size + 8


def test_old_subwords_are_those_that_the_old_tokenizer_splits_a_new_token_into() -> None:
    for kind in ("bert", "bpe", "unigram", "wordpiece", "words"):
        tokenizer = trained(kind)
        extended = extend_by_words(tokenizer, ["mathat", "satcat"])
        subwords = old_subwords(tokenizer, extended)
        assert len(subwords) == extended.vocab_size - tokenizer.vocab_size
        assert tokenizer.encode("satcat").ids in subwords, kind
        assert all(token_id < tokenizer.vocab_size for ids in subwords for token_id in ids)


def test_a_token_inside_a_word_is_split_as_inside_a_word() -> None:
    tokenizer = trained("bert")
    extended = extend_by_texts(tokenizer, ["xathatsat yathatsat"] * 9 + ["aathatsat"] * 9)
    continuing = [token for token in extended.backend.get_vocab() if token.startswith("##athat")]
    subwords = dict(
        zip(range(tokenizer.vocab_size, extended.vocab_size), old_subwords(tokenizer, extended), strict=True)
    )
    assert continuing
    for token in continuing:
        pieces = tokenizer.subwords(subwords[extended.backend.token_to_id(token)])
        assert all(piece.startswith("##") for piece in pieces)
        assert "".join(piece.removeprefix("##") for piece in pieces) == token.removeprefix("##")


def test_characters_are_not_extended() -> None:
    for extend in (extend_by_texts, extend_by_words):
        with pytest.raises(UsageError, match="the tokens of the model are single characters"):
            extend(trained("characters"), ["cathode"])


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(DataError, match="no word to extend the vocabulary by"):
        extend_by_words(trained("bert"), [])


def test_a_vocabulary_with_gaps_is_refused() -> None:
    tokenizer = trained("bert")
    text = tokenizer.to_json().replace(f": {tokenizer.vocab_size - 1}\n", f": {tokenizer.vocab_size + 9}\n")
    with pytest.raises(CheckpointError):
        extend_by_words(Tokenizer.from_json(text), ["cathode"])
