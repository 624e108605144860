"""Words to force and to forbid, glossaries, and the search under them."""

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
from regard.text.train import train_tokenizer
from regard.tokens import Tokens

TEXT = ["the dog runs in new york", "a new doghouse for the dog", "new delhi and york", "Hund und Hundehütte"] * 5
KINDS = ["bpe", "unigram", "wordpiece", "words", "characters"]


def holds(ids, run):
    return any(tuple(ids[start : start + len(run)]) == tuple(run) for start in range(len(ids) - len(run) + 1))


def closed(vocabulary, *runs):
    return ForcedPhrases(tuple(Phrase(tuple(run), tuple(run), False) for run in runs), np.zeros(vocabulary, bool))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    runs=st.lists(st.lists(st.sampled_from([2, 4, 5, 6, 7, 8]), min_size=1, max_size=3), min_size=1, max_size=3),
    beam=st.integers(1, 6),
    limit=st.integers(1, 9),
)
def test_forced_phrases_are_always_there(table_generator, random_source, seed, runs, beam, limit):
    generator, source = table_generator(9, seed=seed), random_source(3, seed)
    forced = [closed(9, *runs), ForcedPhrases.none(), closed(9, runs[0])]
    config = DecodingConfig(beam=beam)
    found = search(generator, source, config, max_lengths=[limit] * 3, forced=forced)
    assert all(holds(found[0][0].ids, run) for run in runs)
    assert holds(found[2][0].ids, runs[0])
    for row, hypotheses in zip(source, found, strict=True):
        assert hypotheses[0].logprob == pytest.approx(generator.total(row, hypotheses[0].ids), abs=1e-5)
    free = search(generator, Tokens.from_rows([source.row(1)]), config, max_lengths=[limit])
    assert found[1] == free[0], "a sentence without phrases is searched as if the others had none"


def test_the_best_text_with_the_phrase_is_found(table_generator, random_source):
    config = DecodingConfig(beam=64, length_penalty=0.0)
    for seed in range(10):
        generator, source = table_generator(6, seed=seed), random_source(2, seed)
        found = search(generator, source, config, max_lengths=[3] * 2, forced=[closed(6, [5, 2])] * 2)
        for row, hypotheses in zip(source, found, strict=True):
            scores = [
                hypothesis_score(t, len(ids) + 1, config)
                for ids, t in generator.everything(row, 3)
                if holds(ids, [5, 2])
            ]
            assert hypotheses[0].score == pytest.approx(max(scores), abs=1e-5)


def test_a_forced_word_is_a_whole_word(table_generator, random_source):
    """Token 8 goes on with a word: it may not follow the forced word 5."""
    continues = np.zeros(9, bool)
    continues[8] = True
    forced = ForcedPhrases((Phrase((5,), (5,), True),), continues)
    for seed in range(20):
        generator, source = table_generator(9, seed=seed), random_source(2, seed)
        found = search(generator, source, DecodingConfig(beam=3), max_lengths=[7] * 2, forced=[forced] * 2)
        for hypotheses in found:
            ids = [*hypotheses[0].ids, 1]
            assert any(a == 5 and b != 8 for a, b in itertools.pairwise(ids))


def after(forced, tokens):
    progress = forced.initial_progress()
    for place, token in enumerate(tokens):
        progress = forced.advance(progress, token, place)
    return progress


def test_progress_falls_back_to_the_longest_beginning():
    forced = closed(9, [7, 7, 8])
    assert forced.is_satisfied(after(forced, [7, 7, 7, 8]))
    assert forced.tokens_matched(after(forced, [7, 7, 5])) == 0
    assert forced.tokens_matched(after(forced, [7, 7, 5, 7])) == 1


