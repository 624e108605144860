"""Translation of texts: independent of the batch, scored as searched, nothing lost."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

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
from regard.pipeline.translation import Translation, TranslationPipeline
from regard.tasks.alignment import best_alignment_head
from regard.text.sentences import find_phrase

SITES = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]


@pytest.fixture(scope="module")
def sentences(toy):
    return [left for left, _ in toy.pairs(100, seed=99, max_words=7)]


@pytest.fixture(scope="module")
def translations(pipeline, sentences):
    return pipeline.translate(sentences, nbest=3)


@pytest.fixture(scope="module")
def aligning_pipeline(pipeline):
    """The same pipeline with an alignment head."""
    model = pipeline.models[0]
    tokenizer = pipeline.source
    task = {
        "max_length": pipeline.max_source_length,
        "alignment_head": {"site": "decoder.1.cross", "head": 1, "shift": 0},
    }
    return TranslationPipeline([model], tokenizer, tokenizer, decoding=pipeline.decoding, task=task)


def assert_same(left, right):
    assert str(left) == str(right)
    assert list(map(str, left.alternatives)) == list(map(str, right.alternatives))
    left_scores = list_scores(with_alternatives([left]))
    assert left_scores == pytest.approx(list_scores(with_alternatives([right])), abs=1e-4)


def with_alternatives(translations):
    return list(itertools.chain.from_iterable((best, *best.alternatives) for best in translations))


def list_scores(scored):
    return [result.score for result in scored]


def test_texts_are_translated(pipeline, toy):
    pairs = toy.pairs(60, seed=7, max_words=4)
    translations = pipeline.translate([left for left, _ in pairs])
    is_right = [str(translation) == right for translation, (_, right) in zip(translations, pairs, strict=True)]
    assert np.mean(is_right) > 0.7
    assert all(isinstance(translation, str) for translation in translations)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batch_sizes_change_nothing(pipeline, sentences, translations, size):
    rebatched = pipeline.translate(sentences, nbest=3, batch_size=size, batch_tokens=100_000)
    for left, right in zip(translations, rebatched, strict=True):
        assert_same(left, right)


def test_neighbours_change_nothing(pipeline, aligning_pipeline, toy, sentences, translations):
    other_texts = [left for left, _ in toy.pairs(100, seed=3, max_words=7)]
    mixed_texts = [text for pair in zip(other_texts, sentences, strict=True) for text in pair][::-1]
    in_company = aligning_pipeline.translate(mixed_texts, nbest=3)[::-1][1::2]
    for left, right in zip(translations, in_company, strict=True):
        assert_same(left, right)
    alone = [aligning_pipeline(text, nbest=3) for text in sentences[:30]]
    assert [translation.alignment for translation in alone] == [
        translation.alignment for translation in in_company[:30]
    ]
    assert all(translation.alignment for translation in alone)


def test_sampling_does_not_depend_on_the_batch(pipeline, sentences):
    settings = {"sample": True, "temperature": 1.5, "nbest": 2, "seed": 5}
    samples = pipeline.translate(sentences[:40], **settings)
    for text, sample in zip(sentences[:40:5], samples[::5], strict=True):
        assert_same(pipeline(text, **settings), sample)
    assert [str(sample) for sample in pipeline.translate(sentences[:40], **{**settings, "seed": 6})] != [
        str(sample) for sample in samples
    ]


def test_alternatives_are_ordered_and_different(translations):
    for translation in translations:
        candidates = [translation, *translation.alternatives]
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        assert len(set(map(str, candidates))) == len(candidates)
    assert any(len(translation.alternatives) == 2 for translation in translations)


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.3}, {"coverage_penalty": 0.2, "beam": 3}])
def test_score_gives_the_score_of_the_search(pipeline, sentences, settings):
    translations = pipeline.translate(sentences[:50], nbest=2, **settings)
    candidates = with_alternatives(translations)
    scores = pipeline.score([candidate.source for candidate in candidates], candidates, **settings)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)
    logprobs = [candidate.logprob for candidate in candidates]
    assert [score.logprob for score in scores] == pytest.approx(logprobs, abs=1e-4)
    sources = [translation.source for translation in translations]
    text_scores = pipeline.score(sources, [str(translation) for translation in translations], **settings)
    assert list_scores(text_scores) == pytest.approx(list_scores(translations), abs=1e-4)


def test_a_text_has_one_score_however_the_search_tokenized_it(pipeline, sentences):
    """With a high temperature, texts come in other tokens than the tokenizer's own: its own are scored."""
    texts = [text for text in sentences[:40] for _ in range(2)]
    samples = pipeline.translate(texts, sample=True, temperature=1.2, nbest=4)
    candidates = [candidate for candidate in with_alternatives(samples) if candidate]
    source_ids = [[*pipeline.source.encode(text).ids, pipeline.source.eos_id] for text in texts]
    config = DecodingConfig(sample=True, temperature=1.2, nbest=4)
    hypotheses = search_all(pipeline.generator, source_ids, config, max_length=pipeline.max_target_length)
    is_retokenized = [
        pipeline.target.encode(pipeline.target.decode(hypothesis.ids)).ids != hypothesis.ids
        for hypothesis in itertools.chain.from_iterable(hypotheses)
    ]
    assert any(is_retokenized), "no text was tokenized in another way: the test shows nothing"
    sources = [candidate.source for candidate in candidates]
    scores = pipeline.score(sources, [str(candidate) for candidate in candidates], split=False)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)


