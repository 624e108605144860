"""Fine-tuning GPT (Radford et al. 2018): learning, other libraries, the engine, resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.export.convert import convert
from regard.cli import run
from regard.config.runs import build_run
from regard.engine.library import unavailable_reason
from regard.errors import ConfigError
from regard.interpret.explainable import explainable_predictions
from regard.models.bert import Bert
from regard.pipeline.load import load_answerer, load_classifier, load_tagger
from regard.tasks.auxiliary_lm import AuxiliaryLMObjective, mean_lm_loss
from regard.tasks.classification import ClassificationObjective
from regard.tasks.question_answering import encode_questions
from regard.tasks.span_objective import SpanObjective
from regard.tasks.tagging import encode_words, word_spans
from regard.tasks.windows import EncodedTexts, encode_texts
from regard.text.special_tokens import SpecialTokens
from regard.training.run import train_run
from regard.view.record.record import Record
from tests.encoders import saved_encoder
from tests.gpts import saved_gpt
from tests.training.listener import sittings
from tests.training.task_data import SENTENCES, write_data

COMMON = {
    "training.threads": 1,
    "training.precision": "float32",
    "training.batch_tokens": 512,
    "training.learning_rate": 0.003,
    "training.steps": 60,
    "training.evaluate_every": 30,
    "fine_tuning.baseline": False,
}
TEXTS = ("the w3 was lovely", "w1", "the w5 was dull and the w6 was not")
HEADS = {"classify": "label", "tag": "token", "answer": "span"}
PREDICTED = {"classify": "lovely", "tag": "O O O B-x", "answer": "lovely"}
needs_engine = pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")


def fine_tune(folder: Path, task: str, base: str = "gpt", **changes: Any) -> Path:
    """Train with the data of a task, in `folder`; return the run's folder."""
    out = folder / changes.pop("out", task)
    settings = {**COMMON, "pretrained": str(folder / base), **changes}
    if "data.train" not in settings:
        settings["data.train"] = (str(write_data(folder, task)),)
    train_run(build_run(task, settings), out)
    return out


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a GPT, whose tokenizer is like that of GPT-2, and one model for each task."""
    folder = tmp_path_factory.mktemp("gpt")
    saved_gpt(folder / "gpt", SENTENCES, has_pad=False)
    for task in HEADS:
        fine_tune(folder, task, **{"fine_tuning.baseline": True})
    return folder


def read_metrics(folder: Path) -> dict[str, float]:
    metrics = json.loads((folder / "task.json").read_text())["metrics"]
    assert isinstance(metrics, dict)
    return metrics


def encode(task: str, folder: Path) -> EncodedTexts:
    """Texts as the model of a task reads them."""
    special_tokens = SpecialTokens(load_encoder(folder).tokenizer)
    if task == "classify":
        return encode_texts(special_tokens, TEXTS, None, 64)
    if task == "answer":
        return encode_questions(special_tokens, [("was w1", text) for text in TEXTS], 64, 8, is_causal=True)
    return encode_words(special_tokens, TEXTS, [word_spans(text.split()) for text in TEXTS], 64, "last")


def test_gpt_learns_to_classify_tag_and_answer(workspace: Path) -> None:
    assert all("valid_baseline" in read_metrics(workspace / task) for task in HEADS)
    assert read_metrics(workspace / "classify")["valid_accuracy"] == 100
    assert read_metrics(workspace / "tag")["valid_f1"] == 100
    assert read_metrics(workspace / "answer")["valid_f1"] == 100
    assert load_classifier(workspace / "classify", threads=1)("the w3 was lovely") == "lovely"
    assert load_tagger(workspace / "tag", threads=1)("the w3 was dull").tags == ["O", "O", "O", "B-x"]
    answerer = load_answerer(workspace / "answer", threads=1)
    assert [answerer("was w1", f"the w4 was {word}").text for word in ("dull", "lovely")] == ["dull", "lovely"]


def test_texts_end_with_the_token_that_ends_documents_and_padding_is_another_one(workspace: Path) -> None:
    base = load_encoder(workspace / "gpt", head="span").tokenizer
    for task in HEADS:
        loaded = load_encoder(workspace / task)
        assert (base.pad_id, loaded.tokenizer.pad_id) == (-1, base.vocab_size)
        assert loaded.config.pad_id == loaded.tokenizer.pad_id != loaded.tokenizer.eos_id
        assert loaded.config.vocab_size == base.vocab_size + 1
        assert all(row[-1] == base.eos_id for row in encode(task, workspace / task).rows)
    rows = encode_texts(SpecialTokens(loaded.tokenizer), ["w1"], ["w2"], 64).rows
    assert np.flatnonzero(rows[0] == base.eos_id).tolist() == [2, 5]


def test_a_word_is_tagged_at_its_last_subword_and_no_answer_stands_at_the_end(workspace: Path) -> None:
    special_tokens = SpecialTokens(load_encoder(workspace / "gpt", head="span").tokenizer)
    rows = encode_words(special_tokens, ["unheard lovely"], [word_spans(["unheard", "lovely"])], 64, "last")
    subwords = special_tokens.tokenizer.subwords(rows.rows[0].tolist())
    assert len(subwords) > 4 and [subwords[index] for index in rows.positions[0]] == ["d", "▁lovely"]
    assert json.loads((workspace / "tag/task.json").read_text())["word_token"] == "last"
    passages = encode("answer", workspace / "answer")
    assert isinstance(passages.no_answer_positions, list)
    assert passages.no_answer_positions == [len(row) - 1 for row in passages.rows]


def test_words_of_several_subwords_are_tagged_where_training_tagged_them(workspace: Path, tmp_path: Path) -> None:
    words = ("zurich", "kettle", "geneva", "basket")
    sentences = [f"the w{index % 5} was {words[index % 4]} too" for index in range(40)]
    tagged = [[(word, "B-x" if word in words[::2] else "O") for word in sentence.split()] for sentence in sentences]
    data = tmp_path / "data.conll"
    data.write_text("\n\n".join("\n".join(f"{word} {tag}" for word, tag in rows) for rows in tagged) + "\n")
    folder = fine_tune(workspace, "tag", out="words", **{"data.train": (str(data),), "data.valid": (str(data),)})
    tagger = load_tagger(folder, threads=1)
    assert read_metrics(folder)["valid_f1"] == 100
    assert [tagger(f"the w1 was {word} too").tags[3] for word in words] == ["B-x", "O", "B-x", "O"]


def assert_logits_are_those_of_transformers(task: str, folder: Path) -> None:
    """Compare logits of padded texts with those that transformers computes from the same folder."""
    transformers = pytest.importorskip("transformers")
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    hf_model = getattr(transformers, architecture).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [("was w1", text) for text in TEXTS] if task == "answer" else [*TEXTS]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = hf_model(**inputs)
    is_token = inputs["attention_mask"].numpy() > 0
    if task == "classify":
        expected = output.logits.numpy()
    elif task == "tag":
        expected = output.logits.numpy()[is_token]
    else:
        expected = np.stack([output.start_logits.numpy()[is_token], output.end_logits.numpy()[is_token]], axis=1)
    rows = encode(task, folder)
    tokens = rows.batch(np.arange(len(rows)))
    assert np.array_equal(inputs["input_ids"].numpy()[is_token], tokens.ids)
    assert np.abs(load_encoder(folder).model().logits(tokens) - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("task", HEADS)
def test_transformers_computes_the_same_logits_of_padded_texts(workspace: Path, task: str) -> None:
    assert_logits_are_those_of_transformers(task, workspace / task)


@needs_engine
@pytest.mark.parametrize("task", HEADS)
def test_the_engine_computes_logits_and_attention_of_torch(workspace: Path, task: str) -> None:
    rows = encode(task, workspace / task)
    tokens = rows.batch(np.arange(len(rows)))
    expected = load_encoder(workspace / task).model().logits(tokens)
    for precision, bound in (("float32", 1e-5), ("bf16", 0.05), ("int8", 0.1)):
        pipeline: Any = regard.load(workspace / task, precision=precision, threads=1, backend="engine")
        model = pipeline.model if task == "answer" else getattr(pipeline, "classifier", None) or pipeline.tagger
        model = getattr(model, "model", model)
        with trace() as captured:
            logits = model.logits(tokens)
        assert np.abs(logits - expected).max() < bound * np.abs(expected).max()
        assert [*captured] == ["encoder.0.self", "encoder.1.self"]
        weights = captured["encoder.1.self"].weights[0]
        assert np.array_equal(weights, np.tril(weights)) and np.allclose(weights[:, 2, :3].sum(-1), 1, atol=1e-3)


def predict(task: str, folder: Path) -> str:
    """Prediction for the first text."""
    pipeline: Any = regard.load(folder, threads=1)
    if task == "tag":
        return " ".join(pipeline("the w3 was dull").tags)
    return str(pipeline("was w1", TEXTS[0]).text if task == "answer" else pipeline(TEXTS[0]))


@needs_engine
@pytest.mark.parametrize("task", HEADS)
def test_it_is_converted_to_every_format_that_encoders_have(workspace: Path, tmp_path: Path, task: str) -> None:
    for format, precision in (("huggingface", None), ("regard", "int8")):
        out = tmp_path / f"{format}-{precision}"
        assert convert(workspace / task, out, format=format, precision=precision).model_type.startswith("gpt2")
        assert predict(task, out) == predict(task, workspace / task) == PREDICTED[task]


@pytest.mark.parametrize("task", HEADS)
def test_models_are_shown_explained_evaluated_and_studied(
    workspace: Path, tmp_path: Path, task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = str(workspace / task)
    data = str(write_data(tmp_path, task))
    passage = tmp_path / "passage.txt"
    passage.write_text(TEXTS[0])
    text = ["--passage", str(passage), "was w1"] if task == "answer" else [TEXTS[0]]
    explanations = [] if task == "tag" else ["--attribution", "--importance"]  # as of every tagger
    path = tmp_path / "record.json"
    assert run(["see", folder, *text, *explanations, "--out", str(path), "--threads", "1"]) == 0
    record = Record.read(path)
    attention = record["encoder.self"]
    assert attention.layers == (0, 1)
    if task == "classify":
        tokens = record.texts["source"].tokens
        occlusion = next(values for values in record.attribution if values.method == "occlusion")
        assert tokens[int(np.argmax(occlusion.values))].strip("▁ ") == "lovely"
    if explanations:
        assert len(record.attribution) == 3
        assert attention.importance is not None and np.abs(attention.importance["values"]).max() > 0
    assert run(["see", folder, *text, "--out", str(tmp_path / "page.html"), "--threads", "1"]) == 0
    assert run(["figure", folder, *text, "--view", "heads", "--out", str(tmp_path / "heads.svg")]) == 0
    capfd.readouterr()
    assert run(["evaluate", folder, data, "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["accuracy" if task == "classify" else "f1"] == 100
    assert run(["heads", folder, data, "--threads", "1", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["heads"]) == 4


def test_pairs_are_separated_and_calibrated_like_those_of_encoders(workspace: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    words = ("lovely", "dull")
    rows = [f"the w{index % 5} was {words[index % 2]},was it {words[index // 2 % 2]}" for index in range(80)]
    labels = ["yes" if (index % 2) == (index // 2 % 2) else "no" for index in range(80)]
    data.write_text("text,pair,label\n" + "".join(f"{row},{label}\n" for row, label in zip(rows, labels, strict=True)))
    columns = {"data.read.text": "text", "data.read.pair": "pair", "data.read.label": "label"}
    settings = {"data.train": (str(data),), "out": "pairs", "training.steps": 150, **columns}
    classifier = load_classifier(fine_tune(workspace, "classify", **settings), threads=1)
    assert classifier.task["has_pairs"] and classifier.task["temperature"] > 0
    assert classifier("the w1 was dull", "was it dull") == "yes"
    assert classifier("the w1 was dull", "was it lovely") == "no"


def test_a_prediction_is_explained_by_attention_to_the_last_token(workspace: Path) -> None:
    classifier = load_classifier(workspace / "classify", threads=1, backend="torch")
    (prediction,) = explainable_predictions(classifier, ["the w3 was lovely"])
    attention = prediction.attention()
    assert (
        attention.sum() == pytest.approx(1, abs=1e-3) and (attention > 0).all()
    )  # the last token attends to all of them


@pytest.mark.parametrize(
    ("task", "base", "lm_weight", "objective"),
    [
        ("classify", "gpt", 0.0, ClassificationObjective),
        ("tag", "gpt", 0.5, AuxiliaryLMObjective),
        ("answer", "neox", 0.0, SpanObjective),
    ],
)
def test_interrupted_runs_end_in_the_same_bits(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, task: str, base: str, lm_weight: float, objective: type
) -> None:
    if base == "neox":
        saved_gpt(workspace / base, SENTENCES, positions="rotary")
    settings = {"training.steps": 12, "training.save_every": 3, "fine_tuning.lm_weight": lm_weight}
    whole = fine_tune(workspace, task, base, out=f"{task}-whole", **settings)

    def train() -> None:
        fine_tune(workspace, task, base, out=f"{task}-killed", **settings)

    assert sittings(objective, train, monkeypatch, every=5) > 1
    expected = load_encoder(whole)
    killed = load_encoder(workspace / f"{task}-killed")
    assert expected.config == killed.config and expected.tokenizer.digest == killed.tokenizer.digest
    assert all(np.array_equal(killed.arrays[name], array) for name, array in expected.arrays.items())


def test_the_auxiliary_loss_keeps_a_model_of_language(workspace: Path) -> None:
    def lm_loss(folder: Path) -> float:
        loaded = load_encoder(folder)
        rows = encode_texts(SpecialTokens(loaded.tokenizer), SENTENCES, None, 64)
        tokens = rows.batch(np.arange(len(rows)))
        model = loaded.model()
        ids, batch = model.to_tensors(tokens)
        return mean_lm_loss(model, model(ids, batch), tokens, batch).item()

    trained = fine_tune(workspace, "classify", out="lm", **{"fine_tuning.lm_weight": 0.5})
    assert read_metrics(trained)["valid_accuracy"] == 100
    assert lm_loss(trained) < 0.5 * lm_loss(workspace / "classify")


def test_only_the_head_is_trained_on_last_tokens_where_the_model_is_frozen(workspace: Path) -> None:
    settings = {"fine_tuning.freeze_encoder": True, "training.steps": 200, "training.learning_rate": 0.02}
    folder = fine_tune(workspace, "classify", out="frozen", **settings)
    before = load_encoder(workspace / "gpt", head="span").arrays
    after = load_encoder(folder).arrays
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("encoder."))
    assert read_metrics(folder)["valid_accuracy"] > 75


def test_an_adapter_brings_the_row_of_the_padding_token(workspace: Path) -> None:
    settings = {"lora.rank": 2, "lora.keep_adapter": True, "training.steps": 6}
    folder = fine_tune(workspace, "classify", out="lora", **settings)
    expected = load_classifier(folder, threads=1)(TEXTS[0]).probabilities
    merged = load_classifier(folder / "adapter", threads=1)(TEXTS[0]).probabilities
    assert merged == pytest.approx(expected, abs=1e-5)


def test_a_student_reads_texts_as_its_teacher(workspace: Path) -> None:
    settings = {"distillation.student_layers": 1, "training.steps": 10}
    folder = fine_tune(workspace, "classify", "classify", out="student", **settings)
    assert load_encoder(folder).config.stack.num_layers == 1
    assert load_encoder(folder).tokenizer.digest == load_encoder(workspace / "classify").tokenizer.digest


def test_rotary_positions_and_a_padding_token_of_its_own(tmp_path: Path) -> None:
    saved_gpt(tmp_path / "neox", SENTENCES, positions="rotary")
    folder = fine_tune(tmp_path, "classify", "neox", **{"trainable.layer_lr_decay": 0.9})
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == ["GPTNeoXForSequenceClassification"]
    loaded = load_encoder(folder)
    assert fields["pad_token_id"] == loaded.tokenizer.pad_id == load_encoder(tmp_path / "neox").tokenizer.pad_id
    assert read_metrics(folder)["valid_accuracy"] == 100
    assert_logits_are_those_of_transformers("classify", folder)


def test_info_describes_a_causal_transformer(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(workspace / "classify")]) == 0
    out = capfd.readouterr().out
    assert "model: causal Transformer, 2 layers of 32" in out and "(type gpt2)" in out and "BERT" not in out
    assert "causal Transformer" in (workspace / "classify/README.md").read_text()


def test_a_folder_from_elsewhere_is_read_without_added_tokens(tmp_path: Path) -> None:
    from regard.checkpoint.encoder_dir import save_encoder

    saved_gpt(tmp_path / "gpt", SENTENCES)
    loaded = load_encoder(tmp_path / "gpt", head="token", labels=("O", "B-x"))
    assert isinstance(loaded.model(), Bert)
    save_encoder(
        tmp_path / "hf",
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        task="",
        metadata={},
        card="",
        labels=loaded.labels,
        preferred_type="gpt2",
    )
    tagger: Any = load_tagger(tmp_path / "hf", threads=1).tagger
    assert (tagger.special_tokens.num_special(), tagger.word_token) == (0, "first")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrained": "bert"}, r"--lm-weight \(0.5\) is for causal models.* bert reads in both directions"),
        ({"pretrained": "untied"}, "needs the token embedding as output projection, and .*untied has another one"),
        ({"fine_tuning.freeze_encoder": True}, r"--lm-weight \(0.5\) trains the whole model.*--freeze-encoder"),
        ({"distillation.student_layers": 1}, "leave out --freeze-encoder and distillation"),
        ({"pretrained": "", "architecture": "rnn"}, "fine_tuning.lm_weight"),
    ],
)
def test_language_modelling_is_refused_where_it_means_nothing(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved_encoder(Path("bert"), SENTENCES)
    saved_gpt(Path("untied"), SENTENCES, tie_embeddings=False)
    settings = {"pretrained": "untied", "fine_tuning.lm_weight": 0.5, **changes}
    with pytest.raises(ConfigError, match=message):
        fine_tune(tmp_path, "classify", **settings)
