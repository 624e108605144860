"""Every result of a pipeline has a record: texts, attention, steps, probabilities, and what was left out."""

from __future__ import annotations

import copy
import itertools
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
from regard.interpret.record_request import PipelineRequest, record_request, task_name
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, TextModelClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.memory_network import MemoryNetworkReader
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.records.translation_records import StoredAlignmentHead
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.tagging import EncoderTagger, RecurrentTagger, TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.registry import TASKS
from regard.tasks.frozen_features import FeatureLayers, FrozenFeatures
from regard.tasks.story_qa import StoryVocabulary
from regard.tasks.text_model import TextPreprocessor
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer
from regard.view.figure import figure
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import DecodingStep, LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from regard.view.terminal_views import render_view
from tests.families import made as build_model

TEXT = "two small dogs run home"
PASSAGE = "the old dog slept . two small dogs run home and the cat sees them"
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=12)
TOKENIZER = with_mask_token(train_tokenizer([TEXT, PASSAGE, "where who a b c"] * 3, TokenizerConfig(kind="words")))
SPECIAL_TOKENS = SpecialTokens(TOKENIZER)
VOCAB_SIZE = TOKENIZER.vocab_size
TAGS = ["O", "B-X", "I-X"]
WITH_STEPS = ("translate", "seq2seq", "causal-lm", "tag", "tag, RNN", "masked-lm")  # a prediction for each target token
STORY = ("Mary went home.", "John went out.")
RNN_CONFIG = RnnTextConfig(vocab_size=VOCAB_SIZE, embedding_size=5, hidden_size=7, num_feature_layers=3, feature_size=8)


def build_encoder(**changes: object) -> Any:
    config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=24, num_token_types=2)
    return build_model(config.override(changes))


def build_translator(**changes: object) -> TranslationPipeline:
    config = TransformerConfig(
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        hidden_size=8,
        encoder=STACK,
        decoder=STACK,
        max_positions=40,
    )
    model = build_model(config.override(changes), seed=4)
    decoding = DecodingConfig(beam=3, max_length_b=3, max_length_a=0.5)
    return TranslationPipeline([model], TOKENIZER, TOKENIZER, decoding=decoding)


def build_seq2seq(**changes: object) -> TranslationPipeline:
    config = Seq2SeqConfig(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, embedding_size=7, hidden_size=9)
    decoding = DecodingConfig(beam=1, max_length_b=3)
    return TranslationPipeline([build_model(config.override(changes))], TOKENIZER, TOKENIZER, decoding=decoding)


def build_classifier() -> ClassificationPipeline:
    model = build_encoder(head="label", num_labels=3)
    return ClassificationPipeline(EncoderClassifier(model, SPECIAL_TOKENS, 20), {"labels": ["a", "b", "c"]})


def build_tagger() -> TokenClassificationPipeline:
    model = build_encoder(head="token", num_labels=3)
    return TokenClassificationPipeline(EncoderTagger(model, SPECIAL_TOKENS, 20), TAGS, {})


def build_question_answering() -> QuestionAnsweringPipeline:
    return QuestionAnsweringPipeline(build_encoder(head="span"), SPECIAL_TOKENS, 16, {"overlap": 4, "threshold": 0.0})


def build_fill_mask() -> FillMaskPipeline:
    return FillMaskPipeline(build_encoder(head="masked"), TOKENIZER, {}, 20)


def build_embedder(max_length: int, **changes: object) -> EmbeddingPipeline:
    model = build_encoder(max_positions=max(24, max_length), **changes)
    return EmbeddingPipeline(model, SPECIAL_TOKENS, SentenceTransformersConfig(), max_length=max_length)


def build_features() -> FrozenFeatures[Any]:
    model: Any = build_model(ElmoConfig(vocab_size=VOCAB_SIZE, hidden_size=4, boundary_id=TOKENIZER.eos_id))
    return FrozenFeatures(model, TOKENIZER, selection=FeatureLayers.select("mix", model), digest="x")