def test_a_text_may_begin_with_the_phrase():
    """At the start of a text the phrase is written 7 8, inside it 4 7 8."""
    forced = ForcedPhrases((Phrase((4, 7, 8), (7, 8), False),), np.zeros(9, bool))
    assert forced.next_tokens(forced.initial_progress(), 0) == [7] and forced.next_tokens(
        forced.initial_progress(), 1
    ) == [4]
    assert forced.is_satisfied(after(forced, [7, 8])) and forced.is_satisfied(after(forced, [5, 4, 7, 8]))
    assert not forced.is_satisfied(after(forced, [5, 7, 8]))
    assert forced.is_satisfied(after(forced, [7, 4, 7, 8]))


def test_words_to_force_need_a_beam_search(table_generator, random_source):
    with pytest.raises(ConfigError, match="drop sample"):
        search(
            table_generator(9), random_source(1), DecodingConfig(sample=True), max_lengths=[3], forced=[closed(9, [4])]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_words_as_a_tokenizer_writes_them(kind):
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind=kind))
    words = PhraseTokenizer(tokenizer)
    phrase = words.force(["york"], tokenizer.vocab_size).phrases[0]
    before = tokenizer.encode("new").ids
    assert tokenizer.decode([*before, *phrase.inside]) == "new york"
    assert tokenizer.decode(list(phrase.at_start)) == "york"
    assert phrase.ends_in_letter
    assert words.token_texts[tokenizer.eos_id] == ""
    assert not words.continues_word[tokenizer.eos_id], "a text may end with a forced word"
    spaced = [text for text in words.token_texts if text.startswith(" ")]
    assert spaced and not any(
        words.continues_word[number] for number, text in enumerate(words.token_texts) if text in spaced
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 4])
def test_forced_and_forbidden_words_in_text(table_generator, random_source, kind, beam):
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind=kind))
    words, count = PhraseTokenizer(tokenizer), 6
    generator, source = table_generator(tokenizer.vocab_size, sharpness=1.0), random_source(count)
    forced = [words.force(["new york", "dog"], tokenizer.vocab_size)] * count
    found = search(
        generator,
        source,
        DecodingConfig(beam=beam),
        max_lengths=[30] * count,
        forced=forced,
        rules=words.forbid(["the", "a"]),
    )
    for hypotheses in found:
        said = tokenizer.decode(hypotheses[0].ids)
        assert Glossary((("new york", "1"), ("dog", "2"))).translations(said), said
        assert set(Glossary((("new york", "1"), ("dog", "2"))).translations(said)) == {"1", "2"}
        assert not Glossary((("the", "3"), ("a", "4"))).translations(said)


def test_a_phrase_inside_another_is_not_forced_twice():
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="words"))
    assert len(PhraseTokenizer(tokenizer).force(["york", "new york", "york"], tokenizer.vocab_size).phrases) == 1


def test_a_word_the_model_cannot_write_is_refused():
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="words"))
    with pytest.raises(ConfigError, match="cannot generate 'zebra'"):
        PhraseTokenizer(tokenizer).force(["zebra"], tokenizer.vocab_size)


def test_forcing_what_is_forbidden_is_refused():
    with pytest.raises(ConfigError, match="'york' is forbidden but 'new york' is forced"):
        Constraints(force=("new york",), forbid=("york",))
    with pytest.raises(ConfigError, match="is forbidden"):
        Constraints(forbid=("Hund",), glossary=Glossary((("dog", "Hund"),)))
    with pytest.raises(ConfigError, match="none of them blank"):
        Constraints(force=("  ",))
    with pytest.raises(ConfigError, match="must be a tuple"):
        Constraints(force="word")  # type: ignore[arg-type]


def test_a_glossary_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("hot dog\tHotdog\ndog\tHund\nU.S.\tUSA\n", encoding="utf-8")
    constraints = Constraints(glossary=Glossary.read(path), force=("Schnee",))
    assert constraints.phrases_for("A Dog ate a hot dog in the U.S. today, doggedly.") == [
        "Schnee",
        "Hund",
        "Hotdog",
        "USA",
    ]
    assert constraints.phrases_for("u.s. dogs") == ["Schnee"]
