"""Students of fine-tuned encoders: cut from their teacher, taught by it, measured beside it, resumed, used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.cli import run
from regard.cli.train import build_run
from regard.config.models import BertConfig, StackConfig
from regard.config.training import DistillationConfig
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.loaders import load_classifier
from regard.tasks.classification import ClassificationObjective
from regard.tasks.distillation import (
    DistillationObjective,
    distillation_loss,
    spread_layers,
    student_config,
    student_weights,
)
from regard.tasks.windows import EncodedTexts, encode_for_training
from regard.training.experiments.distillation import timing_sample
from regard.training.run import train_run
from tests.encoders import saved_encoder
from tests.training.experiments.test_fine_tuning import FAST, moods, questions, sentences

Output = pytest.CaptureFixture[str]
TUNE = [*FAST, "--epochs", "12"]


def deeper(folder: Path, source: Path, layers: int = 4) -> Path:
    """Write an encoder like another, with more layers and weights by chance."""
    found = load_encoder(source)
    model = Bert(found.config.override({"stack.num_layers": layers}))
    initialize_bert(model, 1, 0.1)
    save_encoder(folder, model.config, model.state_dict(), tokenizer=found.tokenizer, task="", facts={}, card="")
    return folder


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all kinds, and a teacher of four layers for each task."""
    folder = tmp_path_factory.mktemp("distilling")
    for name, rows in (("train", moods(160)), ("test", moods(40, 2))):
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        several = [f"{text}\t{label}{'; w0' if 'w0' in text else ''}\n" for text, label in rows]
        (folder / f"{name}-several.tsv").write_text("".join(several))
    text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in sentence) for sentence in sentences(120))
    (folder / "train.conll").write_text(text + "\n")
    (folder / "train.json").write_text(json.dumps(questions(100)))
    texts = [text for text, _ in moods(50)] + [" ".join(w for w, _ in one) for one in sentences(40)]
    saved_encoder(folder / "small", [*texts, "who was it", "where was it", "and all"])
    deeper(folder / "encoder", folder / "small")
    return folder


def tuned(room: Path, task: str, data: str, out: str, *more: str) -> Path:
    words = ["train", task, str(room / data), "--from", str(room / "encoder"), "--out", str(room / out)]
    assert run([*words, *TUNE, *more]) == 0
    return room / out