def test_a_worse_translation_scores_worse(pipeline, translations):
    sources = [translation.source for translation in translations]
    good_scores = pipeline.score(sources, translations)
    wrong_scores = pipeline.score(sources, [f"{translation} Brot Brot" for translation in translations])
    assert all(good.logprob > wrong.logprob for good, wrong in zip(good_scores, wrong_scores, strict=True))
    assert wrong_scores[0].num_tokens > good_scores[0].num_tokens


# ---- paragraphs, spaces, long texts


def test_paragraphs_keep_their_spacing(pipeline):
    text = "  Dog cat.  Tree?\n\n\tbird house. \r\nStone."
    translation = pipeline(text)
    sentences = [str(pipeline(sentence)) for sentence in ("Dog cat.", "Tree?", "bird house.", "Stone.")]
    assert translation == "  {}  {}\n\n\t{} \r\n{}".format(*sentences)
    assert [sentence.source for sentence in translation.sentences] == ["Dog cat.", "Tree?", "bird house.", "Stone."]
    assert translation.score == pytest.approx(
        np.mean([pipeline(sentence.source).score for sentence in translation.sentences]), abs=1e-4
    )
    score = pipeline.score([text], [translation])[0]
    assert (score.score, score.logprob) == pytest.approx((translation.score, translation.logprob), abs=1e-4)
    text_score = pipeline.score([text], [str(translation)])[0]
    assert text_score.score == pytest.approx(translation.score, abs=1e-4)


def test_without_splitting_a_line_is_a_sentence(pipeline):
    translation = pipeline("dog. Cat.\nbird.", split=False)
    assert [sentence.source for sentence in translation.sentences] == ["dog. Cat.", "bird."]


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t\r\n  \u3000"])
def test_a_blank_text_has_an_empty_translation(pipeline, blank):
    translation = pipeline(blank)
    assert translation == "" and isinstance(translation, Translation)
    assert (translation.score, translation.alternatives) == (0.0, [])
    assert (translation.alignment, translation.attention) == ([], {})
    score = pipeline.score([blank], [translation])[0]
    assert (score.score, score.num_tokens) == (0.0, 0)


def test_no_texts_give_no_translations(pipeline):
    assert pipeline.translate([]) == [] == pipeline([]) == pipeline.score([], []) == list(pipeline.stream([]))