def build_rnn_preprocessor() -> TextPreprocessor:
    return TextPreprocessor(TOKENIZER, 16, build_features())


def build_rnn_classifier() -> ClassificationPipeline:
    model: Any = build_model(RnnClassifierConfig(num_labels=2, encoder=RNN_CONFIG))
    return ClassificationPipeline(TextModelClassifier(model, build_rnn_preprocessor()), {"labels": ["bad", "good"]})


def build_rnn_tagger() -> TokenClassificationPipeline:
    model: Any = build_model(RnnTaggerConfig(num_labels=3, encoder=RNN_CONFIG))
    return TokenClassificationPipeline(RecurrentTagger(model, build_rnn_preprocessor()), TAGS, {})


def build_story_qa() -> StoryQAPipeline:
    question = StoryQuestion("one", STORY, "Where is Mary?", "home")
    vocabulary = StoryVocabulary.from_questions(StoryQuestions.from_questions([question]))
    config = MemoryNetworkConfig(
        vocab_size=len(vocabulary.words), max_sentence_words=4, memory_size=5, embedding_size=6, hops=2
    )
    model: Any = build_model(config)
    return StoryQAPipeline(MemoryNetworkReader(model, vocabulary))


def build_generator() -> GenerationPipeline:
    config = GptConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=24, eos_id=TOKENIZER.eos_id)
    model: Any = build_model(config)
    return GenerationPipeline(model, TOKENIZER, {})


REQUEST = PipelineRequest(TEXT, PASSAGE, STORY)
PIPELINES: dict[str, tuple[Any, PipelineRequest, set[str]]] = {  # with a request and the names of recorded attention
    "translate": (build_translator, REQUEST, {"decoder.cross", "encoder.self", "decoder.self"}),
    "seq2seq": (build_seq2seq, REQUEST, {"decoder.attention"}),
    "causal-lm": (build_generator, PipelineRequest(TEXT, options={"max_new_tokens": 4}), {"decoder.self"}),
    "classify": (build_classifier, PipelineRequest(TEXT, pair="the cat sees"), {"encoder.self"}),
    "classify, RNN": (build_rnn_classifier, PipelineRequest(TEXT), {"pooling", "mix"}),
    "tag": (build_tagger, REQUEST, {"encoder.self"}),
    "tag, RNN": (build_rnn_tagger, REQUEST, {"mix"}),
    "answer": (build_question_answering, PipelineRequest("who slept", PASSAGE), {"encoder.self"}),
    "masked-lm": (build_fill_mask, PipelineRequest("two <mask> dogs <mask> home"), {"encoder.self"}),
    "embed": (lambda: build_embedder(20), REQUEST, {"encoder.self"}),
    "features": (lambda: FeaturePipeline(build_features()), REQUEST, {"mix"}),
    "story-qa": (build_story_qa, PipelineRequest("Where is Mary?", story=STORY), {"hop"}),
}


def attention_matrices(attention: AttentionRecord) -> list[np.ndarray]:
    """Attention weights of every head of every layer."""
    heads = itertools.product(attention.layers, range(attention.num_heads))
    return [attention.matrix(layer, head) for layer, head in heads]


@pytest.mark.parametrize("name", PIPELINES)
def test_every_result_has_a_record_with_the_attention_of_its_model(name: str) -> None:
    build_pipeline, request, attention_names = PIPELINES[name]
    pipeline = build_pipeline()
    record = record_request(pipeline, request)
    assert {attention.name for attention in record.attention} == attention_names
    assert record.task == task_name(pipeline)
    assert bool(record.steps) == (name in WITH_STEPS)
    for attention in record.attention:
        assert attention.is_causal == (attention.name == "decoder.self")
        for matrix in attention_matrices(attention):
            assert np.abs(matrix.sum(-1) - 1).max() < 2e-3
            if attention.is_causal:
                assert not np.triu(matrix, 1).any()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_record_is_restored_from_json(name: str) -> None:
    build_pipeline, request, _ = PIPELINES[name]
    record = record_request(build_pipeline(), request, provenance={"model": "small"})
    restored = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert restored.texts == record.texts
    assert restored.steps == tuple(DecodingStep.from_dict(step.to_dict()) for step in record.steps)
    assert restored.provenance["model"] == "small"
    assert restored.id == record.id


