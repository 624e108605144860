"""Rules, one by one and inside a search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.decoding.constraints import PhraseTokenizer
from regard.decoding.rules import ForbidSequences, ForbidText, History, NoRepeatNgram
from regard.decoding.search import search
from regard.errors import ConfigError
from regard.text.sentences import find_phrase
from regard.text.train import train_tokenizer
from regard.tokens import Candidates


def history(tokens):
    rows = np.array(tokens, np.int32)
    return History(rows, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(4, 6), max_size=12), size=st.integers(1, 4))
def test_no_repeat_forbids_exactly_what_would_repeat(tokens, size):
    everything = Candidates(np.arange(8, dtype=np.int32)[None], np.zeros((1, 8), np.float32))
    left = NoRepeatNgram(size)(history([tokens]), everything).logprobs[0] > -np.inf
    runs = {tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)}
    tail = tokens[len(tokens) - size + 1 :] if size > 1 else []
    for token in range(8):
        repeats = len(tokens) >= size - 1 and (*tail, token) in runs
        assert left[token] == (not repeats)
    assert (~left).sum() <= NoRepeatNgram(size).extra_candidates(len(tokens))


def test_no_repeat_holds_in_every_text(table_generator, random_source):
    generator, source = table_generator(6, sharpness=3.0), random_source(20)
    found = search(generator, source, DecodingConfig(beam=4, nbest=4, no_repeat_ngram=2), max_lengths=[12] * 20)
    for hypothesis in (hypothesis for hypotheses in found for hypothesis in hypotheses):
        runs = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
        assert len(runs) == len(set(runs))


def test_forbidden_runs_never_appear(table_generator, random_source):
    generator, source = table_generator(7, sharpness=2.0), random_source(30)
    plain = search(generator, source, DecodingConfig(beam=3), max_lengths=[8] * 30)
    runs = [[4], [5, 6], [6, 6, 2]]

    def broken(found):
        texts = [h[0].ids for h in found]
        return sum(ids[n : n + len(run)] == run for ids in texts for run in runs for n in range(len(ids)))

    assert broken(plain)
    assert not broken(
        search(generator, source, DecodingConfig(beam=3), max_lengths=[8] * 30, rules=[ForbidSequences(runs)])
    )


def test_an_empty_run_is_refused():
    with pytest.raises(ConfigError, match="must not be empty"):
        ForbidSequences([[]])


LETTERS = [
    "",
    "",
    "",
    "",
    " ",
    "H",
    "u",
    "n",
    "d",
    "e",
    " H",
    "Hu",
    "nd",
    "Hund",
    " Hund",
    "nd.",
    "d e",
    ".",
    "dH",
    "und",
]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_forbidden_words_never_appear_however_they_are_cut(table_generator, random_source, seed):
    """A made language of letters and pieces in which "Hund" can be written in ten ways."""
    generator, source = table_generator(len(LETTERS), seed=seed, sharpness=1.5), random_source(3, seed)
    decode = lambda ids: "".join(LETTERS[number] for number in ids)  # noqa: E731
    rule = ForbidText(["Hund", "u"], LETTERS, decode)
    found = search(generator, source, DecodingConfig(beam=2, nbest=2), max_lengths=[9] * 3, rules=[rule])
    for hypothesis in (hypothesis for hypotheses in found for hypothesis in hypotheses):
        assert find_phrase(decode(hypothesis.ids), "Hund") < 0
        assert find_phrase(decode(hypothesis.ids), "u") < 0


def test_forbidding_words_leaves_others_alone():
    decode = lambda ids: "".join(LETTERS[number] for number in ids)  # noqa: E731
    rule = ForbidText(["Hund"], LETTERS, decode)
    candidates = Candidates(np.array([[9, 14, 12]], np.int32), np.zeros((1, 3), np.float32))
    said = history([[11]])  # "Hu"
    assert rule(said, candidates).logprobs.tolist() == [[0.0, 0.0, -np.inf]] or decode([11, 14]) == "Hu Hund"
    assert rule(history([[9]]), candidates).logprobs.tolist() == [[0.0, -np.inf, 0.0]]  # "e Hund" but not "end"


def test_a_forbidden_word_cannot_be_spelled_byte_by_byte():
    tokenizer = train_tokenizer(["a plain text"] * 5, TokenizerConfig(kind="bpe"))
    words = PhraseTokenizer(tokenizer)
    (rule,) = words.forbid(["Bä"])
    *before, last = tokenizer.encode("x Bä").ids
    assert len(tokenizer.encode("ä").ids) > 2, "a character of two bytes"
    candidates = Candidates(np.array([[last, tokenizer.eos_id]], np.int32), np.zeros((1, 2), np.float32))
    assert rule(history([before]), candidates).logprobs.tolist() == [[-np.inf, 0.0]]