def test_a_long_text_is_split_or_rejected_but_never_truncated(pipeline, toy):
    long_text = ", ".join(" ".join(toy.left[(n + m) % 12] for m in range(5)) for n in range(12)) + "."
    num_tokens = len(pipeline.source.encode(long_text).ids) + 1
    assert num_tokens > pipeline.max_source_length == toy.max_length
    translation = pipeline(long_text)
    assert len(translation.sentences) > 1
    assert "".join(sentence.source for sentence in translation.sentences).replace(" ", "") == long_text.replace(" ", "")
    assert all(len(pipeline.source.encode(sentence.source).ids) < toy.max_length for sentence in translation.sentences)
    assert all(sentence.source.endswith((",", ".")) for sentence in translation.sentences), (
        "split at commas where there are some"
    )
    with pytest.raises(
        UsageError, match=rf"text 2 has a sentence of {num_tokens} tokens, .* trained on {toy.max_length} at most"
    ):
        pipeline.translate(["dog", long_text], split=False)
    for text in ("dog" * 300, "犬" * 200, " ".join(["dog"] * 200)):
        sentences = pipeline(text).sentences
        assert "".join(sentence.source for sentence in sentences).replace(" ", "") == text.replace(" ", "")


def test_pairs_that_are_too_long_are_rejected(pipeline):
    with pytest.raises(UsageError, match=r"pair 1 has 202 source and 2 target tokens, but the model takes 64 and 95"):
        pipeline.score([" ".join(["dog"] * 200) + "."], ["Hund."])
    with pytest.raises(UsageError, match="2 source texts and 1 target texts"):
        pipeline.align(["a", "b"], ["c"])


def test_a_stream_keeps_order_and_reads_no_more_than_its_window(pipeline, sentences):
    texts_read = []

    def lines():
        for text in sentences[:50]:
            texts_read.append(text)
            yield text

    stream = pipeline.stream(lines(), window=8)
    assert not texts_read
    first = next(stream)
    assert len(texts_read) == 8
    translations = [first, *stream]
    assert [translation.source for translation in translations] == sentences[:50]
    assert list(map(str, translations)) == list(map(str, pipeline.translate(sentences[:50])))


def test_unknown_settings_are_rejected_with_the_nearest_name(pipeline):
    with pytest.raises(ConfigError, match=r"unknown setting 'beem' \(did you mean beam\?\)"):
        pipeline("dog", beem=3)
    with pytest.raises(ConfigError, match=r"beam \(0\) must be at least 1"):
        pipeline.stream([], beam=0)
    with pytest.raises(UsageError, match="a list of texts"):
        pipeline.translate("dog")


# ---- constraints


def test_prefixes_begin_the_translation(pipeline):
    translations = pipeline.translate(["dog cat tree.", "bird."], prefixes=["Hund", ""])
    assert translations[0].startswith("Hund") and translations[1] == pipeline("bird.")
    assert pipeline.score(["dog cat tree."], [translations[0]])[0].logprob == pytest.approx(
        translations[0].logprob, abs=1e-4
    )
    with pytest.raises(UsageError, match=r"prefixes \(1\) must be as many as texts \(2\)"):
        pipeline.translate(["a", "b"], prefixes=["x"])
    with pytest.raises(UsageError, match="text 1 has 2 lines"):
        pipeline.translate(["a\nb"], prefixes=["x"])


@pytest.mark.parametrize("beam", [1, 4])
def test_phrases_are_forced_and_forbidden(pipeline, sentences, beam):
    constraints = Constraints(force=("Wolke",), forbid=("Hund", "Stein"))
    translations = pipeline.translate(sentences[:30], constraints=constraints, beam=beam)
    for translation in translations:
        assert find_phrase(translation, "Wolke") >= 0
        assert find_phrase(translation, "Hund") < 0 and find_phrase(translation, "Stein") < 0


