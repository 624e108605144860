"""Translation of texts: independent of the batch, scored as searched, nothing lost."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from regard.attention.trace import trace
from regard.config.inference import DecodingConfig
from regard.decoding.batch_search import search_all
from regard.decoding.constraints import Constraints, Glossary
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.packed_tokens import Tokens
from regard.pipeline.records.translation_records import StoredAlignmentHead
from regard.pipeline.sentence_pairs import split_pair
from regard.pipeline.translation import TranslationPipeline
from regard.pipeline.translation_result import Translation
from regard.tasks.alignment import best_alignment_head
from regard.text.sentences import find_phrase
from tests.pipeline.conftest import Toy

ATTENTION_KINDS = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]
Links = set[tuple[int, int]]  # of source and target words


@pytest.fixture(scope="module")
def sentences(toy: Toy) -> list[str]:
    return [source for source, _ in toy.pairs(100, seed=99, max_words=7)]


@pytest.fixture(scope="module")
def translations(pipeline: TranslationPipeline, sentences: list[str]) -> list[Translation]:
    return pipeline.translate(sentences, nbest=3)


@pytest.fixture(scope="module")
def aligning_pipeline(pipeline: TranslationPipeline) -> TranslationPipeline:
    """The same pipeline with an alignment head."""
    model = pipeline.torch_models()[0]
    tokenizer = pipeline.source
    task = {
        "max_length": pipeline.max_source_length,
        "alignment_head": {"site": "decoder.1.cross", "head": 1, "shift": 0},
    }
    return TranslationPipeline([model], tokenizer, tokenizer, decoding=pipeline.decoding, task=task)


def assert_same(translation: Translation, expected: Translation) -> None:
    """Assert that texts and scores are the same, those of alternatives included."""
    candidates = with_alternatives([translation])
    expected_candidates = with_alternatives([expected])
    assert candidates == expected_candidates
    assert list_scores(candidates) == pytest.approx(list_scores(expected_candidates), abs=1e-4)


def with_alternatives(translations: list[Translation]) -> list[Translation]:
    """Each translation, followed by its alternatives."""
    return list(itertools.chain.from_iterable((best, *best.alternatives) for best in translations))


def list_scores(candidates: Sequence[Any]) -> list[float]:
    return [candidate.score for candidate in candidates]


def test_texts_are_translated(pipeline: TranslationPipeline, toy: Toy) -> None:
    pairs = toy.pairs(60, seed=7, max_words=4)
    translations = pipeline.translate([source for source, _ in pairs])
    is_correct = [translation == target for translation, (_, target) in zip(translations, pairs, strict=True)]
    assert np.mean(is_correct) > 0.7
    assert all(isinstance(translation, str) for translation in translations)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_translations_do_not_depend_on_the_batch_size(
    pipeline: TranslationPipeline, sentences: list[str], translations: list[Translation], batch_size: int
) -> None:
    rebatched = pipeline.translate(sentences, nbest=3, batch_size=batch_size, batch_tokens=100_000)
    for translation, expected in zip(rebatched, translations, strict=True):
        assert_same(translation, expected)


def test_translations_do_not_depend_on_other_texts_of_the_batch(
    aligning_pipeline: TranslationPipeline, toy: Toy, sentences: list[str], translations: list[Translation]
) -> None:
    other_texts = [source for source, _ in toy.pairs(100, seed=3, max_words=7)]
    mixed_texts = list(itertools.chain.from_iterable(zip(other_texts, sentences, strict=True)))
    reversed_translations = aligning_pipeline.translate(mixed_texts[::-1], nbest=3)
    in_batch = reversed_translations[::-1][1::2]
    for translation, expected in zip(in_batch, translations, strict=True):
        assert_same(translation, expected)
    for text, translation in zip(sentences[:30], in_batch[:30], strict=True):
        alone = aligning_pipeline(text, nbest=3)
        assert alone.alignment
        assert alone.alignment == translation.alignment


def test_samples_do_not_depend_on_the_batch_but_on_the_seed(
    pipeline: TranslationPipeline, sentences: list[str]
) -> None:
    settings: dict[str, Any] = {"sample": True, "temperature": 1.5, "nbest": 2}
    samples = pipeline.translate(sentences[:40], seed=5, **settings)
    for text, sample in zip(sentences[:40:5], samples[::5], strict=True):
        assert_same(pipeline(text, seed=5, **settings), sample)
    assert pipeline.translate(sentences[:40], seed=6, **settings) != samples


def test_alternatives_are_ordered_and_different(translations: list[Translation]) -> None:
    for translation in translations:
        candidates = with_alternatives([translation])
        scores = list_scores(candidates)
        assert scores == sorted(scores, reverse=True)
        assert len({str(candidate) for candidate in candidates}) == len(candidates)
    assert any(len(translation.alternatives) == 2 for translation in translations)


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.3}, {"coverage_penalty": 0.2, "beam": 3}])
def test_score_gives_the_score_of_the_search(
    pipeline: TranslationPipeline, sentences: list[str], settings: dict[str, Any]
) -> None:
    translations = pipeline.translate(sentences[:50], nbest=2, **settings)
    candidates = with_alternatives(translations)
    scores = pipeline.score([candidate.source for candidate in candidates], candidates, **settings)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)
    expected_logprobs = [candidate.logprob for candidate in candidates]
    assert [score.logprob for score in scores] == pytest.approx(expected_logprobs, abs=1e-4)
    sources = [translation.source for translation in translations]
    text_scores = pipeline.score(sources, [str(translation) for translation in translations], **settings)
    assert list_scores(text_scores) == pytest.approx(list_scores(translations), abs=1e-4)


def test_a_text_has_one_score_however_the_search_tokenized_it(
    pipeline: TranslationPipeline, sentences: list[str]
) -> None:
    """With a high temperature, texts come in other tokens than the tokenizer's own: its own are scored."""
    texts = [*sentences[:40], *sentences[:40]]
    samples = pipeline.translate(texts, sample=True, temperature=1.2, nbest=4)
    candidates = [candidate for candidate in with_alternatives(samples) if candidate]
    source_ids = [[*pipeline.source.encode(text).ids, pipeline.source.eos_id] for text in texts]
    config = DecodingConfig(sample=True, temperature=1.2, nbest=4)
    beams = search_all(pipeline.torch_models()[0], source_ids, config, max_length=pipeline.max_target_length)
    has_other_tokens = [
        pipeline.target.encode(pipeline.target.decode(hypothesis.ids)).ids != hypothesis.ids
        for hypothesis in itertools.chain.from_iterable(beams)
    ]
    assert any(has_other_tokens), "no text was tokenized in another way: the test shows nothing"
    sources = [candidate.source for candidate in candidates]
    scores = pipeline.score(sources, [str(candidate) for candidate in candidates], split=False)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)


