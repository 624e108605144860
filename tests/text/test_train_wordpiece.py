"""WordPiece for masked language models: the same from the same text, in the form of BERT's tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.config.data import TOKENIZER_KINDS, TokenizerConfig
from regard.errors import ConfigError, DataError
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import BERT_SPECIAL_TOKENS, train_masked_tokenizer, train_wordpiece

CORPUS = [f"Der {word}ende Hund läuft, {number}!" for number, word in enumerate(["lauf", "geh", "seh", "steh"] * 9)]


def test_training_again_in_another_process_gives_the_same() -> None:
    program = (
        "import json, sys\nfrom regard.config.data import TokenizerConfig\n"
        "from regard.text.train import train_wordpiece\n"
        "print(train_wordpiece(json.load(sys.stdin), TokenizerConfig()).digest)"
    )
    variables = {"PYTHONPATH": str(Path(regard.__file__).parents[1]), "PYTHONHASHSEED": "7"}
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(CORPUS),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == train_wordpiece(CORPUS, TokenizerConfig()).digest


def test_subwords_that_continue_a_word_have_a_prefix() -> None:
    tokenizer = train_wordpiece(CORPUS, TokenizerConfig(lowercase=True))
    assert tokenizer.subwords(range(5)) == list(BERT_SPECIAL_TOKENS)
    encoding = tokenizer.encode("Hund läuft, 3!")
    assert encoding.subwords == ["hund", "lauft", ",", "3", "!"]
    assert encoding.spans == [(0, 4), (5, 10), (10, 11), (12, 13), (13, 14)]
    compound = tokenizer.encode("hundhund").subwords
    assert compound[0] == "hund" and all(subword.startswith("##") for subword in compound[1:])
    assert tokenizer.decode(tokenizer.encode("der laufende hund").ids) == "der laufende hund"
    assert tokenizer.unk_id not in tokenizer.encode(" ".join(CORPUS)).ids
    assert Tokenizer.from_json(tokenizer.to_json()).digest == tokenizer.digest


def test_case_and_normal_form_follow_the_config() -> None:
    tokenizer = train_wordpiece(CORPUS, TokenizerConfig())
    assert tokenizer.encode("Hund la\u0308uft").subwords == ["Hund", "läuft"]


@pytest.mark.parametrize("size", [40, 64])
def test_the_vocabulary_has_the_requested_size(size: int) -> None:
    assert train_wordpiece(CORPUS, TokenizerConfig(vocab_size=size)).vocab_size == size


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_every_kind_has_a_mask_token_and_a_template(kind: str) -> None:
    tokenizer = train_masked_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    special_tokens = SpecialTokens(tokenizer)
    mask = tokenizer.subwords([special_tokens.mask_id])[0]
    ids = special_tokens.encode(f"Hund {mask} läuft", parse_special=True).ids
    assert ids[0] == tokenizer.bos_id and ids[-1] == tokenizer.eos_id and special_tokens.mask_id in ids
    assert special_tokens.mask_id in tokenizer.special_ids and tokenizer.unk_id in tokenizer.special_ids


def test_blank_texts_and_small_sizes_are_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_wordpiece(["  "], TokenizerConfig())
    with pytest.raises(ConfigError, match="at least 6"):
        train_wordpiece(CORPUS, TokenizerConfig(vocab_size=5))