@pytest.mark.parametrize("name", WITH_STEPS)
def test_a_record_has_a_step_for_each_target_token(name: str) -> None:
    build_pipeline, request, _ = PIPELINES[name]
    record = record_request(build_pipeline(), request)
    tokens = record.texts["target"].tokens
    assert tokens
    for step, token in zip(record.steps, tokens, strict=True):
        assert step.token == token
        assert 0 <= step.probability <= 1
        _, best_probability = step.top[0]
        assert best_probability >= step.probability - 1e-6
        assert sum(probability for _, probability in step.top) < 1 + 1e-4


def test_every_pipeline_runs_requests() -> None:
    assert {task_name(build_pipeline()) for build_pipeline, _, _ in PIPELINES.values()} == set(TASKS)


def test_the_steps_of_a_translation_add_up_to_its_logprob_and_follow_the_beam() -> None:
    translation = build_translator()(TEXT)
    record = translation.record(candidates=3)
    assert [len(step.top) for step in record.steps] == [3] * len(record.steps)
    assert translation.steps[0].top(2) == list(translation.steps[0].top[:2])
    logprobs = np.log([step.probability for step in record.steps])
    if not translation.finished:  # the record also has the end, which the model did not generate
        logprobs = logprobs[:-1]
    assert translation.logprob == pytest.approx(float(logprobs.sum()), abs=1e-3)
    parents = {-1}  # the translation is a path through the beams
    for token, step in zip(record.texts["target"].tokens, record.steps, strict=True):
        parents = {index for index, (parent, name, _) in enumerate(step.beams) if parent in parents and name == token}
        assert parents


