"""Distillation of fine-tuned encoders: copied layers, losses, comparison with the teacher, resuming, inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_files import folder_digest
from regard.cli import run
from regard.config.models import BertConfig, StackConfig
from regard.config.runs import build_run
from regard.config.training import DistillationConfig
from regard.errors import ConfigError
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.load import load_classifier
from regard.tasks.classification import ClassificationObjective
from regard.tasks.distillation import (
    DistillationObjective,
    distillation_loss,
    select_layers,
    student_config,
    student_weights,
)
from regard.tasks.encoder_states import encode_for_training
from regard.tasks.windows import EncodedTexts
from regard.training.experiments.distillation import timing_sample
from regard.training.run import train_run
from tests.encoders import saved_encoder
from tests.training.experiments.test_fine_tuning import FAST, draw_moods, draw_questions, draw_sentences

Output = pytest.CaptureFixture[str]


def save_deeper_encoder(folder: Path, source: Path, num_layers: int = 4) -> None:
    """Save an encoder like another, with more layers and random weights."""
    loaded = load_encoder(source)
    model = Bert(loaded.config.override({"stack.num_layers": num_layers}))
    initialize_bert(model, 1, 0.1)
    save_encoder(folder, model.config, model.state_dict(), tokenizer=loaded.tokenizer, task="", metadata={}, card="")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data for all tasks and an encoder of four layers."""
    folder = tmp_path_factory.mktemp("distilling")
    for name, rows in (("train", draw_moods(160)), ("test", draw_moods(40, 2))):
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        several = [f"{text}\t{label}{'; w0' if 'w0' in text else ''}\n" for text, label in rows]
        (folder / f"{name}-several.tsv").write_text("".join(several))
    text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in sentence) for sentence in draw_sentences(120))
    (folder / "train.conll").write_text(text + "\n")
    (folder / "train.json").write_text(json.dumps(draw_questions(100)))
    texts = [text for text, _ in draw_moods(50)]
    texts += [" ".join(word for word, _ in sentence) for sentence in draw_sentences(40)]
    saved_encoder(folder / "small", [*texts, "who was it", "where was it", "and all"])
    save_deeper_encoder(folder / "encoder", folder / "small")
    return folder


def fine_tune(workspace: Path, task: str, data: str, out: str, *options: str) -> Path:
    command = ["train", task, str(workspace / data), "--from", str(workspace / "encoder")]
    command += ["--out", str(workspace / out), *FAST, "--epochs", "12", *options]
    assert run(command) == 0
    return workspace / out


def distil(workspace: Path, teacher: Path, data: str, out: str, *options: str) -> dict[str, Any]:
    """Distil a teacher into two layers; return the task.json of the student."""
    command = ["distil", str(teacher), str(workspace / data), "--student-layers", "2"]
    command += ["--out", str(workspace / out), *FAST, *options]
    assert run(command) == 0
    task = json.loads((workspace / out / "task.json").read_text())
    assert isinstance(task, dict)
    return task


@pytest.fixture(scope="module")
def teacher_folder(workspace: Path) -> Path:
    """A classifier of four layers."""
    return fine_tune(workspace, "classify", "train.tsv", "mood")


def test_a_student_keeps_the_accuracy_of_its_teacher(workspace: Path, teacher_folder: Path, capfd: Output) -> None:
    test = str(workspace / "test.tsv")
    task = distil(workspace, teacher_folder, "train.tsv", "mood-small", "--epochs", "6", "--test", test)
    metrics = task["metrics"]
    output = capfd.readouterr().err
    assert metrics["test_accuracy"] > 95
    assert metrics["test_retained"] == pytest.approx(100 * metrics["test_accuracy"] / metrics["test_teacher"])
    assert metrics["speed"] > 0
    assert "layers 1, 4 of the 4" in output
    assert "% of the teacher's" in output
    assert "times the teacher's" in output
    assert task["temperature"] > 0
    digest = folder_digest(teacher_folder)
    assert task["teacher"] == {"folder": str(teacher_folder), "digest": digest, "copied": [0, 3]}
    assert {"test_calibration_error", "test_baseline"} <= set(metrics)
    model = load_classifier(workspace / "mood-small", threads=1)
    assert model("the w1 was lovely") == "good"
    assert load_encoder(workspace / "mood-small").config.stack.num_layers == 2