def distilled(room: Path, teacher: Path, data: str, out: str, *more: str) -> dict[str, Any]:
    words = ["distil", str(teacher), str(room / data), "--layers", "2", "--out", str(room / out), *FAST, *more]
    assert run(words) == 0
    found = json.loads((room / out / "task.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def mood(room: Path) -> Path:
    return tuned(room, "classify", "train.tsv", "mood")


def test_a_student_keeps_what_its_classifier_knows(room: Path, mood: Path, capfd: Output) -> None:
    found = distilled(room, mood, "train.tsv", "mood-small", "--epochs", "6", "--test", str(room / "test.tsv"))
    metrics, said = found["metrics"], capfd.readouterr().err
    assert metrics["test_accuracy"] > 95
    assert metrics["test_kept"] == pytest.approx(100 * metrics["test_accuracy"] / metrics["test_teacher"])
    assert metrics["speed"] > 0
    assert "layers 1, 4 of the 4" in said
    assert "% of the teacher's" in said
    assert "times the teacher's" in said
    assert found["temperature"] > 0
    assert found["teacher"] == {"folder": str(mood), "digest": load_encoder(mood).digest, "copied": [0, 3]}
    assert {"test_calibration_error", "test_baseline"} <= set(metrics)
    model = load_classifier(room / "mood-small", threads=1)
    assert model("the w1 was lovely") == "good"
    assert load_encoder(room / "mood-small").config.stack.num_layers == 2


def test_others_open_a_student(room: Path, mood: Path) -> None:
    transformers = pytest.importorskip("transformers")
    distilled(room, mood, "train.tsv", "mood-theirs", "--steps", "3")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        room / "mood-theirs", output_loading_info=True
    )
    assert model.config.num_hidden_layers == 2
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.mark.parametrize(
    ("task", "data", "measure"), [("tag", "train.conll", "valid_f1"), ("answer", "train.json", "valid_f1")]
)
def test_taggers_and_answerers_have_students(room: Path, task: str, data: str, measure: str) -> None:
    teacher = tuned(room, task, data, f"{task}-teacher", "--batch-tokens", "160")
    metrics = distilled(room, teacher, data, f"{task}-small", "--epochs", "6", "--batch-tokens", "160")["metrics"]
    assert metrics["valid_teacher"] > 60
    assert metrics["valid_kept"] == pytest.approx(100 * metrics[measure] / metrics["valid_teacher"])
    assert metrics["valid_kept"] > 80


def test_a_student_of_several_labels_reads_as_its_teacher(room: Path) -> None:
    teacher = tuned(room, "classify", "train-several.tsv", "several", "--label-separator", ";")
    found = distilled(room, teacher, "train-several.tsv", "several-small", "--epochs", "6")
    assert set(found["thresholds"]) == {"good", "bad", "w0"}
    assert found["metrics"]["valid_micro_f1"] > 90


def test_a_resumed_student_has_the_same_bits(room: Path, mood: Path, tmp_path: Path) -> None:
    given = {
        "pretrained": str(mood),
        "distillation.student_layers": 2,
        "training.precision": "float32",
        "training.threads": 1,
    }
    config = build_run(("classify", str(room / "train.tsv")), None, {**given, "training.steps": 8})
    config = config.override({"training.batch_tokens": 64, "training.save_every": 3, "training.evaluate_every": 4})
    train_run(config, tmp_path / "whole")

    class Ends(Exception):
        """The machine goes down."""

    class Killer:
        def on_event(self, kind: str, facts: dict[str, Any]) -> None:
            if kind == "save" and facts["step"] == 3:
                raise Ends

    with pytest.raises(Ends):
        train_run(config, tmp_path / "killed", listeners=[Killer()])
    train_run(config, tmp_path / "killed")
    whole, killed = (load_encoder(tmp_path / name).weights for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert not torch.equal(whole["stack.blocks.1.feedforward.inner.weight"], _cut(mood))


def _cut(teacher: Path) -> torch.Tensor:
    return load_encoder(teacher).weights["stack.blocks.3.feedforward.inner.weight"]


# ---- the parts


def small(layers: int) -> Bert:
    stack = StackConfig(num_layers=layers, num_heads=2, feed_forward_size=12)
    config = BertConfig(vocab_size=40, hidden_size=8, stack=stack, max_positions=16, head="label", num_labels=3)
    made = Bert(config.override({"dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}))
    initialize_bert(made, 3, 0.3)
    return made.eval()


def made_task() -> ClassificationObjective:
    rows = EncodedTexts()
    for number, length in enumerate((5, 3, 7, 4)):
        rows.add(range(5, 5 + length), [0] * length, number)
    return ClassificationObjective(rows, np.array([0, 1, 2, 0]), seed=1, digest="ab")


def test_layers_are_spread_over_the_teachers() -> None:
    for layers in range(2, 25):
        for count in range(2, layers):
            copied = spread_layers(layers, count)
            steps = np.diff(copied)
            assert (copied[0], copied[-1], len(copied)) == (0, layers - 1, count)
            assert steps.min() >= 1
            assert steps.max() - steps.min() <= 1


def test_a_student_starts_as_its_teachers_layers() -> None:
    teacher = small(4)
    copied = spread_layers(4, 2)
    student = Bert(student_config(teacher.config, copied)).eval()
    student.load_state_dict(student_weights(teacher.state_dict(), copied))
    batch = made_task().batch(np.arange(4), 0)
    ids, rows = teacher.to_tensors(batch.tokens)
    mine, theirs = student.layers(ids, rows), teacher.layers(ids, rows)
    torch.testing.assert_close(mine[0], theirs[0])  # the first layer is the teacher's
    assert not torch.allclose(mine[1], theirs[3], atol=1e-3)
    for name, tensor in student.stack.blocks[1].state_dict().items():
        torch.testing.assert_close(tensor, teacher.stack.blocks[3].state_dict()[name], msg=name)
    torch.testing.assert_close(theirs[-1], encode_for_training(teacher, batch.tokens, None)[0])


def test_nothing_is_lost_by_who_is_the_teacher() -> None:
    """With the same layers, only the true labels' share of the loss is left; else there is more."""
    teacher, task = small(3), made_task()
    batch = task.batch(np.arange(4), 0)
    config = DistillationConfig(student_layers=2, label_weight=0.25)
    plain = task.loss(teacher, batch, 0.0, None)[1]
    same = DistillationObjective(task, teacher, (0, 1, 2), config).loss(teacher, batch, 0.0, None)
    torch.testing.assert_close(same[0], 0.25 * plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same[1], plain)
    student = Bert(student_config(teacher.config, (0, 2)))
    student.load_state_dict(student_weights(teacher.state_dict(), (0, 2)))
    losses = {}
    for hidden in (0.0, 1.0):
        taught = DistillationObjective(
            task, teacher, (0, 2), DistillationConfig(student_layers=2, label_weight=0.0, hidden_weight=hidden)
        )
        losses[hidden] = taught.loss(student, batch, 0.0, None)[0].item()
    mine, theirs = (encoder_scores(model, batch).detach() for model in (student, teacher))
    assert losses[0.0] == pytest.approx(float(distillation_loss(mine, theirs, torch.ones(4), 2.0)), rel=1e-4)
    assert losses[0.0] > 1e-4
    assert losses[1.0] > losses[0.0] + 1e-3


def encoder_scores(model: Bert, batch: Any) -> torch.Tensor:
    states, rows = encode_for_training(model, batch.tokens, None)
    return model.head_logits(states, rows)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_student_is_drawn_to_its_teacher_by_its_labels_and_states_alone(precision: torch.dtype) -> None:
    teacher, task = small(3), made_task()
    student = Bert(student_config(teacher.config, (0, 2)))
    student.load_state_dict(student_weights(teacher.state_dict(), (0, 2)))
    student.to(precision)
    taught = DistillationObjective(task, teacher, (0, 2), DistillationConfig(student_layers=2, label_weight=0.0))
    batch = taught.batch(np.arange(4), 0)
    optimizer = torch.optim.SGD(student.parameters(), 0.02)
    losses = []
    for step in range(12):
        loss, _ = taught.loss(student, batch, 0.0, Noise(1, step))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert teacher.words.weight.dtype == torch.float32


def test_what_is_timed_is_from_all_over_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = EncodedTexts()
    for number in range(100):
        rows.add([number] * 4, [0] * 4, number)
    monkeypatch.setattr("regard.training.experiments.distillation.TIMED_TOKENS", 40)
    assert [int(row[0]) for row in timing_sample(rows).rows] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


# ---- mistakes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--layers", "4"], "distillation.student_layers (4) must be fewer than the teacher has"),
        (["--layers", "0"], "add --layers N"),
        ([], "add --layers N"),
        (["--layers", "2", "--label-separator", ";"], "gives one label a text, but the data is read as several labels"),
    ],
)
def test_a_mistake_is_one_message(room: Path, mood: Path, change: list[str], said: str, capfd: Output) -> None:
    assert run(["distil", str(mood), str(room / "train.tsv"), "--out", str(room / "none"), *change]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_label_that_the_teacher_does_not_know_has_its_place(
    room: Path, mood: Path, tmp_path: Path, capfd: Output
) -> None:
    (tmp_path / "new.tsv").write_text((room / "train.tsv").read_text() + "the w1 was odd\tstrange\n" * 3)
    assert run(["distil", str(mood), str(tmp_path / "new.tsv"), "--layers", "2", "--out", str(tmp_path / "out")]) == 2
    error = capfd.readouterr().err
    assert "the label 'strange' is not one that was learned" in error
    assert "new.tsv:" in error


def test_who_cannot_teach_is_named(room: Path, tmp_path: Path, capfd: Output) -> None:
    words = [str(room / "train.tsv"), "--layers", "1", "--out", str(tmp_path / "out")]
    assert run(["distil", str(room / "encoder"), *words]) == 2
    assert "not an encoder fine-tuned to classify, tag or answer" in capfd.readouterr().err
    assert run(["distil", str(tmp_path), *words]) == 2
    assert "a run's or model's folder is needed" in capfd.readouterr().err
    assert run(["train", "classify", words[0], "--distillation.student_layers", "2", "--out", words[-1]]) == 2
    assert "a student starts from its teacher" in capfd.readouterr().err
