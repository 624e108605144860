"""Forced and forbidden phrases, glossaries, and the search under them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.decoding.constraints import Constraints, ForcedPhrases, Glossary, Phrase, PhraseTokenizer
from regard.decoding.search import hypothesis_score, search
from regard.errors import ConfigError
from regard.packed_tokens import Tokens
from regard.text.train import train_tokenizer

END = 1
TEXTS = ["the dog runs in new york", "a new doghouse for the dog", "new delhi and york", "Hund und Hundehütte"] * 5
TOKENIZER_KINDS = ["bpe", "unigram", "wordpiece", "words", "characters"]


def contains(ids, phrase):
    starts = range(len(ids) - len(phrase) + 1)
    return any(tuple(ids[start : start + len(phrase)]) == tuple(phrase) for start in starts)


def force(vocab_size, *phrases):
    """Phrases that do not end in a letter, with one form each."""
    forced = tuple(Phrase(tuple(phrase), tuple(phrase), ends_in_letter=False) for phrase in phrases)
    return ForcedPhrases(forced, np.zeros(vocab_size, bool))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    phrases=st.lists(st.lists(st.sampled_from([2, 4, 5, 6, 7, 8]), min_size=1, max_size=3), min_size=1, max_size=3),
    beam=st.integers(1, 6),
    max_length=st.integers(1, 9),
)
def test_every_text_contains_its_forced_phrases(table_generator, random_source, seed, phrases, beam, max_length):
    generator = table_generator(9, seed=seed)
    source = random_source(3, seed)
    forced = [force(9, *phrases), ForcedPhrases.none(), force(9, phrases[0])]
    config = DecodingConfig(beam=beam)
    all_hypotheses = search(generator, source, config, max_lengths=[max_length] * 3, forced=forced)
    assert all(contains(all_hypotheses[0][0].ids, phrase) for phrase in phrases)
    assert contains(all_hypotheses[2][0].ids, phrases[0])
    for row, hypotheses in zip(source, all_hypotheses, strict=True):
        logprob = generator.logprob(row, hypotheses[0].ids, finished=hypotheses[0].finished)
        assert hypotheses[0].logprob == pytest.approx(logprob, abs=1e-5)
    unconstrained = search(generator, Tokens.from_rows([source.row(1)]), config, max_lengths=[max_length])
    assert all_hypotheses[1] == unconstrained[0], "a sentence without phrases is searched as if the others had none"


def test_a_wide_beam_finds_the_best_text_with_the_phrase(table_generator, random_source):
    config = DecodingConfig(beam=64, length_penalty=0.0)
    for seed in range(10):
        generator = table_generator(6, seed=seed)
        source = random_source(2, seed)
        forced = [force(6, [5, 2])] * 2
        all_hypotheses = search(generator, source, config, max_lengths=[3] * 2, forced=forced)
        for row, hypotheses in zip(source, all_hypotheses, strict=True):
            scores = [
                hypothesis_score(logprob, len(ids) + finished, config)
                for ids, logprob, finished in generator.all_texts(row, 3)
                if contains(ids, [5, 2])
            ]
            assert hypotheses[0].score == pytest.approx(max(scores), abs=1e-5)


def test_a_forced_word_is_a_whole_word(table_generator, random_source):
    """Token 8 continues a word: it may not follow the forced word 5."""
    continues_word = np.zeros(9, bool)
    continues_word[8] = True
    forced = ForcedPhrases((Phrase((5,), (5,), ends_in_letter=True),), continues_word)
    for seed in range(20):
        generator = table_generator(9, seed=seed)
        source = random_source(2, seed)
        all_hypotheses = search(generator, source, DecodingConfig(beam=3), max_lengths=[7] * 2, forced=[forced] * 2)
        for hypotheses in all_hypotheses:
            ids = [*hypotheses[0].ids, END]
            assert any(token == 5 and next_token != 8 for token, next_token in itertools.pairwise(ids))


def progress_after(forced, tokens):
    progress = forced.initial_progress()
    for position, token in enumerate(tokens):
        progress = forced.advance(progress, token, position)
    return progress


def test_progress_falls_back_to_the_longest_prefix():
    forced = force(9, [7, 7, 8])
    assert forced.is_satisfied(progress_after(forced, [7, 7, 7, 8]))
    assert forced.tokens_matched(progress_after(forced, [7, 7, 5])) == 0
    assert forced.tokens_matched(progress_after(forced, [7, 7, 5, 7])) == 1


def test_a_text_may_begin_with_the_phrase():
    """The phrase has the tokens 7 8 at the start of a text, and 4 7 8 inside it."""
    forced = ForcedPhrases((Phrase((4, 7, 8), (7, 8), ends_in_letter=False),), np.zeros(9, bool))
    assert forced.next_tokens(forced.initial_progress(), 0) == [7]
    assert forced.next_tokens(forced.initial_progress(), 1) == [4]
    assert forced.is_satisfied(progress_after(forced, [7, 8]))
    assert forced.is_satisfied(progress_after(forced, [5, 4, 7, 8]))
    assert not forced.is_satisfied(progress_after(forced, [5, 7, 8]))
    assert forced.is_satisfied(progress_after(forced, [7, 4, 7, 8]))


def test_forced_phrases_need_a_beam_search(table_generator, random_source):
    config = DecodingConfig(sample=True)
    with pytest.raises(ConfigError, match="drop sample"):
        search(table_generator(9), random_source(1), config, max_lengths=[3], forced=[force(9, [4])])


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_phrases_are_tokenized_inside_and_at_the_start_of_a_text(kind):
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(kind=kind))
    phrase_tokenizer = PhraseTokenizer(tokenizer)
    phrase = phrase_tokenizer.tokenize_forced(["york"], tokenizer.vocab_size).phrases[0]
    preceding = tokenizer.encode("new").ids
    assert tokenizer.decode([*preceding, *phrase.inside]) == "new york"
    assert tokenizer.decode(list(phrase.at_start)) == "york"
    assert phrase.ends_in_letter
    token_texts = phrase_tokenizer.token_texts
    continues_word = phrase_tokenizer.continues_word
    assert token_texts[tokenizer.eos_id] == ""
    assert not continues_word[tokenizer.eos_id], "a text may end with a forced word"
    with_space = [token_id for token_id, text in enumerate(token_texts) if text.startswith(" ")]
    assert with_space and not any(continues_word[token_id] for token_id in with_space)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("beam", [1, 4])
def test_texts_contain_forced_and_no_forbidden_words(table_generator, random_source, kind, beam):
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(kind=kind))
    phrase_tokenizer = PhraseTokenizer(tokenizer)
    count = 6
    all_hypotheses = search(
        table_generator(tokenizer.vocab_size, sharpness=1.0),
        random_source(count),
        DecodingConfig(beam=beam),
        max_lengths=[30] * count,
        forced=[phrase_tokenizer.tokenize_forced(["new york", "dog"], tokenizer.vocab_size)] * count,
        rules=phrase_tokenizer.forbid(["the", "a"]),
    )
    forced = Glossary((("new york", "1"), ("dog", "2")))
    forbidden = Glossary((("the", "3"), ("a", "4")))
    for hypotheses in all_hypotheses:
        text = tokenizer.decode(hypotheses[0].ids)
        assert forced.translations(text), text
        assert set(forced.translations(text)) == {"1", "2"}
        assert not forbidden.translations(text)


def test_a_phrase_inside_another_is_not_forced_twice():
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(kind="words"))
    forced = PhraseTokenizer(tokenizer).tokenize_forced(["york", "new york", "york"], tokenizer.vocab_size)
    assert len(forced.phrases) == 1


def test_a_word_that_the_model_cannot_generate_is_refused():
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(kind="words"))
    with pytest.raises(ConfigError, match="cannot generate 'zebra'"):
        PhraseTokenizer(tokenizer).tokenize_forced(["zebra"], tokenizer.vocab_size)


def test_forcing_what_is_forbidden_is_refused():
    with pytest.raises(ConfigError, match="'york' is forbidden but 'new york' is forced"):
        Constraints(force=("new york",), forbid=("york",))
    with pytest.raises(ConfigError, match="is forbidden"):
        Constraints(forbid=("Hund",), glossary=Glossary((("dog", "Hund"),)))
    with pytest.raises(ConfigError, match="none of them blank"):
        Constraints(force=("  ",))
    with pytest.raises(ConfigError, match="must be a tuple"):
        Constraints(force="word")  # type: ignore[arg-type]


def test_a_glossary_is_read_from_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("hot dog\tHotdog\ndog\tHund\nU.S.\tUSA\n", encoding="utf-8")
    constraints = Constraints(glossary=Glossary.read(path), force=("Schnee",))
    phrases = constraints.phrases_for("A Dog ate a hot dog in the U.S. today, doggedly.")
    assert phrases == ["Schnee", "Hund", "Hotdog", "USA"]
    assert constraints.phrases_for("u.s. dogs") == ["Schnee"]