def test_transformers_opens_a_student(workspace: Path, teacher_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    distil(workspace, teacher_folder, "train.tsv", "mood-transformers", "--steps", "3")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        workspace / "mood-transformers", output_loading_info=True
    )
    assert model.config.num_hidden_layers == 2
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.mark.parametrize(
    ("task", "data", "metric"), [("tag", "train.conll", "valid_f1"), ("answer", "train.json", "valid_f1")]
)
def test_taggers_and_answerers_are_distilled(workspace: Path, task: str, data: str, metric: str) -> None:
    teacher = fine_tune(workspace, task, data, f"{task}-teacher", "--batch-tokens", "160")
    student = distil(workspace, teacher, data, f"{task}-small", "--epochs", "6", "--batch-tokens", "160")
    metrics = student["metrics"]
    assert metrics["valid_teacher"] > 60
    assert metrics["valid_retained"] == pytest.approx(100 * metrics[metric] / metrics["valid_teacher"])
    assert metrics["valid_retained"] > 80


def test_a_student_reads_several_labels_as_its_teacher(workspace: Path) -> None:
    teacher = fine_tune(workspace, "classify", "train-several.tsv", "several", "--label-separator", ";")
    task = distil(workspace, teacher, "train-several.tsv", "several-small", "--epochs", "6")
    assert set(task["thresholds"]) == {"good", "bad", "w0"}
    assert task["metrics"]["valid_micro_f1"] > 90


def test_a_resumed_student_has_the_same_bits(workspace: Path, teacher_folder: Path, tmp_path: Path) -> None:
    settings = {
        "pretrained": str(teacher_folder),
        "distillation.student_layers": 2,
        "training.precision": "float32",
        "training.threads": 1,
    }
    config = build_run("classify", {**settings, "data.train": [str(workspace / "train.tsv")], "training.steps": 8})
    config = config.override({"training.batch_tokens": 64, "training.save_every": 3, "training.evaluate_every": 4})
    train_run(config, tmp_path / "uninterrupted")

    class Interruption(Exception):
        """The machine goes down."""

    class Interrupter:
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            if event == "save" and data["step"] == 3:
                raise Interruption

    with pytest.raises(Interruption):
        train_run(config, tmp_path / "killed", listeners=[Interrupter()])
    train_run(config, tmp_path / "killed")
    weights = load_encoder(tmp_path / "uninterrupted").weights
    resumed_weights = load_encoder(tmp_path / "killed").weights
    assert all(torch.equal(weight, resumed_weights[name]) for name, weight in weights.items())
    initial_weight = load_encoder(teacher_folder).weights["encoder.layers.3.feed_forward.up.weight"]
    assert not torch.equal(weights["encoder.layers.1.feed_forward.up.weight"], initial_weight)


# ---- layers and losses


