"""Attribution: gradients that add up, occlusion as a plain check, order that beats chance, one value a token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config.data import TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.errors import UsageError
from regard.interpret.attribution import Explanation, add_attribution, explain, rank_correlation
from regard.models import build_model
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.rnn_text import RnnPreprocessor
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer
from regard.tokens import Tokens
from regard.view.record.parts import METHODS
from regard.view.record.record import Record

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "is", "quite", "and"]


def encoder(head: str, labels: int = 0) -> tuple[Bert, SpecialTokens]:
    framing = SpecialTokens(with_mask_token(train_tokenizer([" ".join(WORDS)] * 9, TokenizerConfig(kind="words"))))
    config = BertConfig(
        vocab_size=framing.tokenizer.vocab_size,
        hidden_size=16,
        stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=24),
        max_positions=48,
        head=head,
        num_labels=labels,
        dropout=0.0,
        attention_dropout=0.0,
        classifier_dropout=0.0,
    )
    model = Bert(config)
    initialize_bert(model, 3, 0.15)
    return model, framing


@pytest.fixture(scope="module")
def mood() -> ClassificationPipeline:
    """A classifier that has learned that one word decides."""
    torch.set_num_threads(1)
    model, framing = encoder("label", 2)
    chance = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        wanted = chance.integers(0, 2, 32)
        texts = []
        for label in wanted:
            words = chance.choice(WORDS[2:], 5).tolist()
            words.insert(int(chance.integers(0, 6)), WORDS[label])
            texts.append(" ".join(words))
        tokens, _ = framing.encode_batch(texts, max_length=48)
        ids, rows = model.to_tensors(tokens)
        scores = model.head_logits(model(ids, rows, model.token_type_tensor(tokens)), rows)
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(wanted))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    return ClassificationPipeline(EncoderClassifier(model.eval().pack(), framing, 48), {"labels": ["up", "down"]})


def by_method(found: Explanation) -> dict[str, np.ndarray]:
    return {one.method: np.array(one.values) for one in found.attributions}


def test_the_word_that_decides_counts_most_in_every_way(mood: ClassificationPipeline) -> None:
    text = "the film was good and a plot is quite the film"
    found = explain(mood, text, steps=64)
    assert found.of == "up" == mood(text)
    values = by_method(found)
    assert [*values] == list(METHODS)
    tokens = mood.classifier.special_tokens.encode(text)  # type: ignore[attr-defined]
    decides = tokens.word_ids.index(3)
    for method in ("integrated gradients", "occlusion"):
        assert values[method].argmax() == decides
        assert len(values[method]) == len(tokens.ids)
        assert not values[method][[0, -1]].any()  # special tokens are never blanked
    assert found.gap < 0.02  # integrated gradients add up to the whole change
    agreement = rank_correlation(np.abs(values["integrated gradients"]), np.abs(values["occlusion"]))
    assert agreement is not None and agreement > 0.6
    assert found.deletion["occlusion"] > found.deletion["random"]
    assert found.deletion["integrated gradients"] > found.deletion["random"]
    assert all(one.agreement is not None and -1 <= one.agreement <= 1 for one in found.attributions)
    other = by_method(explain(mood, text, label="down", methods=["occlusion"]))["occlusion"]
    assert other[decides] < 0


def test_gradient_times_input_is_the_derivative_along_the_word_vector(mood: ClassificationPipeline) -> None:
    text = "the plot was bad and quite a film"
    found = by_method(explain(mood, text, methods=["gradient×input"]))["gradient×input"]
    reader = mood.classifier
    assert isinstance(reader, EncoderClassifier)
    model, framing = reader.model, reader.special_tokens
    tokens, _ = framing.encode_batch([text], max_length=48)
    number = mood.labels.index(mood(text))
    place, step = 4, 1e-3
    ends = []
    for sign in (1, -1):

        def hook(module: object, inputs: object, output: torch.Tensor, sign: int = sign) -> torch.Tensor:
            changed = output.clone()
            changed[place] *= 1 + sign * step
            return changed

        handle = model.words.register_forward_hook(hook)
        with torch.no_grad():
            ids, rows = model.to_tensors(tokens)
            scores = model.head_logits(model(ids, rows, model.token_type_tensor(tokens)), rows)
        handle.remove()
        ends.append(torch.log_softmax(scores, dim=1)[0, number].item())
    assert found[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02, abs=1e-4)


def test_an_answer_and_no_answer() -> None:
    model, framing = encoder("span", 2)
    pipeline = QuestionAnsweringPipeline(model.eval().pack(), framing, 24, {"threshold": -1e9})
    passage = "the film was good and the plot is bad and a film is quite good and the plot was the plot"
    found = explain(pipeline, "film is", passage, steps=48)
    assert found.of == pipeline("film is", passage).text
    assert found.gap < 0.1
    assert all(len(one.values) <= 24 for one in found.attributions)
    pipeline.threshold = 1e9
    nothing = explain(pipeline, "film is", passage, methods=["occlusion"])
    assert nothing.of == "no answer" and len(nothing.attributions) == 1


def test_a_translation_sentence_by_sentence(pipeline: TranslationPipeline) -> None:
    said = pipeline("dog cat. tree house river?")
    found = explain(pipeline, said.source, said, steps=48)
    values, record = by_method(found), said.record()
    assert all(len(one) == len(record.texts["source"].tokens) for one in values.values())
    assert found.of == str(said) and found.gap < 0.1
    assert found.deletion["occlusion"] > found.deletion["random"]
    lost = values["occlusion"]
    plain = pipeline.score([said.source], [said])[0].logprob
    special = np.array(record.texts["source"].special)
    assert not lost[special].any() and (lost[~special] > 0).mean() > 0.8
    assert plain < 0
    shown = add_attribution(record, pipeline, said.source, said, methods=["occlusion"])
    assert shown.attribution[0].values == tuple(lost.tolist()) and not shown.cut
    assert Record.from_dict(shown.to_dict()).attribution[0].agreement == pytest.approx(
        shown.attribution[0].agreement, abs=1e-5
    )
    other = add_attribution(pipeline("dog.").record(), pipeline, said.source, said, methods=["occlusion"])
    assert not other.attribution and other.cut[-1].dropped == "attribution"
    again = explain(pipeline, said.source, methods=["occlusion"])  # its own translation
    np.testing.assert_allclose(by_method(again)["occlusion"], lost)


def test_a_reader_with_words_of_its_own() -> None:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 9, TokenizerConfig(kind="words"))
    reading = RnnTextConfig(vocab_size=tokenizer.vocab_size, embedding_size=5, hidden_size=7)
    model = build_model(RnnClassifierConfig(num_labels=2, encoder=reading, pooling="attention")).eval()
    pipeline = ClassificationPipeline(
        RecurrentClassifier(model, RnnPreprocessor(tokenizer, 32)), {"labels": ["up", "down"]}
    )
    found = explain(pipeline, "the good film was bad", steps=64)
    values = by_method(found)
    assert found.gap < 0.05 and {len(one) for one in values.values()} == {
        len(tokenizer.encode("the good film was bad").ids)
    }
    whole, blank = (
        np.log(model.probabilities(_texts(ids))[0, pipeline.labels.index(found.of)])
        for ids in (tokenizer.encode("the good film was bad").ids, [tokenizer.unk_id] * 5)
    )
    assert values["integrated gradients"].sum() == pytest.approx(whole - blank, abs=5e-3)


def _texts(ids: list[int]) -> object:
    from regard.models.rnn_text import TextBatch

    return TextBatch(Tokens.from_rows([ids]))


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == -1
    assert rank_correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None
    assert rank_correlation(np.array([1.0, 2]), np.array([1.0, 2])) is None
    found = rank_correlation(np.array([1.0, 2, 2, 4]), np.array([1.0, 3, 2, 4]))
    assert found == pytest.approx(0.9486833, abs=1e-6)  # ties share their ranks


def test_bad_wishes(mood: ClassificationPipeline, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean occlusion"):
        explain(mood, "good", methods=["oclusion"])
    with pytest.raises(UsageError, match="no label 'sideways'"):
        explain(mood, "good", label="sideways")
    with pytest.raises(UsageError, match="attribution is for labels"):
        explain(object(), "good")