def test_the_score_of_a_translation_cut_by_the_limit_counts_its_tokens_alone(
    pipeline: TranslationPipeline, sentences: list[str]
) -> None:
    settings: dict[str, Any] = {"max_length_a": 0.1, "max_length_b": 0, "beam": 1}
    translations = pipeline.translate(sentences[:20], **settings)
    cut = [translation for translation in translations if not translation.finished]
    assert len(cut) > 5
    scores = pipeline.score([translation.source for translation in cut], cut)
    assert list_scores(scores) == pytest.approx(list_scores(cut), abs=1e-4)
    assert [score.num_tokens for score in scores] == [len(translation.tokens) for translation in cut]
    with_end = pipeline.score([translation.source for translation in cut], [str(translation) for translation in cut])
    assert all(score.logprob < translation.logprob for score, translation in zip(with_end, cut, strict=True))


def test_a_worse_translation_has_a_lower_logprob(
    pipeline: TranslationPipeline, translations: list[Translation]
) -> None:
    sources = [translation.source for translation in translations]
    good_scores = pipeline.score(sources, translations)
    wrong_scores = pipeline.score(sources, [f"{translation} Brot Brot" for translation in translations])
    assert all(good.logprob > wrong.logprob for good, wrong in zip(good_scores, wrong_scores, strict=True))
    assert wrong_scores[0].num_tokens > good_scores[0].num_tokens