def build_classifier(num_layers: int) -> Bert:
    stack = StackConfig(num_layers=num_layers, num_heads=2, feed_forward_size=12)
    config = BertConfig(vocab_size=40, hidden_size=8, stack=stack, max_positions=16, head="label", num_labels=3)
    model = Bert(config.override({"dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}))
    initialize_bert(model, 3, 0.3)
    return model.eval()


def copy_layers(teacher: Bert, layers: tuple[int, ...]) -> Bert:
    student = Bert(student_config(teacher.config, layers))
    student.load_state_dict(student_weights(teacher.state_dict(), layers))
    return student


def build_objective() -> ClassificationObjective:
    rows = EncodedTexts()
    for text_index, length in enumerate((5, 3, 7, 4)):
        rows.add(range(5, 5 + length), [0] * length, text_index)
    return ClassificationObjective(rows, np.array([0, 1, 2, 0]), seed=1, digest="ab")


def test_copied_layers_are_spread_over_those_of_the_teacher() -> None:
    for num_layers in range(2, 25):
        for count in range(2, num_layers):
            copied = select_layers(num_layers, count)
            steps = np.diff(copied)
            assert (copied[0], copied[-1], len(copied)) == (0, num_layers - 1, count)
            assert steps.min() >= 1
            assert steps.max() - steps.min() <= 1


def test_a_student_of_one_layer_is_global_as_the_first_layer_of_its_teacher() -> None:
    teacher = BertConfig(attention_window=3, global_every=2, stack=StackConfig(num_layers=4))
    assert student_config(teacher, select_layers(4, 1)).attention_window == 0
    student = student_config(teacher, select_layers(4, 2))
    assert (student.stack.num_layers, student.attention_window, student.is_local(1)) == (2, 3, True)


def test_a_student_starts_from_its_teachers_layers() -> None:
    teacher = build_classifier(4)
    student = copy_layers(teacher, select_layers(4, 2)).eval()
    batch = build_objective().batch(np.arange(4), 0)
    ids, packed = teacher.to_tensors(batch.tokens)
    student_layers = student.hidden_states(ids, packed)
    teacher_layers = teacher.hidden_states(ids, packed)
    torch.testing.assert_close(student_layers[0], teacher_layers[0])  # the first layer is the teacher's
    assert not torch.allclose(student_layers[1], teacher_layers[3], atol=1e-3)
    for name, tensor in student.encoder.layers[1].state_dict().items():
        torch.testing.assert_close(tensor, teacher.encoder.layers[3].state_dict()[name], msg=name)
    torch.testing.assert_close(teacher_layers[-1], encode_for_training(teacher, batch.tokens, None)[0])


def test_the_loss_of_a_teacher_against_itself_is_that_of_the_labels() -> None:
    """With the same layers, only the weighted loss of the labels is left; else there is more."""
    teacher = build_classifier(3)
    objective = build_objective()
    batch = objective.batch(np.arange(4), 0)
    config = DistillationConfig(student_layers=2, label_weight=0.25)
    _, label_loss = objective.loss(teacher, batch, 0.0, None)
    own_objective = DistillationObjective(objective, teacher, (0, 1, 2), config)
    own_loss, own_label_loss = own_objective.loss(teacher, batch, 0.0, None)
    torch.testing.assert_close(own_loss, 0.25 * label_loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(own_label_loss, label_loss)
    student = copy_layers(teacher, (0, 2))
    losses = {}
    for hidden_weight in (0.0, 1.0):
        config = DistillationConfig(student_layers=2, label_weight=0.0, hidden_weight=hidden_weight)
        distillation = DistillationObjective(objective, teacher, (0, 2), config)
        losses[hidden_weight] = distillation.loss(student, batch, 0.0, None)[0].item()
    student_logits = compute_logits(student, batch).detach()
    teacher_logits = compute_logits(teacher, batch).detach()
    expected = float(distillation_loss(student_logits, teacher_logits, torch.ones(4), 2.0))
    assert losses[0.0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert losses[0.0] > 1e-4
    assert losses[1.0] > losses[0.0] + 1e-3


def compute_logits(model: Bert, batch: Any) -> torch.Tensor:
    hidden, packed = encode_for_training(model, batch.tokens, None)
    return model.head_logits(hidden, packed)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_student_learns_from_the_predictions_and_hidden_states_of_its_teacher(precision: torch.dtype) -> None:
    teacher = build_classifier(3)
    student = copy_layers(teacher, (0, 2))
    student.to(precision)
    config = DistillationConfig(student_layers=2, label_weight=0.0)
    objective = DistillationObjective(build_objective(), teacher, (0, 2), config)
    batch = objective.batch(np.arange(4), 0)
    optimizer = torch.optim.SGD(student.parameters(), 0.02)
    losses = []
    for step in range(12):
        loss, _ = objective.loss(student, batch, 0.0, Noise(1, step))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert teacher.token_embedding.weight.dtype == torch.float32


def test_the_timing_sample_is_spread_over_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = EncodedTexts()
    for index in range(100):
        rows.add([index] * 4, [0] * 4, index)
    monkeypatch.setattr("regard.training.experiments.distillation.TIMED_TOKENS", 40)
    assert [int(row[0]) for row in timing_sample(rows).rows] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


# ---- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--student-layers", "4"], "distillation.student_layers (4) must be fewer than the teacher has"),
        (["--student-layers", "0"], "add --student-layers N"),
        ([], "add --student-layers N"),
        (
            ["--student-layers", "2", "--label-separator", ";"],
            "predicts one label per text, but the data is read as several labels",
        ),
    ],
)
def test_a_mistake_is_one_message(
    workspace: Path, teacher_folder: Path, options: list[str], message: str, capfd: Output
) -> None:
    command = ["distil", str(teacher_folder), str(workspace / "train.tsv"), "--out", str(workspace / "none")]
    assert run([*command, *options]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_label_unknown_to_the_teacher_is_refused_with_its_location(
    workspace: Path, teacher_folder: Path, tmp_path: Path, capfd: Output
) -> None:
    (tmp_path / "new.tsv").write_text((workspace / "train.tsv").read_text() + "the w1 was odd\tstrange\n" * 3)
    command = ["distil", str(teacher_folder), str(tmp_path / "new.tsv"), "--student-layers", "2"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    error = capfd.readouterr().err
    assert "the label 'strange' is not one that was learned" in error
    assert "new.tsv:" in error


def test_folders_without_a_teacher_are_refused(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    data = str(workspace / "train.tsv")
    out = str(tmp_path / "out")
    options = [data, "--student-layers", "1", "--out", out]
    assert run(["distil", str(workspace / "encoder"), *options]) == 2
    assert (
        "not a fine-tuned encoder: train a teacher with `regard train classify|tag|answer DATA"
        in capfd.readouterr().err
    )
    assert run(["distil", str(tmp_path), *options]) == 2
    assert "a run's or model's folder is needed" in capfd.readouterr().err
    assert run(["train", "classify", data, "--distillation.student_layers", "2", "--out", out]) == 2
    assert "no such option: --distillation.student_layers" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="a student starts from its teacher"):
        build_run("classify", {"distillation.student_layers": 2})
