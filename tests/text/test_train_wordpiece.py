"""Word pieces learned for masked-word models: the same from the same text, as BERT's tokenizer would cut it."""

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
from regard.text.train import MASKED_SPECIALS, train_masked_tokenizer, train_wordpiece

CORPUS = [f"Der {word}ende Hund läuft, {number}!" for number, word in enumerate(["lauf", "geh", "seh", "steh"] * 9)]


def test_learning_again_in_another_process_gives_the_same() -> None:
    program = (
        "import json, sys\nfrom regard.config.data import TokenizerConfig\n"
        "from regard.text.train import train_wordpiece\n"
        "print(train_wordpiece(json.load(sys.stdin), TokenizerConfig()).digest)"
    )
    places = {"PYTHONPATH": str(Path(regard.__file__).parents[1]), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(CORPUS),
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == train_wordpiece(CORPUS, TokenizerConfig()).digest


def test_pieces_are_those_of_words_and_of_their_ends() -> None:
    tokenizer = train_wordpiece(CORPUS, TokenizerConfig(lowercase=True))
    assert tokenizer.subwords(range(5)) == list(MASKED_SPECIALS)
    seen = tokenizer.encode("Hund läuft, 3!")
    assert seen.subwords == ["hund", "lauft", ",", "3", "!"]
    assert seen.spans == [(0, 4), (5, 10), (10, 11), (12, 13), (13, 14)]
    inner = tokenizer.encode("hundhund").subwords
    assert inner[0] == "hund" and all(piece.startswith("##") for piece in inner[1:])
    assert tokenizer.decode(tokenizer.encode("der laufende hund").ids) == "der laufende hund"
    assert tokenizer.unk_id not in tokenizer.encode(" ".join(CORPUS)).ids
    assert Tokenizer.from_json(tokenizer.to_json()).digest == tokenizer.digest


def test_case_and_normal_form_are_kept_where_asked() -> None:
    tokenizer = train_wordpiece(CORPUS, TokenizerConfig())
    assert tokenizer.encode("Hund la\u0308uft").subwords == ["Hund", "läuft"]


@pytest.mark.parametrize("size", [40, 64])
def test_no_more_pieces_than_asked_for(size: int) -> None:
    assert train_wordpiece(CORPUS, TokenizerConfig(vocab_size=size)).vocab_size == size


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_every_kind_has_a_mask_token_and_a_template(kind: str) -> None:
    tokenizer = train_masked_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    framing = SpecialTokens(tokenizer)
    read = framing.encode(f"Hund {tokenizer.subwords([framing.mask])[0]} läuft", parse_special=True)
    assert read.ids[0] == tokenizer.bos_id and read.ids[-1] == tokenizer.eos_id and framing.mask in read.ids
    assert framing.mask in tokenizer.special_ids and tokenizer.unk_id in tokenizer.special_ids


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_wordpiece(["  "], TokenizerConfig())
    with pytest.raises(ConfigError, match="at least 6"):
        train_wordpiece(CORPUS, TokenizerConfig(vocab_size=5))
