"""Every result of a pipeline has a record: texts, attention, steps, probabilities, and what was left out."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.attention.intervention import ablate
from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import (
    ElmoConfig,
    MemoryNetworkConfig,
    RnnClassifierConfig,
    RnnTaggerConfig,
    RnnTextConfig,
    Seq2SeqConfig,
)
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import UsageError
from regard.interpret.record_request import RUNNERS, PipelineRequest, record_request, task_name
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.records.translation_records import StoredAlignmentHead
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.tagging import EncoderTagger, RecurrentTagger, TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.elmo import ElmoFeatures
from regard.tasks.rnn_text import RnnPreprocessor
from regard.tasks.story_qa import StoryVocabulary
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer
from regard.view.record.parts import DecodingStep, LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from tests.families import made as build_model

TEXT = "two small dogs run home"
PASSAGE = "the old dog slept . two small dogs run home and the cat sees them"
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=12)
TOKENIZER = with_mask_token(train_tokenizer([TEXT, PASSAGE, "where who a b c"] * 3, TokenizerConfig(kind="words")))
SPECIAL_TOKENS = SpecialTokens(TOKENIZER)
VOCAB_SIZE = TOKENIZER.vocab_size
TAGS = ["O", "B-X", "I-X"]


def encoder(**changes: object) -> Any:
    config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=24, num_token_types=2)
    return build_model(config.override(changes))


def translator(**changes: object) -> TranslationPipeline:
    config = TransformerConfig(
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        hidden_size=8,
        encoder=STACK,
        decoder=STACK,
        max_positions=40,
    )
    decoding = DecodingConfig(beam=3, max_length_b=3, max_length_a=0.5)
    return TranslationPipeline([build_model(config.override(changes), seed=4)], TOKENIZER, TOKENIZER, decoding=decoding)


def seq2seq() -> TranslationPipeline:
    config = Seq2SeqConfig(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, embedding_size=7, hidden_size=9)
    return TranslationPipeline(
        [build_model(config)], TOKENIZER, TOKENIZER, decoding=DecodingConfig(beam=1, max_length_b=3)
    )


def features() -> ElmoFeatures:
    model: Any = build_model(ElmoConfig(vocab_size=VOCAB_SIZE, hidden_size=4, boundary_id=TOKENIZER.eos_id))
    return ElmoFeatures(model, TOKENIZER, "x")


def rnn_classifier() -> ClassificationPipeline:
    encoder_config = RnnTextConfig(
        vocab_size=VOCAB_SIZE, embedding_size=5, hidden_size=7, num_feature_layers=3, feature_size=8
    )
    model: Any = build_model(RnnClassifierConfig(num_labels=2, encoder=encoder_config))
    return ClassificationPipeline(
        RecurrentClassifier(model, RnnPreprocessor(TOKENIZER, 16, features())), {"labels": ["bad", "good"]}
    )


def rnn_tagger() -> TokenClassificationPipeline:
    encoder_config = RnnTextConfig(
        vocab_size=VOCAB_SIZE, embedding_size=5, hidden_size=7, num_feature_layers=3, feature_size=8
    )
    model: Any = build_model(RnnTaggerConfig(num_labels=3, encoder=encoder_config))
    return TokenClassificationPipeline(RecurrentTagger(model, RnnPreprocessor(TOKENIZER, 16, features())), TAGS, {})


def story_qa() -> StoryQAPipeline:
    questions = StoryQuestions.from_questions(
        [StoryQuestion("one", ("Mary went home.", "John went out."), "Where is Mary?", "home")]
    )
    vocabulary = StoryVocabulary.from_questions(questions)
    model: Any = build_model(
        MemoryNetworkConfig(
            vocab_size=len(vocabulary.words), max_sentence_words=4, memory_size=5, embedding_size=6, hops=2
        )
    )
    return StoryQAPipeline(model, vocabulary)


def generator() -> GenerationPipeline:
    model: Any = build_model(
        GptConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=24, eos_id=TOKENIZER.eos_id)
    )
    return GenerationPipeline(model, TOKENIZER, {})


REQUEST = PipelineRequest(TEXT, PASSAGE, ("Mary went home.", "John went out."))
PIPELINES: dict[str, tuple[Any, PipelineRequest, set[str]]] = {
    "translate": (translator, REQUEST, {"decoder.cross", "encoder.self", "decoder.self"}),
    "seq2seq": (seq2seq, REQUEST, {"decoder.attention"}),
    "generate": (generator, PipelineRequest(TEXT, options={"max_new_tokens": 4}), {"decoder.self"}),
    "classify": (
        lambda: ClassificationPipeline(
            EncoderClassifier(encoder(head="label", num_labels=3), SPECIAL_TOKENS, 20), {"labels": ["a", "b", "c"]}
        ),
        PipelineRequest(TEXT, pair="the cat sees"),
        {"encoder.self"},
    ),
    "classify, RNN": (rnn_classifier, PipelineRequest(TEXT), {"pooling", "mix"}),
    "tag": (
        lambda: TokenClassificationPipeline(
            EncoderTagger(encoder(head="token", num_labels=3), SPECIAL_TOKENS, 20), TAGS, {}
        ),
        REQUEST,
        {"encoder.self"},
    ),
    "tag, RNN": (rnn_tagger, REQUEST, {"mix"}),
    "answer": (
        lambda: QuestionAnsweringPipeline(encoder(head="span"), SPECIAL_TOKENS, 16, {"overlap": 4, "threshold": 0.0}),
        PipelineRequest("who slept", PASSAGE),
        {"encoder.self"},
    ),
    "fill": (
        lambda: FillMaskPipeline(encoder(head="masked"), TOKENIZER, {}, 20),
        PipelineRequest("two <mask> dogs <mask> home"),
        {"encoder.self"},
    ),
    "embed": (
        lambda: EmbeddingPipeline(encoder(), SPECIAL_TOKENS, SentenceTransformersConfig(), max_length=20),
        REQUEST,
        {"encoder.self"},
    ),
    "features": (lambda: FeaturePipeline(features()), REQUEST, {"mix"}),
    "stories": (story_qa, PipelineRequest("Where is Mary?", story=REQUEST.story), {"hop"}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_result_has_a_record_that_survives_its_json_form(name: str) -> None:
    build, request, kinds = PIPELINES[name]
    pipeline = build()
    record = record_request(pipeline, request, provenance={"model": "small"})
    assert {attention.name for attention in record.attention} == kinds
    assert record.task == task_name(pipeline)
    for attention in record.attention:
        for layer in attention.layers:
            for head in range(attention.num_heads):
                matrix = attention.matrix(layer, head)
                assert np.abs(matrix.sum(-1) - 1).max() < 2e-3
                assert not attention.is_causal or not np.triu(matrix, 1).any()
    restored = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert restored.texts == record.texts
    assert restored.steps == tuple(DecodingStep.from_dict(step.to_dict()) for step in record.steps)
    assert restored.provenance["model"] == "small" and restored.id == record.id
    if record.steps:
        assert len(record.steps) == len(record.texts["target"].tokens)
        for step, token in zip(record.steps, record.texts["target"].tokens, strict=True):
            assert step.token == token
            assert 0 <= step.probability <= 1 and step.top[0][1] >= step.probability - 1e-6
            assert sum(probability for _, probability in step.top) < 1 + 1e-4


def test_every_pipeline_runs_requests() -> None:
    assert {type(build()) for build, _, _ in PIPELINES.values()} == set(RUNNERS)


def test_a_translation_has_steps_beams_and_attention_maps() -> None:
    translation = translator()(TEXT)
    record = translation.record(store_qkv="decoder.1.cross:1", top_k=3)
    assert [len(step.top) for step in record.steps] == [3] * len(record.steps)
    logprobs = np.log([step.probability for step in record.steps])
    assert translation.logprob == pytest.approx(float(logprobs.sum()), abs=1e-3)
    parents = {-1}  # the winner is a path of the tree
    for token, step in zip(record.texts["target"].tokens, record.steps, strict=True):
        parents = {index for index, (parent, name, _) in enumerate(step.beams) if parent in parents and name == token}
        assert parents
    (qkv,) = record.qkv
    weights = np.exp(qkv.scores - qkv.scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.abs(weights - record["decoder.cross"].matrix(1, 1)).max() < 1e-3
    assert record.positions is not None and record.positions.kind == "sinusoidal"
    attention_map = translation.attention["decoder.cross"]
    assert attention_map.site == "decoder.1.cross" and attention_map.rows[-1] == "</s>"
    assert np.allclose(attention_map.matrix, record["decoder.cross"].weights[1].mean(0), atol=1e-6)
    word_map = attention_map.to_words()
    assert word_map.columns == [*TEXT.split(), "</s>"]
    assert [row for row, _, _ in word_map.top()] == word_map.rows
    assert np.array_equal(translation.attention["decoder.0.cross:1"].matrix, record["decoder.cross"].matrix(0, 1))
    assert translation.attention["decoder.0.self"].columns[0] == "<s>"
    assert translation.steps[0].top(2) == list(translation.steps[0].top[:2])


def test_stored_queries_and_keys_give_the_same_weights() -> None:
    model = EmbeddingPipeline(encoder(max_positions=80), SPECIAL_TOKENS, SentenceTransformersConfig(), max_length=80)
    embeddings = model.embed([" ".join([TEXT] * 12)])
    stored, computed = (embeddings.record(store=store).attention[0] for store in ("weights", "queries"))
    assert stored.has_weights and not computed.has_weights
    assert np.abs(stored.weights - computed.weights).max() < 1e-3


def test_sentences_of_a_text_are_diagonal_blocks() -> None:
    model = translator()
    translation = model("Two dogs run. The cat sees.")
    assert len(translation.sentences) == 2
    for storage in ("weights", "queries"):
        record = translation.record(store=storage, store_qkv="best")
        attention = record["encoder.self"]
        length = len(model.recorder.source_ids(translation.sentences[0]))
        assert not attention.matrix(1, 0)[:length, length:].any() and not attention.matrix(1, 0)[length:, :length].any()
        assert "in 2 parts" in record.omissions[0].reason and not record.qkv


def test_the_alignment_head_of_an_older_seq2seq_folder_is_read() -> None:
    model = seq2seq().models[0]
    assert StoredAlignmentHead.from_json({"site": "decoder.0.cross", "head": 0}, model) == StoredAlignmentHead(
        "decoder.attention", 0, 0
    )


def test_all_models_of_an_ensemble_are_recorded() -> None:
    models = [*translator().models, *translator(norm="after").models]
    translation = TranslationPipeline(models, TOKENIZER, TOKENIZER, decoding=DecodingConfig(beam=1, max_length_b=3))(
        TEXT
    )
    names = [attention.name for attention in translation.record().attention]
    assert names[:3] == [name.removeprefix("1.") for name in names[3:]] and names[3] == "1.decoder.cross"
    first = translation.attention["decoder.1.cross"]
    second = translation.attention["1.decoder.1.cross"]
    assert first.rows == second.rows and not np.allclose(first.weights, second.weights, atol=1e-3)


def test_a_record_lists_what_it_leaves_out() -> None:
    long_text = " ".join([TEXT] * 9)
    label = PIPELINES["classify"][0]()(long_text)
    (omission,) = label.record().omissions
    assert "45 tokens" in omission.reason and omission.omitted == "all but its tokens 1 to 18"
    assert label.windows > 1
    answer = PIPELINES["answer"][0]().answer([("who slept", PASSAGE)], top_k=3)[0]
    record = answer.record()
    assert isinstance(record.prediction, SpanProbabilities) and len(record.omissions) == 1
    tokens = record.texts["source"].tokens
    assert len(record.prediction.start) == len(tokens)
    assert sum(record.prediction.start) == pytest.approx(1, abs=1e-4)
    for first, last, text, _ in record.prediction.answers:
        assert " ".join(tokens[first : last + 1]).replace("▁", "").split() == text.split()
    story_answer = story_qa().answer(["John went out."] * 4 + ["Mary went home."] * 3, "Where is Mary?")
    assert story_answer.forgotten == 2 and "first 2 sentences" in story_answer.record().omissions[0].omitted
    assert isinstance(story_answer.record().prediction, LabelProbabilities)


def test_ablated_heads_are_ablated_in_the_record() -> None:
    model = translator()
    with ablate("encoder.0.self"):
        translation = model(TEXT)
    ablated, intact = (result.record()["encoder.self"].weights for result in (translation, model(TEXT)))
    assert np.allclose(ablated[0], intact[0], atol=1e-4) and not np.allclose(ablated[1], intact[1], atol=1e-4)


def test_results_are_copied_and_pickled_without_their_model() -> None:
    tagged = PIPELINES["tag"][0]()(TEXT)
    restored = pickle.loads(pickle.dumps(tagged))
    assert restored == tagged and restored.tags == tagged.tags
    with pytest.raises(UsageError, match="without its model"):
        restored.record()
    label = PIPELINES["classify"][0]()(TEXT)
    assert pickle.loads(pickle.dumps(label)) == label
    assert copy.copy(tagged).tags == tagged.tags


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("decoder.9.cross", r"did you mean decoder\.1\.cross"),
        ("decoder.crss", r"did you mean decoder\.\d\.cross"),
        ("decoder.0.cross:5", r"there is no decoder\.0\.cross:5 \(did you mean decoder\.0\.cross:1\?\)"),
        ("decoder.0.cross:x", "names no head"),
    ],
)
def test_the_error_of_an_unknown_site_or_head_names_the_nearest(name: str, message: str) -> None:
    translation = translator()(TEXT)
    with pytest.raises(UsageError, match=message):
        _ = translation.attention[name]
    if name != "decoder.crss":
        with pytest.raises(UsageError, match=message):
            translation.record(store_qkv=name if ":" in name else f"{name}:0")


def test_a_result_is_saved_in_the_format_of_the_ending(tmp_path: Path) -> None:
    translation = translator()(TEXT)
    for ending in (".html", ".json", ".svg", ".tex"):
        assert translation.see(tmp_path / f"x{ending}").stat().st_size > 500
    assert Record.read(tmp_path / "x.json").texts == translation.record().texts
    assert translation.see(open_browser=False).read_text("utf-8").startswith("<!doctype html")
    assert translation.figure("align").svg.startswith("<svg")
    with pytest.raises(UsageError, match=r"must be one of \.html, \.json"):
        translation.see(tmp_path / "x.xyz")


def test_any_weights_can_be_shown(tmp_path: Path) -> None:
    weights = np.full((2, 3, 4), 0.25)
    path = regard.see(weights, rows=["a", "b", "c"], cols=["d", "e", "f", "g"], path=tmp_path / "any.json")
    record = Record.read(path)
    assert record.task == "see" and record.attention[0].shape == (1, 2, 3, 4)
    for invalid_weights, options, message in (
        (np.ones(3), {}, "not \\[3\\]"),
        (np.ones((2, 2)) * 3, {}, "the largest is 3"),
        (weights, {"rows": ["a"]}, r"rows has 1 labels, but the weights have 3"),
    ):
        with pytest.raises(UsageError, match=message):
            regard.see(invalid_weights, **options, path=tmp_path / "no.json")