def test_a_glossary_holds_where_the_source_has_the_word(pipeline, sentences):
    constraints = Constraints(glossary=Glossary((("dog", "Kind Brot"), ("stone", "Fluss"))))
    unconstrained = pipeline.translate(sentences[:40])
    for before, translation in zip(
        unconstrained, pipeline.translate(sentences[:40], constraints=constraints), strict=True
    ):
        if find_phrase(translation.source, "dog") >= 0:
            assert find_phrase(translation, "Kind Brot") >= 0
        if find_phrase(translation.source, "stone") >= 0:
            assert find_phrase(translation, "Fluss") >= 0
        if not any(find_phrase(translation.source, word) >= 0 for word in ("dog", "stone")):
            assert translation == before


# ---- attention


def test_attention_maps_are_labelled_with_tokens(pipeline, translations):
    for translation in translations[:3]:
        source_tokens = [*pipeline.source.encode(translation.source).subwords, "</s>"]
        attention_maps = translation.attention
        assert sorted(attention_maps) == sorted(f"{stack}.{layer}.{role}" for layer in (0, 1) for stack, role in SITES)
        cross = attention_maps["decoder.1.cross"]
        assert cross.rows == [*translation.tokens, "</s>"] and cross.columns == source_tokens
        assert cross.weights.shape == (4, len(cross.rows), len(cross.columns))
        assert cross.weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)  # in half precision
        assert attention_maps["decoder.0.self"].columns == ["<s>", *translation.tokens]
        assert attention_maps["encoder.0.self"].rows == attention_maps["encoder.0.self"].columns == source_tokens
        assert translation.attention is attention_maps, "recorded once"


def test_sentences_of_a_paragraph_do_not_attend_to_one_another(pipeline):
    translation = pipeline("dog. Cat tree.")
    source_length = len(pipeline.source.encode("dog.").ids) + 1
    target_length = len(translation.sentences[0].ids) + 1
    weights = translation.attention["decoder.1.cross"].weights
    assert not weights[:, :target_length, source_length:].any() and not weights[:, target_length:, :source_length].any()
    assert weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)


def gold_links(text):
    num_words = len(text.split())
    return {(num_words - 1 - index, index) for index in range(num_words)}


def test_alignments_link_words_that_belong_together(pipeline, aligning_pipeline, toy):
    pairs = toy.pairs(80, seed=12, max_words=4)
    sources = [left for left, _ in pairs]
    targets = [right for _, right in pairs]
    alignments = aligning_pipeline.align(sources, targets)
    num_right = sum(len(gold_links(source) & set(links)) for source, links in zip(sources, alignments, strict=True))
    assert num_right / sum(len(links) for links in alignments) > 0.6
    for source, target, links in zip(sources, targets, alignments, strict=True):
        assert sorted(target_word for _, target_word in links) == list(range(len(target.split())))
        assert all(0 <= source_word < len(source.split()) for source_word, _ in links)
    assert aligning_pipeline.align(sources[:2], targets[:2]) == alignments[:2]
    assert pipeline.align(sources[:2], targets[:2]), "without an alignment head the mean of the later layers aligns"


def test_alignments_of_paragraphs_count_words_through(aligning_pipeline):
    translation = aligning_pipeline("dog cat. Tree\nbird stone.")
    assert {target for _, target in translation.alignment} == set(range(len(translation.split())))
    first_sources = {
        source for source, target in translation.alignment if target < len(translation.sentences[0].text.split())
    }
    last_sources = {
        source for source, target in translation.alignment if target >= translation.sentences[-1].target_word
    }
    assert first_sources <= {0, 1} and last_sources <= {3, 4}
    assert translation.pharaoh == " ".join(f"{source}-{target}" for source, target in translation.alignment)
    assert aligning_pipeline.align([translation.source], [translation]) == [translation.alignment]