# ---- paragraphs, white space, long texts


def test_paragraphs_keep_their_white_space(pipeline: TranslationPipeline) -> None:
    text = "  Dog cat.  Tree?\n\n\tbird house. \r\nStone."
    sources = ["Dog cat.", "Tree?", "bird house.", "Stone."]
    translation = pipeline(text)
    sentences = [pipeline(source) for source in sources]
    assert translation == "  {}  {}\n\n\t{} \r\n{}".format(*sentences)
    assert [sentence.source for sentence in translation.sentences] == sources
    assert translation.score == pytest.approx(np.mean(list_scores(sentences)), abs=1e-4)


def test_the_score_of_a_paragraph_is_that_of_the_search(pipeline: TranslationPipeline) -> None:
    text = "  Dog cat.  Tree?\n\n\tbird house. \r\nStone."
    translation = pipeline(text)
    (score,) = pipeline.score([text], [translation])
    assert score.score == pytest.approx(translation.score, abs=1e-4)
    assert score.logprob == pytest.approx(translation.logprob, abs=1e-4)
    (text_score,) = pipeline.score([text], [str(translation)])
    assert text_score.score == pytest.approx(translation.score, abs=1e-4)


def test_without_splitting_each_line_is_a_sentence(pipeline: TranslationPipeline) -> None:
    translation = pipeline("dog. Cat.\nbird.", split=False)
    assert [sentence.source for sentence in translation.sentences] == ["dog. Cat.", "bird."]


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t\r\n  \u3000"])
def test_a_blank_text_has_an_empty_translation(pipeline: TranslationPipeline, blank: str) -> None:
    translation = pipeline(blank)
    assert translation == ""
    assert isinstance(translation, Translation)
    assert translation.score == 0.0
    assert translation.alternatives == []
    assert translation.alignment == []
    assert translation.attention == {}
    (score,) = pipeline.score([blank], [translation])
    assert score.score == 0.0
    assert score.num_tokens == 0


def test_no_texts_give_no_translations(pipeline: TranslationPipeline) -> None:
    assert pipeline.translate([]) == []
    assert pipeline([]) == []
    assert pipeline.score([], []) == []
    assert list(pipeline.stream([])) == []


def build_long_text(toy: Toy) -> str:
    """Twelve phrases of five words, with commas between them."""
    words = [*toy.source_words, *toy.source_words]
    phrases = [" ".join(words[start : start + 5]) for start in range(12)]
    return ", ".join(phrases) + "."


def join_sources(translation: Translation) -> str:
    """Sources of all sentences, without spaces."""
    return "".join(sentence.source for sentence in translation.sentences).replace(" ", "")


def test_a_long_text_is_split_at_commas_and_never_truncated(pipeline: TranslationPipeline, toy: Toy) -> None:
    assert pipeline.max_source_length == toy.max_length
    long_text = build_long_text(toy)
    translation = pipeline(long_text)
    assert len(translation.sentences) > 1
    assert join_sources(translation) == long_text.replace(" ", "")
    for sentence in translation.sentences:
        assert len(pipeline.source.encode(sentence.source).ids) < toy.max_length
        assert sentence.source.endswith((",", "."))


@pytest.mark.parametrize("text", ["dog" * 300, "犬" * 200, " ".join(["dog"] * 200)])
def test_a_long_text_without_punctuation_is_split_and_never_truncated(pipeline: TranslationPipeline, text: str) -> None:
    translation = pipeline(text)
    assert len(translation.sentences) > 1
    assert join_sources(translation) == text.replace(" ", "")


def test_without_splitting_a_long_text_is_rejected(pipeline: TranslationPipeline, toy: Toy) -> None:
    long_text = build_long_text(toy)
    num_tokens = len(pipeline.source.encode(long_text).ids) + 1
    assert num_tokens > toy.max_length
    message = rf"text 2 has a sentence of {num_tokens} tokens, .* trained on {toy.max_length} at most"
    with pytest.raises(UsageError, match=message):
        pipeline.translate(["dog", long_text], split=False)