def test_stored_scores_and_positions_are_those_of_the_attention() -> None:
    record = build_translator()(TEXT).record(store_qkv="decoder.1.cross:1")
    (qkv,) = record.qkv
    weights = np.exp(qkv.scores - qkv.scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.abs(weights - record["decoder.cross"].matrix(1, 1)).max() < 1e-3
    assert record.positions is not None
    assert record.positions.kind == "sinusoidal"


@pytest.mark.parametrize("input_feeding", ["none", "context", "output"])
def test_the_math_view_shows_every_token_of_a_recurrent_decoder(input_feeding: str) -> None:
    record = build_seq2seq(input_feeding=input_feeding)("dogs run").record(store_qkv="best")
    (qkv,) = record.qkv
    num_rows = len(record.texts["target"].tokens)
    assert len(qkv.query) == num_rows > 1
    assert np.abs(qkv.weights - record["decoder.attention"].matrix(0, 0)).max() < 1e-3
    assert (qkv.scale, qkv.scaling) == (None, "no scaling")  # additive attention
    assert figure(record, "math", token=num_rows - 1).drawing.marks
    assert render_view(record, "math", token=num_rows - 1)


@pytest.mark.parametrize("normalization", ["softmax", "sparsemax", "top-k", "uniform"])
def test_the_math_view_has_the_weights_of_the_matrix_view(normalization: str) -> None:
    settings: dict[str, Any] = {"stack.attention_normalization": normalization}
    if normalization != "uniform":  # uniform weights have no scale
        settings["stack.attention_scale"] = 1.0
    if normalization == "top-k":
        settings["stack.attention_top_k"] = 4
    record = build_embedder(20, **settings).embed([TEXT]).record(store_qkv="best")
    restored = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    (qkv,) = restored.qkv
    name = "top-4" if normalization == "top-k" else normalization
    scale = 1.0 if "stack.attention_scale" in settings else qkv.query.shape[1] ** -0.5
    assert qkv.normalization == name
    assert (qkv.scaling == "no scaling") == (scale == 1.0)
    assert np.abs(qkv.weights - restored["encoder.self"].matrix(1, 0)).max() < 5e-3
    assert np.abs(qkv.scores - scale * (qkv.query @ qkv.key.T)).max() < 0.01 * np.abs(qkv.scores).max()


def test_a_record_states_residual_connections_and_visible_keys() -> None:
    translator = build_translator(**{"decoder.residual": False, "attention_window": 2})
    record = translator("Two dogs run. The cat sees.").record()
    assert [attention.has_residual for attention in record.attention] == [False, True, False]
    for attention in record.attention:
        assert np.array_equal(attention.visible_keys(1), (attention.matrix(1, 0) > 0).sum(axis=1))
    assert record["decoder.self"].visible_keys(0).max() == 3
    assert record["encoder.self"].visible_keys(0).max() == 5


def test_attention_maps_of_a_translation_are_found_by_site_and_head() -> None:
    translation = build_translator()(TEXT)
    record = translation.record()
    attention_map = translation.attention["decoder.cross"]
    assert attention_map.site == "decoder.1.cross"
    assert attention_map.rows[-1] == "</s>"
    assert np.allclose(attention_map.matrix, record["decoder.cross"].weights[1].mean(0), atol=1e-6)
    word_map = attention_map.to_words()
    assert word_map.columns == [*TEXT.split(), "</s>"]
    assert [row for row, _, _ in word_map.top()] == word_map.rows
    assert np.array_equal(translation.attention["decoder.0.cross:1"].matrix, record["decoder.cross"].matrix(0, 1))
    assert translation.attention["decoder.0.self"].columns[0] == "<s>"


def test_stored_queries_and_keys_give_the_same_weights() -> None:
    embeddings = build_embedder(80).embed([" ".join([TEXT] * 12)])
    stored = embeddings.record(store="weights").attention[0]
    computed = embeddings.record(store="queries").attention[0]
    assert stored.has_weights
    assert not computed.has_weights
    assert np.abs(stored.weights - computed.weights).max() < 1e-3


@pytest.mark.parametrize("storage", ["weights", "queries"])
def test_sentences_of_a_text_are_diagonal_blocks(storage: str) -> None:
    pipeline = build_translator()
    translation = pipeline("Two dogs run. The cat sees.")
    assert len(translation.sentences) == 2
    record = translation.record(store=storage, store_qkv="best")
    matrix = record["encoder.self"].matrix(1, 0)
    length = len(pipeline.recorder.source_ids(translation.sentences[0]))
    assert not matrix[:length, length:].any()
    assert not matrix[length:, :length].any()
    assert "in 2 parts" in record.omissions[0].reason
    assert not record.qkv


def test_the_alignment_head_of_an_older_seq2seq_folder_is_read() -> None:
    model = build_seq2seq().torch_models()[0]
    head = StoredAlignmentHead.from_json({"site": "decoder.0.cross", "head": 0}, model)
    assert head == StoredAlignmentHead("decoder.attention", 0, 0)


def test_all_models_of_an_ensemble_are_recorded() -> None:
    models = [*build_translator().torch_models(), *build_translator(norm_placement="post").torch_models()]
    ensemble = TranslationPipeline(models, TOKENIZER, TOKENIZER, decoding=DecodingConfig(beam=1, max_length_b=3))
    translation = ensemble(TEXT)
    names = [attention.name for attention in translation.record().attention]
    assert names[:3] == [name.removeprefix("1.") for name in names[3:]]
    assert names[3] == "1.decoder.cross"
    first = translation.attention["decoder.1.cross"]
    second = translation.attention["1.decoder.1.cross"]
    assert first.rows == second.rows
    assert not np.allclose(first.weights, second.weights, atol=1e-3)


def test_a_record_of_a_long_text_shows_one_window() -> None:
    label = build_classifier()(" ".join([TEXT] * 9))
    assert label.windows > 1
    (omission,) = label.record().omissions
    assert "45 tokens" in omission.reason
    assert omission.omitted == "all but its tokens 1 to 18"


def test_a_record_of_an_answer_has_the_probabilities_of_one_window() -> None:
    answer = build_question_answering().answer([("who slept", PASSAGE)], top_k=3)[0]
    record = answer.record()
    assert len(record.omissions) == 1
    assert isinstance(record.prediction, SpanProbabilities)
    tokens = record.texts["source"].tokens
    assert len(record.prediction.start) == len(tokens)
    assert sum(record.prediction.start) == pytest.approx(1, abs=1e-4)
    assert record.prediction.answers
    for first, last, text, _ in record.prediction.answers:
        assert " ".join(tokens[first : last + 1]).replace("▁", "").split() == text.split()


def test_a_record_of_a_story_lists_truncated_sentences() -> None:
    story = ["John went out."] * 4 + ["Mary went home."] * 3
    answer = build_story_qa().answer(story, "Where is Mary?")
    assert answer.truncated_sentences == 2
    record = answer.record()
    assert "first 2 sentences" in record.omissions[0].omitted
    assert isinstance(record.prediction, LabelProbabilities)


def test_ablated_heads_are_ablated_in_the_record() -> None:
    pipeline = build_translator()
    with ablate("encoder.0.self"):
        ablated_translation = pipeline(TEXT)
    ablated = ablated_translation.record()["encoder.self"].weights
    intact = pipeline(TEXT).record()["encoder.self"].weights
    assert np.allclose(ablated[0], intact[0], atol=1e-4)
    assert not np.allclose(ablated[1], intact[1], atol=1e-4)


def test_results_are_copied_and_pickled_without_their_model() -> None:
    tagged = build_tagger()(TEXT)
    restored = pickle.loads(pickle.dumps(tagged))
    assert restored == tagged
    assert restored.tags == tagged.tags
    with pytest.raises(UsageError, match="without its model"):
        restored.record()
    label = build_classifier()(TEXT)
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
    translation = build_translator()(TEXT)
    with pytest.raises(UsageError, match=message):
        _ = translation.attention[name]
    if name != "decoder.crss":
        with pytest.raises(UsageError, match=message):
            translation.record(store_qkv=name if ":" in name else f"{name}:0")


def test_a_result_is_saved_in_the_format_of_the_ending(tmp_path: Path) -> None:
    translation = build_translator()(TEXT)
    for ending in (".html", ".json", ".svg", ".tex"):
        assert translation.see(tmp_path / f"x{ending}").stat().st_size > 500
    assert Record.read(tmp_path / "x.json").texts == translation.record().texts
    assert translation.see(open_browser=False).read_text("utf-8").startswith("<!doctype html")
    assert translation.figure("matrix").svg.startswith("<svg")
    with pytest.raises(UsageError, match=r"must be one of \.html, \.json"):
        translation.see(tmp_path / "x.xyz")


def test_any_attention_weights_can_be_shown(tmp_path: Path) -> None:
    weights = np.full((2, 3, 4), 0.25)
    path = regard.see(weights, rows=["a", "b", "c"], cols=["d", "e", "f", "g"], path=tmp_path / "any.json")
    record = Record.read(path)
    assert record.task == "see"
    assert record.attention[0].shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (np.ones(3), {}, r"not \[3\]"),
        (np.ones((2, 2)) * 3, {}, "the largest is 3"),
        (np.full((2, 3, 4), 0.25), {"rows": ["a"]}, "rows has 1 labels, but the weights have 3"),
    ],
)
def test_arrays_that_are_no_attention_weights_are_rejected(
    weights: np.ndarray, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        regard.see(weights, **options, path=tmp_path / "invalid.json")
