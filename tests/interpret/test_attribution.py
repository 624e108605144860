"""Attribution: gradients that add up, occlusion as a check, orders better than random, one value per token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.attention.trace import trace
from regard.config.data import TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.errors import UsageError
from regard.interpret.attribution import (
    Explanation,
    add_attribution,
    explain,
    rank_correlation,
)
from regard.interpret.explainable import explainable_predictions
from regard.interpret.gradients import replace_embeddings
from regard.models import build_model
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, TextModelClassifier
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.text_model import TextPreprocessor
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer
from regard.view.record.parts import METHODS
from regard.view.record.record import Record

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "is", "quite", "and"]


def encoder(head: str, num_labels: int = 0, has_residual: bool = True) -> tuple[Bert, SpecialTokens]:
    special_tokens = SpecialTokens(
        with_mask_token(train_tokenizer([" ".join(WORDS)] * 9, TokenizerConfig(kind="words")))
    )
    config = BertConfig(
        vocab_size=special_tokens.tokenizer.vocab_size,
        hidden_size=16,
        stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=24, residual=has_residual),
        max_positions=48,
        head=head,
        num_labels=num_labels,
        dropout=0.0,
        attention_dropout=0.0,
        classifier_dropout=0.0,
    )
    model = Bert(config)
    initialize_bert(model, 5, 0.15)
    return model, special_tokens


@pytest.fixture(scope="module")
def classifier() -> ClassificationPipeline:
    """A classifier that has learned that a single word is decisive."""
    torch.set_num_threads(1)
    model, special_tokens = encoder("label", 2)
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        labels = rng.integers(0, 2, 32)
        texts = []
        for label in labels:
            words = rng.choice(WORDS[2:], 5).tolist()
            words.insert(int(rng.integers(0, 6)), WORDS[label])
            texts.append(" ".join(words))
        tokens, _ = special_tokens.encode_batch(texts, max_length=48)
        ids, packed = model.to_tensors(tokens)
        logits = model.head_logits(model(ids, packed, model.token_type_tensor(tokens)), packed)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    return ClassificationPipeline(
        EncoderClassifier(model.eval().pack(), special_tokens, 48), {"labels": ["up", "down"]}
    )


def by_method(explanation: Explanation) -> dict[str, np.ndarray]:
    return {attribution.method: np.array(attribution.values) for attribution in explanation.attributions}


def test_the_decisive_word_has_the_largest_attribution_by_every_method(classifier: ClassificationPipeline) -> None:
    text = "the film was good and a plot is quite the film"
    explanation = explain(classifier, text, steps=64)
    assert explanation.target == "up" == classifier(text)
    values = by_method(explanation)
    assert [*values] == list(METHODS)
    tokens = classifier.classifier.special_tokens.encode(text)  # type: ignore[attr-defined]
    decisive = tokens.word_ids.index(3)
    for method in ("integrated gradients", "occlusion"):
        assert values[method].argmax() == decisive
        assert len(values[method]) == len(tokens.ids)
        assert not values[method][[0, -1]].any()  # special tokens are never replaced
    assert explanation.gap < 0.02  # integrated gradients add up to the whole change
    agreement = rank_correlation(np.abs(values["integrated gradients"]), np.abs(values["occlusion"]))
    assert agreement is not None and agreement > 0.6
    assert explanation.deletion["occlusion"] > explanation.deletion["random"]
    assert explanation.deletion["integrated gradients"] > explanation.deletion["random"]
    assert all(
        attribution.agreement is not None and -1 <= attribution.agreement <= 1
        for attribution in explanation.attributions
    )
    other_label = by_method(explain(classifier, text, label="down", methods=["occlusion"]))["occlusion"]
    assert other_label[decisive] < 0


@pytest.mark.parametrize("has_residual", [True, False])
def test_rollout_mixes_the_identity_in_only_where_there_are_residual_connections(has_residual: bool) -> None:
    model, special_tokens = encoder("label", 2, has_residual)
    pipeline = ClassificationPipeline(EncoderClassifier(model.eval(), special_tokens, 48), {"labels": ["up", "down"]})
    (prediction,) = explainable_predictions(pipeline, ["the film was good"])
    with trace(full_precision=True) as captured:
        model.encode(Tokens.from_rows([prediction.input_ids]))
    rollout = np.eye(len(prediction.input_ids))
    for site in captured:
        step = captured[site].weights[0].mean(axis=0)
        rollout = (step / 2 + np.eye(len(rollout)) / 2 if has_residual else step) @ rollout
    np.testing.assert_allclose(prediction.attention(), rollout[0], atol=1e-3)


def test_integrated_gradients_of_one_step_follow_the_path_from_the_baseline(
    classifier: ClassificationPipeline,
) -> None:
    text = "the film was good and a plot"
    one_step = by_method(explain(classifier, text, methods=["integrated gradients"], steps=1))["integrated gradients"]
    many_steps = by_method(explain(classifier, text, methods=["integrated gradients"]))["integrated gradients"]
    assert not one_step[[0, -1]].any()  # special tokens are their own baseline
    assert one_step.argmax() == many_steps.argmax() == 4


def test_gradient_times_input_is_the_derivative_along_the_embedding(classifier: ClassificationPipeline) -> None:
    text = "the plot was bad and quite a film"
    values = by_method(explain(classifier, text, methods=["gradient×input"]))["gradient×input"]
    encoder_classifier = classifier.classifier
    assert isinstance(encoder_classifier, EncoderClassifier)
    model = encoder_classifier.model
    tokens, _ = encoder_classifier.special_tokens.encode_batch([text], max_length=48)
    label_index = classifier.labels.index(classifier(text))
    position = 4
    epsilon = 1e-3
    logprobs = []
    for sign in (1, -1):

        def hook(module: object, inputs: object, output: torch.Tensor, sign: int = sign) -> torch.Tensor:
            changed = output.clone()
            changed[position] *= 1 + sign * epsilon
            return changed

        handle = model.token_embedding.register_forward_hook(hook)
        with torch.no_grad():
            ids, packed = model.to_tensors(tokens)
            logits = model.head_logits(model(ids, packed, model.token_type_tensor(tokens)), packed)
        handle.remove()
        logprobs.append(torch.log_softmax(logits, dim=1)[0, label_index].item())
    assert values[position] == pytest.approx((logprobs[0] - logprobs[1]) / (2 * epsilon), rel=0.02, abs=1e-4)


def test_an_answer_and_no_answer() -> None:
    model, special_tokens = encoder("span", 2)
    pipeline = QuestionAnsweringPipeline(model.eval().pack(), special_tokens, 24, {"threshold": -1e9})
    passage = "the film was good and the plot is bad and a film is quite good and the plot was the plot"
    explanation = explain(pipeline, "film is", passage, steps=48)
    assert explanation.target == pipeline("film is", passage).text
    assert explanation.gap < 0.1
    assert all(len(attribution.values) <= 24 for attribution in explanation.attributions)
    pipeline.threshold = 1e9
    no_answer = explain(pipeline, "film is", passage, methods=["occlusion"])
    assert no_answer.target == "no answer" and len(no_answer.attributions) == 1


def test_a_translation_sentence_by_sentence(pipeline: TranslationPipeline) -> None:
    translation = pipeline("dog cat. tree house river?")
    explanation = explain(pipeline, translation.source, translation, steps=48)
    values = by_method(explanation)
    record = translation.record()
    assert all(len(token_values) == len(record.texts["source"].tokens) for token_values in values.values())
    assert explanation.target == str(translation) and explanation.gap < 0.1
    assert explanation.deletion["occlusion"] > explanation.deletion["random"]
    losses = values["occlusion"]
    logprob = pipeline.score([translation.source], [translation])[0].logprob
    is_special = np.array(record.texts["source"].special)
    assert not losses[is_special].any() and (losses[~is_special] > 0).mean() > 0.8
    assert logprob < 0
    explained = add_attribution(record, pipeline, translation.source, translation, methods=["occlusion"])
    assert explained.attribution[0].values == tuple(losses.tolist()) and not explained.omissions
    assert Record.from_dict(explained.to_dict()).attribution[0].agreement == pytest.approx(
        explained.attribution[0].agreement, abs=1e-5
    )
    mismatched = add_attribution(
        pipeline("dog.").record(), pipeline, translation.source, translation, methods=["occlusion"]
    )
    assert not mismatched.attribution and mismatched.omissions[-1].omitted == "attribution"
    own = explain(pipeline, translation.source, methods=["occlusion"])  # its own translation
    np.testing.assert_allclose(by_method(own)["occlusion"], losses)


def test_explanations_of_several_sentences_are_joined(pipeline: TranslationPipeline) -> None:
    translation = pipeline("dog cat.\ntree house river?")
    assert len(translation.sentences) == 2
    (joined,) = explain(pipeline, translation.source, translation, methods=["occlusion"]).attributions
    sentences = [
        explain(pipeline, sentence.source, sentence.text, methods=["occlusion"]).attributions[0]
        for sentence in translation.sentences
    ]
    assert joined.target == " ".join(sentence.target for sentence in sentences)
    assert joined.text_name == "source"
    np.testing.assert_allclose(joined.values, [*sentences[0].values, *sentences[1].values], atol=1e-5)
    assert len(joined.values) == len(translation.record().texts["source"].tokens)


def test_an_rnn_classifier() -> None:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 9, TokenizerConfig(kind="words"))
    encoder_config = RnnTextConfig(vocab_size=tokenizer.vocab_size, embedding_size=5, hidden_size=7)
    model = build_model(RnnClassifierConfig(num_labels=2, encoder=encoder_config, pooling="attention")).eval()
    pipeline = ClassificationPipeline(
        TextModelClassifier(model, TextPreprocessor(tokenizer, 32)), {"labels": ["up", "down"]}
    )
    explanation = explain(pipeline, "the good film was bad", steps=64)
    values = by_method(explanation)
    assert explanation.gap < 0.05 and {len(token_values) for token_values in values.values()} == {
        len(tokenizer.encode("the good film was bad").ids)
    }
    intact, baseline = (
        np.log(model.probabilities(_text_batch(ids))[0, pipeline.labels.index(explanation.target)])
        for ids in (tokenizer.encode("the good film was bad").ids, [tokenizer.unk_id] * 5)
    )
    assert values["integrated gradients"].sum() == pytest.approx(intact - baseline, abs=5e-3)


def _text_batch(ids: list[int]) -> object:
    from regard.models.text_classifier import TextBatch

    return TextBatch(Tokens.from_rows([ids]))


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == -1
    assert rank_correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None
    assert rank_correlation(np.array([1.0, 2]), np.array([1.0, 2])) is None
    correlation = rank_correlation(np.array([1.0, 2, 2, 4]), np.array([1.0, 3, 2, 4]))
    assert correlation == pytest.approx(0.9486833, abs=1e-6)  # ties share their ranks


def test_wrong_requests_are_rejected(classifier: ClassificationPipeline, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean occlusion"):
        explain(classifier, "good", methods=["oclusion"])
    with pytest.raises(UsageError, match="no label 'sideways'"):
        explain(classifier, "good", label="sideways")
    with pytest.raises(UsageError, match="attribution is for labels"):
        explain(object(), "good")


def test_replaced_embeddings_are_not_those_of_another_thread() -> None:
    embedding = torch.nn.Embedding(5, 3)
    ids = torch.tensor([1, 2])
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        with replace_embeddings(embedding, torch.zeros(2, 3)):
            assert torch.equal(pool.submit(embedding, ids).result(), embedding.weight[ids])
            assert torch.equal(embedding(ids), torch.zeros(2, 3))
        assert torch.equal(embedding(ids), embedding.weight[ids])