def test_pairs_that_are_too_long_or_incomplete_are_rejected(pipeline: TranslationPipeline) -> None:
    with pytest.raises(UsageError, match=r"pair 1 has 202 source and 2 target tokens, but the model takes 64 and 95"):
        pipeline.score([" ".join(["dog"] * 200) + "."], ["Hund."])
    with pytest.raises(UsageError, match="2 source texts and 1 target texts"):
        pipeline.align(["a", "b"], ["c"])


def test_a_stream_keeps_order_and_reads_no_more_than_its_window(
    pipeline: TranslationPipeline, sentences: list[str]
) -> None:
    texts_read: list[str] = []

    def read_texts() -> Iterator[str]:
        for text in sentences[:50]:
            texts_read.append(text)
            yield text

    stream = pipeline.stream(read_texts(), window=8)
    assert not texts_read
    first = next(stream)
    assert len(texts_read) == 8
    translations = [first, *stream]
    assert [translation.source for translation in translations] == sentences[:50]
    assert translations == pipeline.translate(sentences[:50])


def test_invalid_arguments_are_rejected_with_the_nearest_name(pipeline: TranslationPipeline) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'beem' \(did you mean beam\?\)"):
        pipeline("dog", beem=3)
    with pytest.raises(ConfigError, match=r"beam \(0\) must be at least 1"):
        pipeline.stream([], beam=0)
    with pytest.raises(UsageError, match="a list of texts"):
        pipeline.translate("dog")


# ---- constraints


def test_prefixes_begin_the_translation(pipeline: TranslationPipeline) -> None:
    constrained, unconstrained = pipeline.translate(["dog cat tree.", "bird."], prefixes=["Hund", ""])
    assert constrained.startswith("Hund")
    assert not pipeline("dog cat tree.").startswith("Hund")
    assert unconstrained == pipeline("bird.")
    (score,) = pipeline.score(["dog cat tree."], [constrained])
    assert score.logprob == pytest.approx(constrained.logprob, abs=1e-4)
    with pytest.raises(UsageError, match=r"prefixes \(1\) must be as many as texts \(2\)"):
        pipeline.translate(["a", "b"], prefixes=["x"])
    with pytest.raises(UsageError, match="text 1 has 2 lines"):
        pipeline.translate(["a\nb"], prefixes=["x"])


def has_phrase(text: str, phrase: str) -> bool:
    return find_phrase(text, phrase) >= 0


@pytest.mark.parametrize("beam", [1, 4])
def test_phrases_are_forced_and_forbidden(pipeline: TranslationPipeline, sentences: list[str], beam: int) -> None:
    constraints = Constraints(force=("Wolke",), forbid=("Hund", "Stein"))
    translations = pipeline.translate(sentences[:30], constraints=constraints, beam=beam)
    for translation in translations:
        assert has_phrase(translation, "Wolke")
        assert not has_phrase(translation, "Hund")
        assert not has_phrase(translation, "Stein")


def test_a_glossary_holds_where_the_source_has_the_word(pipeline: TranslationPipeline, sentences: list[str]) -> None:
    constraints = Constraints(glossary=Glossary((("dog", "Kind Brot"), ("stone", "Fluss"))))
    unconstrained = pipeline.translate(sentences[:40])
    constrained = pipeline.translate(sentences[:40], constraints=constraints)
    for source, expected, translation in zip(sentences[:40], unconstrained, constrained, strict=True):
        if has_phrase(source, "dog"):
            assert has_phrase(translation, "Kind Brot")
        if has_phrase(source, "stone"):
            assert has_phrase(translation, "Fluss")
        if not has_phrase(source, "dog") and not has_phrase(source, "stone"):
            assert translation == expected


# ---- attention


def test_attention_maps_are_labelled_with_tokens(
    pipeline: TranslationPipeline, translations: list[Translation]
) -> None:
    sites = [f"{stack}.{layer}.{kind}" for (stack, kind), layer in itertools.product(ATTENTION_KINDS, (0, 1))]
    for translation in translations[:3]:
        source_tokens = [*pipeline.source.encode(translation.source).subwords, "</s>"]
        attention_maps = translation.attention
        assert sorted(attention_maps) == sorted(sites)
        cross = attention_maps["decoder.1.cross"]
        assert cross.rows == [*translation.tokens, "</s>"]
        assert cross.columns == source_tokens
        assert cross.weights.shape == (4, len(cross.rows), len(cross.columns))
        assert cross.weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)  # in half precision
        assert attention_maps["decoder.0.self"].columns == ["<s>", *translation.tokens]
        assert attention_maps["encoder.0.self"].rows == source_tokens
        assert attention_maps["encoder.0.self"].columns == source_tokens
        assert translation.attention is attention_maps, "recorded once"


