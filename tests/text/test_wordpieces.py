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
from regard.text.framing import Framing
from regard.text.tokenizer import Tokenizer
from regard.text.wordpieces import MASKED_SPECIALS, learn_masked, learn_word_pieces

CORPUS = [f"Der {word}ende Hund läuft, {number}!" for number, word in enumerate(["lauf", "geh", "seh", "steh"] * 9)]


def test_learning_again_in_another_process_gives_the_same() -> None:
    program = (
        "import json, sys\nfrom regard.config.data import TokenizerConfig\n"
        "from regard.text.wordpieces import learn_word_pieces\n"
        "print(learn_word_pieces(json.load(sys.stdin), TokenizerConfig()).digest)"
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
    assert done.stdout.strip() == learn_word_pieces(CORPUS, TokenizerConfig()).digest


def test_pieces_are_those_of_words_and_of_their_ends() -> None:
    tokenizer = learn_word_pieces(CORPUS, TokenizerConfig(lowercase=True))
    assert tokenizer.pieces(range(5)) == list(MASKED_SPECIALS)
    seen = tokenizer.encode("Hund läuft, 3!")
    assert seen.pieces == ["hund", "lauft", ",", "3", "!"]
    assert seen.spans == [(0, 4), (5, 10), (10, 11), (12, 13), (13, 14)]
    inner = tokenizer.encode("hundhund").pieces
    assert inner[0] == "hund" and all(piece.startswith("##") for piece in inner[1:])
    assert tokenizer.decode(tokenizer.encode("der laufende hund").ids) == "der laufende hund"
    assert tokenizer.unknown not in tokenizer.encode(" ".join(CORPUS)).ids
    assert Tokenizer.loads(tokenizer.dumps()).digest == tokenizer.digest


def test_case_and_normal_form_are_kept_where_asked() -> None:
    tokenizer = learn_word_pieces(CORPUS, TokenizerConfig())
    assert tokenizer.encode("Hund la\u0308uft").pieces == ["Hund", "läuft"]


@pytest.mark.parametrize("size", [40, 64])
def test_no_more_pieces_than_asked_for(size: int) -> None:
    assert learn_word_pieces(CORPUS, TokenizerConfig(size=size)).size == size


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_every_kind_has_a_mask_token_and_a_template(kind: str) -> None:
    tokenizer = learn_masked(CORPUS, TokenizerConfig(kind=kind))
    framing = Framing(tokenizer)
    read = framing.read(f"Hund {tokenizer.pieces([framing.mask])[0]} läuft", marks=True)
    assert read.ids[0] == tokenizer.start and read.ids[-1] == tokenizer.end and framing.mask in read.ids
    assert framing.mask in tokenizer.specials and tokenizer.unknown in tokenizer.specials


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        learn_word_pieces(["  "], TokenizerConfig())
    with pytest.raises(ConfigError, match="at least 6"):
        learn_word_pieces(CORPUS, TokenizerConfig(size=5))