def test_other_tokenizations_of_a_word_still_align(aligning_pipeline):
    translation = aligning_pipeline("dog garden.")
    sentence = translation.sentences[0]
    letter_ids = [aligning_pipeline.target.backend.token_to_id(letter) for letter in "ĠGartenĠHund."]  # Ġ: a space
    assert None not in letter_ids
    respelled = type(sentence)(sentence.source, aligning_pipeline.target.decode(letter_ids), letter_ids, 0, 0)
    assert aligning_pipeline.recorder.target_word_ids(respelled) == [0] * 7 + [1] * 6


def test_an_alignment_head_that_the_model_lacks_is_rejected(pipeline):
    with pytest.raises(CheckpointError, match="site 'decoder.9.cross', head 0"):
        StoredAlignmentHead.from_json({"site": "decoder.9.cross", "head": 0}, pipeline.models[0])


def test_a_translation_has_a_record(aligning_pipeline):
    record = aligning_pipeline("dog cat. Tree.").record("title", ("en", "de"))
    assert record.title == "title" and record.best == ("decoder.cross", 1, 1)
    assert record.texts["source"].special.count(True) == 2  # the end of each sentence
    assert record.texts["source"].word_ids[0] == 0 and max(record.texts["source"].word_ids) == 2
    assert {attention.name for attention in record.attention} == {"decoder.cross", "encoder.self", "decoder.self"}
    assert record.to_dict()["texts"]["target"]["lang"] == "de"


def test_a_translation_is_pickled_as_its_text(translations):
    restored = pickle.loads(pickle.dumps(translations[0]))
    assert restored == translations[0] and type(restored) is str


# ---- ensembles


def test_models_form_an_ensemble(pipeline, toy, sentences):
    model = pipeline.models[0]
    other_model = toy.train(seed=2, steps=40).models[0]
    ensemble = TranslationPipeline([model, other_model], pipeline.source, pipeline.target, decoding=pipeline.decoding)
    translations = ensemble.translate(sentences[:20], nbest=2)
    candidates = with_alternatives(translations)
    scores = ensemble.score([candidate.source for candidate in candidates], candidates)
    assert list_scores(scores) == pytest.approx(list_scores(candidates), abs=1e-4)
    assert "1.decoder.0.cross" in translations[0].attention
    assert translations[0].record().texts["source"].text == sentences[0]
    twice = TranslationPipeline([model] * 2, pipeline.source, pipeline.target, decoding=pipeline.decoding)
    assert list(map(str, twice.translate(sentences[:20]))) == list(map(str, pipeline.translate(sentences[:20])))


def test_the_measured_alignment_head_is_among_the_best(pipeline, toy):
    """The measure, which knows no gold links, picks a head that is nearly as good as the best by gold links."""
    pairs = toy.pairs(120, seed=21, max_words=5)
    source = [pipeline.source.encode(left) for left, _ in pairs]
    target = [pipeline.source.encode(right) for _, right in pairs]
    with trace("decoder.*.cross") as captured:
        pipeline.models[0].target_logprobs(
            Tokens.from_rows([[*encoding.ids, pipeline.source.eos_id] for encoding in source]),
            Tokens.from_rows([encoding.ids for encoding in target]),
        )
    measured = best_alignment_head({site: captured[site].weights for site in captured}, source, target)

    def precision(head):
        recorder = replace(pipeline.recorder, alignment_head=head)
        num_right = 0
        num_links = 0
        for left, right in pairs[:25]:
            links = recorder.align(split_pair(left, right, pipeline.target, split=True))
            num_right += len(gold_links(left) & set(links))
            num_links += len(links)
        return num_right / num_links

    heads = [StoredAlignmentHead(*choice) for choice in itertools.product(captured, range(4), (0, 1))]
    best_precision = max(map(precision, heads))
    assert precision(StoredAlignmentHead(measured.site, measured.head, measured.shift)) > best_precision - 0.08
