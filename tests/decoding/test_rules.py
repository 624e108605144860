"""Rules, alone and inside a search."""

from __future__ import annotations

from itertools import chain

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
from regard.packed_tokens import Candidates
from regard.text.sentences import find_phrase
from regard.text.train import train_tokenizer


def build_history(tokens):
    rows = np.array(tokens, np.int32)
    return History(rows, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(4, 6), max_size=12), n=st.integers(1, 4))
def test_no_repeat_forbids_exactly_what_would_repeat(tokens, n):
    vocabulary = Candidates(np.arange(8, dtype=np.int32)[None], np.zeros((1, 8), np.float32))
    is_allowed = NoRepeatNgram(n)(build_history([tokens]), vocabulary).logprobs[0] > -np.inf
    ngrams = {tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)}
    tail = tokens[len(tokens) - n + 1 :] if n > 1 else []
    for token in range(8):
        repeats = len(tokens) >= n - 1 and (*tail, token) in ngrams
        assert is_allowed[token] == (not repeats)
    assert (~is_allowed).sum() <= NoRepeatNgram(n).extra_candidates(len(tokens))


def test_no_repeat_holds_in_every_text(table_generator, random_source):
    generator = table_generator(6, sharpness=3.0)
    config = DecodingConfig(beam=4, nbest=4, no_repeat_ngram=2)
    hypotheses = search(generator, random_source(20), config, max_lengths=[12] * 20)
    for hypothesis in chain.from_iterable(hypotheses):
        bigrams = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
        assert len(bigrams) == len(set(bigrams))


def test_forbidden_sequences_never_appear(table_generator, random_source):
    generator = table_generator(7, sharpness=2.0)
    source = random_source(30)
    sequences = [[4], [5, 6], [6, 6, 2]]

    def count_violations(all_hypotheses):
        count = 0
        for hypotheses in all_hypotheses:
            ids = hypotheses[0].ids
            for sequence in sequences:
                count += sum(ids[start : start + len(sequence)] == sequence for start in range(len(ids)))
        return count

    assert count_violations(search(generator, source, DecodingConfig(beam=3), max_lengths=[8] * 30))
    rules = [ForbidSequences(sequences)]
    assert not count_violations(search(generator, source, DecodingConfig(beam=3), max_lengths=[8] * 30, rules=rules))


def test_an_empty_sequence_is_refused():
    with pytest.raises(ConfigError, match="must not be empty"):
        ForbidSequences([[]])


# the texts of tokens in a language in which "Hund" has ten segmentations
TOKEN_TEXTS = [
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


def decode(ids):
    return "".join(TOKEN_TEXTS[token_id] for token_id in ids)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_forbidden_words_never_appear_in_any_segmentation(table_generator, random_source, seed):
    generator = table_generator(len(TOKEN_TEXTS), seed=seed, sharpness=1.5)
    source = random_source(3, seed)
    rule = ForbidText(["Hund", "u"], TOKEN_TEXTS, decode)
    hypotheses = search(generator, source, DecodingConfig(beam=2, nbest=2), max_lengths=[9] * 3, rules=[rule])
    for hypothesis in chain.from_iterable(hypotheses):
        assert find_phrase(decode(hypothesis.ids), "Hund") < 0
        assert find_phrase(decode(hypothesis.ids), "u") < 0


def test_other_words_remain_allowed():
    rule = ForbidText(["Hund"], TOKEN_TEXTS, decode)
    candidates = Candidates(np.array([[9, 14, 12]], np.int32), np.zeros((1, 3), np.float32))
    after_hu = rule(build_history([[11]]), candidates)
    assert after_hu.logprobs.tolist() == [[0.0, -np.inf, -np.inf]]  # "Hue", but not "Hu Hund" or "Hund"
    after_e = rule(build_history([[9]]), candidates)
    assert after_e.logprobs.tolist() == [[0.0, -np.inf, 0.0]]  # "ee" and "end", but not "e Hund"


def test_a_forbidden_word_cannot_be_spelled_byte_by_byte():
    tokenizer = train_tokenizer(["a plain text"] * 5, TokenizerConfig(kind="bpe"))
    (rule,) = PhraseTokenizer(tokenizer).forbid(["Bä"])
    *preceding, last = tokenizer.encode("x Bä").ids
    assert len(tokenizer.encode("ä").ids) > 2, "a character of two bytes"
    candidates = Candidates(np.array([[last, tokenizer.eos_id]], np.int32), np.zeros((1, 2), np.float32))
    assert rule(build_history([preceding]), candidates).logprobs.tolist() == [[-np.inf, 0.0]]
