"""Every pipeline's answer has a record: texts, attention over what was read, steps, verdicts, and what was left out."""

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
from regard.interpret.request import RUNNERS, PipelineRequest, record_request, task_name
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.records.translation import StoredAlignmentHead
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
from tests.families import made

TEXT = "two small dogs run home"
PASSAGE = "the old dog slept . two small dogs run home and the cat sees them"
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=12)
TOKENIZER = with_mask_token(train_tokenizer([TEXT, PASSAGE, "where who a b c"] * 3, TokenizerConfig(kind="words")))
FRAMING = SpecialTokens(TOKENIZER)
SIZE = TOKENIZER.vocab_size
TAGS = ["O", "B-X", "I-X"]


def encoder(**changes: object) -> Any:
    config = BertConfig(vocab_size=SIZE, hidden_size=8, stack=STACK, max_positions=24, num_token_types=2)
    return made(config.override(changes))


def translator(**changes: object) -> TranslationPipeline:
    config = TransformerConfig(
        source_vocab_size=SIZE, target_vocab_size=SIZE, hidden_size=8, encoder=STACK, decoder=STACK, max_positions=40
    )
    decoding = DecodingConfig(beam=3, max_length_b=3, max_length_a=0.5)
    return TranslationPipeline([made(config.override(changes), seed=4)], TOKENIZER, TOKENIZER, decoding=decoding)


def recurrent() -> TranslationPipeline:
    config = Seq2SeqConfig(source_vocab_size=SIZE, target_vocab_size=SIZE, embedding_size=7, hidden_size=9)
    return TranslationPipeline([made(config)], TOKENIZER, TOKENIZER, decoding=DecodingConfig(beam=1, max_length_b=3))


def features() -> ElmoFeatures:
    return ElmoFeatures(made(ElmoConfig(vocab_size=SIZE, hidden_size=4, boundary_id=TOKENIZER.eos_id)), TOKENIZER, "x")  # type: ignore[arg-type]


def own_classifier() -> ClassificationPipeline:
    reader = RnnTextConfig(vocab_size=SIZE, embedding_size=5, hidden_size=7, num_feature_layers=3, feature_size=8)
    model: Any = made(RnnClassifierConfig(num_labels=2, encoder=reader))
    return ClassificationPipeline(
        RecurrentClassifier(model, RnnPreprocessor(TOKENIZER, 16, features())), {"labels": ["bad", "good"]}
    )


def own_tagger() -> TokenClassificationPipeline:
    reader = RnnTextConfig(vocab_size=SIZE, embedding_size=5, hidden_size=7, num_feature_layers=3, feature_size=8)
    model: Any = made(RnnTaggerConfig(num_labels=3, encoder=reader))
    return TokenClassificationPipeline(RecurrentTagger(model, RnnPreprocessor(TOKENIZER, 16, features())), TAGS, {})


def stories() -> StoryQAPipeline:
    told = StoryQuestions.of([StoryQuestion("one", ("Mary went home.", "John went out."), "Where is Mary?", "home")])
    vocabulary = StoryVocabulary.of(told)
    model: Any = made(
        MemoryNetworkConfig(
            vocab_size=len(vocabulary.words), max_sentence_words=4, memory_size=5, embedding_size=6, hops=2
        )
    )
    return StoryQAPipeline(model, vocabulary)


def generator() -> GenerationPipeline:
    model: Any = made(GptConfig(vocab_size=SIZE, hidden_size=8, stack=STACK, max_positions=24, eos_id=TOKENIZER.eos_id))
    return GenerationPipeline(model, TOKENIZER, {})