def test_sentences_of_a_paragraph_do_not_attend_to_one_another(pipeline: TranslationPipeline) -> None:
    translation = pipeline("dog. Cat tree.")
    source_length = len(pipeline.source.encode("dog.").ids) + 1
    target_length = len(translation.sentences[0].ids) + 1
    weights = translation.attention["decoder.1.cross"].weights
    assert not weights[:, :target_length, source_length:].any()
    assert not weights[:, target_length:, :source_length].any()
    assert weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)


def gold_links(text: str) -> Links:
    """Links of a sentence's words: the translation has their order reversed."""
    num_words = len(text.split())
    return {(num_words - 1 - index, index) for index in range(num_words)}


def link_precision(sources: list[str], alignments: Sequence[Sequence[tuple[int, int]]]) -> float:
    """Fraction of links that are gold links."""
    num_correct = 0
    num_links = 0
    for source, links in zip(sources, alignments, strict=True):
        num_correct += len(gold_links(source) & set(links))
        num_links += len(links)
    return num_correct / num_links


def test_alignments_link_words_that_belong_together(
    pipeline: TranslationPipeline, aligning_pipeline: TranslationPipeline, toy: Toy
) -> None:
    pairs = toy.pairs(80, seed=12, max_words=4)
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]
    alignments = aligning_pipeline.align(sources, targets)
    assert link_precision(sources, alignments) > 0.6
    for source, target, links in zip(sources, targets, alignments, strict=True):
        assert sorted(target_word for _, target_word in links) == list(range(len(target.split())))
        assert all(0 <= source_word < len(source.split()) for source_word, _ in links)
    assert aligning_pipeline.align(sources[:2], targets[:2]) == alignments[:2]
    mean_alignments = pipeline.align(sources, targets)  # without an alignment head, by the mean of the later layers
    for target, links in zip(targets, mean_alignments, strict=True):
        assert sorted(target_word for _, target_word in links) == list(range(len(target.split())))


def test_alignments_of_paragraphs_count_words_through(aligning_pipeline: TranslationPipeline) -> None:
    translation = aligning_pipeline("dog cat. Tree\nbird stone.")
    first_sentence = translation.sentences[0]
    last_sentence = translation.sentences[-1]
    num_first_words = len(first_sentence.text.split())
    assert {target for _, target in translation.alignment} == set(range(len(translation.split())))
    first_sources = {source for source, target in translation.alignment if target < num_first_words}
    last_sources = {source for source, target in translation.alignment if target >= last_sentence.target_word}
    assert first_sources <= {0, 1}
    assert last_sources <= {3, 4}
    assert translation.pharaoh == " ".join(f"{source}-{target}" for source, target in translation.alignment)
    assert aligning_pipeline.align([translation.source], [translation]) == [translation.alignment]


def test_a_word_in_other_tokens_than_the_tokenizers_own_is_one_word(aligning_pipeline: TranslationPipeline) -> None:
    translation = aligning_pipeline("dog garden.")
    sentence = translation.sentences[0]
    letter_ids = [aligning_pipeline.target.backend.token_to_id(letter) for letter in "ĠGartenĠHund."]  # Ġ: a space
    assert None not in letter_ids
    respelled = type(sentence)(sentence.source, aligning_pipeline.target.decode(letter_ids), letter_ids, 0, 0)
    assert aligning_pipeline.recorder.target_word_ids(respelled) == [0] * 7 + [1] * 6


def test_an_alignment_head_that_the_model_lacks_is_rejected(pipeline: TranslationPipeline) -> None:
    with pytest.raises(CheckpointError, match="site 'decoder.9.cross', head 0"):
        StoredAlignmentHead.from_json({"site": "decoder.9.cross", "head": 0}, pipeline.torch_models()[0])