ASKED = PipelineRequest(TEXT, PASSAGE, ("Mary went home.", "John went out."))
PIPELINES: dict[str, tuple[Any, PipelineRequest, set[str]]] = {
    "translate": (translator, ASKED, {"decoder.cross", "encoder.self", "decoder.self"}),
    "recurrent": (recurrent, ASKED, {"decoder.attention"}),
    "generate": (generator, PipelineRequest(TEXT, options={"max_new_tokens": 4}), {"decoder.self"}),
    "classify": (
        lambda: ClassificationPipeline(
            EncoderClassifier(encoder(head="label", num_labels=3), FRAMING, 20), {"labels": ["a", "b", "c"]}
        ),
        PipelineRequest(TEXT, pair="the cat sees"),
        {"encoder.self"},
    ),
    "classify, own": (own_classifier, PipelineRequest(TEXT), {"pooling", "mix"}),
    "tag": (
        lambda: TokenClassificationPipeline(EncoderTagger(encoder(head="token", num_labels=3), FRAMING, 20), TAGS, {}),
        ASKED,
        {"encoder.self"},
    ),
    "tag, own": (own_tagger, ASKED, {"mix"}),
    "answer": (
        lambda: QuestionAnsweringPipeline(encoder(head="span"), FRAMING, 16, {"overlap": 4, "threshold": 0.0}),
        PipelineRequest("who slept", PASSAGE),
        {"encoder.self"},
    ),
    "fill": (
        lambda: FillMaskPipeline(encoder(head="masked"), TOKENIZER, {}, 20),
        PipelineRequest("two <mask> dogs <mask> home"),
        {"encoder.self"},
    ),
    "embed": (
        lambda: EmbeddingPipeline(encoder(), FRAMING, SentenceTransformersConfig(), max_length=20),
        ASKED,
        {"encoder.self"},
    ),
    "features": (lambda: FeaturePipeline(features()), ASKED, {"mix"}),
    "stories": (stories, PipelineRequest("Where is Mary?", story=ASKED.story), {"hop"}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_answer_has_a_record_that_survives_its_json_form(name: str) -> None:
    build, asked, kinds = PIPELINES[name]
    pipeline = build()
    record = record_request(pipeline, asked, provenance={"model": "small"})
    assert {seen.name for seen in record.attention} == kinds
    assert record.task == task_name(pipeline)
    for seen in record.attention:
        for layer in seen.layers:
            for head in range(seen.heads):
                matrix = seen.matrix(layer, head)
                assert np.abs(matrix.sum(-1) - 1).max() < 2e-3
                assert not seen.causal or not np.triu(matrix, 1).any()
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again.texts == record.texts
    assert again.steps == tuple(DecodingStep.from_dict(one.to_dict()) for one in record.steps)
    assert again.made["model"] == "small" and again.id == record.id
    if record.steps:
        assert len(record.steps) == len(record.texts["target"].tokens)
        for step, token in zip(record.steps, record.texts["target"].tokens, strict=True):
            assert step.token == token
            assert 0 <= step.probability <= 1 and step.top[0][1] >= step.probability - 1e-6
            assert sum(share for _, share in step.top) < 1 + 1e-4


def test_a_pipeline_of_every_kind_is_asked() -> None:
    assert {type(build()) for build, _, _ in PIPELINES.values()} == set(RUNNERS)


def test_a_translation_knows_its_steps_its_beams_and_where_it_looked() -> None:
    said = translator()(TEXT)
    record = said.record(store_qkv="decoder.1.cross:1", top_k=3)
    assert [len(step.top) for step in record.steps] == [3] * len(record.steps)
    chances = np.log([step.probability for step in record.steps])
    assert said.logprob == pytest.approx(float(chances.sum()), abs=1e-3)
    last = {-1}  # the winner is a path of the tree
    for token, step in zip(record.texts["target"].tokens, record.steps, strict=True):
        last = {at for at, (parent, name, _) in enumerate(step.beams) if parent in last and name == token}
        assert last
    (inside,) = record.inside
    weights = np.exp(inside.scores - inside.scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.abs(weights - record["decoder.cross"].matrix(1, 1)).max() < 1e-3
    assert record.places is not None and record.places.kind == "sinusoidal"
    sight = said.attention["decoder.cross"]
    assert sight.site == "decoder.1.cross" and sight.rows[-1] == "</s>"
    assert np.allclose(sight.matrix, record["decoder.cross"].weights[1].mean(0), atol=1e-6)
    words = sight.to_words()
    assert words.columns == [*TEXT.split(), "</s>"]
    assert [row for row, _, _ in words.top()] == words.rows
    assert np.array_equal(said.attention["decoder.0.cross:1"].matrix, record["decoder.cross"].matrix(0, 1))
    assert said.attention["decoder.0.self"].columns[0] == "<s>"
    assert said.steps[0].top(2) == list(said.steps[0].top[:2])


def test_queries_kept_instead_of_weights_give_the_same_matrices() -> None:
    model = EmbeddingPipeline(encoder(max_positions=80), FRAMING, SentenceTransformersConfig(), max_length=80)
    answer = model.embed([" ".join([TEXT] * 12)])
    whole, less = (answer.record(store=keep).attention[0] for keep in ("weights", "queries"))
    assert whole.has_weights and not less.has_weights
    assert np.abs(whole.weights - less.weights).max() < 1e-3


def test_parts_of_a_text_stand_along_the_diagonal() -> None:
    model = translator()
    said = model("Two dogs run. The cat sees.")
    assert len(said.sentences) == 2
    for keep in ("weights", "queries"):
        record = said.record(store=keep, store_qkv="best")
        seen = record["encoder.self"]
        first = len(model.recorder.source_ids(said.sentences[0]))
        assert not seen.matrix(1, 0)[:first, first:].any() and not seen.matrix(1, 0)[first:, :first].any()
        assert "in 2 parts" in record.cut[0].why and not record.inside


def test_the_aligning_head_of_an_older_recurrent_folder_is_known() -> None:
    model = recurrent().models[0]
    assert StoredAlignmentHead.from_json({"site": "decoder.0.cross", "head": 0}, model) == StoredAlignmentHead(
        "decoder.attention", 0, 0
    )


def test_models_that_decide_together_are_all_seen() -> None:
    models = [*translator().models, *translator(norm="after").models]
    said = TranslationPipeline(models, TOKENIZER, TOKENIZER, decoding=DecodingConfig(beam=1, max_length_b=3))(TEXT)
    names = [seen.name for seen in said.record().attention]
    assert names[:3] == [name.removeprefix("1.") for name in names[3:]] and names[3] == "1.decoder.cross"
    first, second = said.attention["decoder.1.cross"], said.attention["1.decoder.1.cross"]
    assert first.rows == second.rows and not np.allclose(first.weights, second.weights, atol=1e-3)


def test_what_is_left_out_is_said() -> None:
    long = " ".join([TEXT] * 9)
    label = PIPELINES["classify"][0]()(long)
    (cut,) = label.record().cut
    assert "45 tokens" in cut.why and cut.dropped == "all but its tokens 1 to 18"
    assert label.windows > 1
    answer = PIPELINES["answer"][0]().answer([("who slept", PASSAGE)], top_k=3)[0]
    record = answer.record()
    assert isinstance(record.verdict, SpanProbabilities) and len(record.cut) == 1
    tokens = record.texts["source"].tokens
    assert len(record.verdict.start) == len(tokens)
    assert sum(record.verdict.start) == pytest.approx(1, abs=1e-4)
    for first, last, text, _ in record.verdict.answers:
        assert " ".join(tokens[first : last + 1]).replace("▁", "").split() == text.split()
    told = stories().answer(["John went out."] * 4 + ["Mary went home."] * 3, "Where is Mary?")
    assert told.forgotten == 2 and "first 2 sentences" in told.record().cut[0].dropped
    assert isinstance(told.record().verdict, LabelProbabilities)


def test_heads_that_were_off_are_off_in_the_record() -> None:
    model = translator()
    with ablate("encoder.0.self"):
        said = model(TEXT)
    switched, plain = (one.record()["encoder.self"].weights for one in (said, model(TEXT)))
    assert np.allclose(switched[0], plain[0], atol=1e-4) and not np.allclose(switched[1], plain[1], atol=1e-4)


def test_answers_are_copied_and_stored_without_their_model() -> None:
    tagged = PIPELINES["tag"][0]()(TEXT)
    again = pickle.loads(pickle.dumps(tagged))
    assert again == tagged and again.tags == tagged.tags
    with pytest.raises(UsageError, match="without its model"):
        again.record()
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
def test_a_site_or_head_that_is_not_there_is_named_with_the_nearest(name: str, message: str) -> None:
    said = translator()(TEXT)
    with pytest.raises(UsageError, match=message):
        _ = said.attention[name]
    if name != "decoder.crss":
        with pytest.raises(UsageError, match=message):
            said.record(store_qkv=name if ":" in name else f"{name}:0")


def test_it_is_seen_as_a_file_by_its_ending(tmp_path: Path) -> None:
    said = translator()(TEXT)
    for ending in (".html", ".json", ".svg", ".tex"):
        assert said.see(tmp_path / f"x{ending}").stat().st_size > 500
    assert Record.read(tmp_path / "x.json").texts == said.record().texts
    assert said.see(open_browser=False).read_text("utf-8").startswith("<!doctype html")
    assert said.figure("align").svg.startswith("<svg")
    with pytest.raises(UsageError, match=r"must be one of \.html, \.json"):
        said.see(tmp_path / "x.xyz")


def test_any_weights_can_be_seen(tmp_path: Path) -> None:
    weights = np.full((2, 3, 4), 0.25)
    place = regard.see(weights, rows=["a", "b", "c"], cols=["d", "e", "f", "g"], path=tmp_path / "any.json")
    record = Record.read(place)
    assert record.task == "see" and record.attention[0].shape == (1, 2, 3, 4)
    for given, options, message in (
        (np.ones(3), {}, "not \\[3\\]"),
        (np.ones((2, 2)) * 3, {}, "the largest is 3"),
        (weights, {"rows": ["a"]}, r"rows \(1\) must be as many"),
    ):
        with pytest.raises(UsageError, match=message):
            regard.see(given, **options, path=tmp_path / "no.json")