def test_a_record_of_a_translation_has_title_languages_and_alignment_head(
    aligning_pipeline: TranslationPipeline,
) -> None:
    record = aligning_pipeline("dog cat. Tree.").record("title", ("en", "de"))
    assert record.title == "title"
    assert record.best == ("decoder.cross", 1, 1)
    assert record.texts["source"].special.count(True) == 2  # the end of each sentence
    assert record.texts["source"].word_ids[0] == 0
    assert max(record.texts["source"].word_ids) == 2
    assert {attention.name for attention in record.attention} == {"decoder.cross", "encoder.self", "decoder.self"}
    assert record.to_dict()["texts"]["target"]["lang"] == "de"


def test_a_pickled_translation_keeps_its_fields_but_not_its_model(
    pipeline: TranslationPipeline, sentences: list[str]
) -> None:
    translation = pipeline.translate(sentences[:1], beam=3, nbest=2)[0]
    restored = pickle.loads(pickle.dumps(translation))
    assert (restored, type(restored)) == (translation, Translation)
    for name in ("source", "score", "logprob", "finished", "sentences", "tokens"):
        assert getattr(restored, name) == getattr(translation, name), name
    (alternative,) = restored.alternatives
    assert (alternative, alternative.score) == (translation.alternatives[0], translation.alternatives[0].score)
    with pytest.raises(UsageError, match="without its model"):
        _ = restored.alignment
    with pytest.raises(UsageError, match="without its model"):
        _ = restored.attention
    links = translation.alignment
    assert pickle.loads(pickle.dumps(translation)).alignment == links  # known before it was pickled


# ---- ensembles


def test_models_form_an_ensemble(pipeline: TranslationPipeline, toy: Toy, sentences: list[str]) -> None:
    model = pipeline.torch_models()[0]
    other_model = toy.train(seed=2, steps=40).torch_models()[0]
    ensemble = TranslationPipeline([model, other_model], pipeline.source, pipeline.target, decoding=pipeline.decoding)
    translations = ensemble.translate(sentences[:20], nbest=2)
    candidates = with_alternatives(translations)
    scores = ensemble.score([candidate.source for candidate in candidates], candidates)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)
    assert "1.decoder.0.cross" in translations[0].attention
    assert translations[0].record().texts["source"].text == sentences[0]
    twice = TranslationPipeline([model] * 2, pipeline.source, pipeline.target, decoding=pipeline.decoding)
    assert twice.translate(sentences[:20]) == pipeline.translate(sentences[:20])


def test_the_measured_alignment_head_is_among_the_best(pipeline: TranslationPipeline, toy: Toy) -> None:
    """The measure, which knows no gold links, picks a head that is nearly as good as the best by gold links."""
    pairs = toy.pairs(120, seed=21, max_words=5)
    sources = [pipeline.source.encode(source) for source, _ in pairs]
    targets = [pipeline.target.encode(target) for _, target in pairs]
    source_tokens = Tokens.from_rows([[*encoding.ids, pipeline.source.eos_id] for encoding in sources])
    target_tokens = Tokens.from_rows([encoding.ids for encoding in targets])
    with trace("decoder.*.cross") as captured:
        pipeline.torch_models()[0].target_logprobs(source_tokens, target_tokens)
    measured = best_alignment_head({site: captured[site].weights for site in captured}, sources, targets)

    def precision(head: StoredAlignmentHead) -> float:
        recorder = replace(pipeline.recorder, alignment_head=head)
        alignments = []
        for source, target in pairs[:25]:
            sentence_pairs = split_pair(source, target, pipeline.target, split=True)
            alignments.append(recorder.align(sentence_pairs))
        return link_precision([source for source, _ in pairs[:25]], alignments)

    candidates = itertools.product(captured, range(4), (0, 1))
    best_precision = max(precision(StoredAlignmentHead(site, head, shift)) for site, head, shift in candidates)
    measured_head = StoredAlignmentHead(measured.site, measured.head, measured.shift)
    assert precision(measured_head) > best_precision - 0.08
