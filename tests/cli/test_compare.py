"""`regard compare` on every task: short real trainings, seeds, resuming, finished runs, and refusals."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.cli import run
from regard.cli.compare import compare as command_of_compare
from regard.config.data import ReadConfig
from regard.data.conll import read_tagged
from regard.data.documents import read_documents
from regard.data.labelled import read_labelled
from regard.data.squad import read_squad
from regard.pipeline.load import load
from regard.registry import TASKS, resolve
from regard.report.comparison.compare import TRAINING_NOTE, VALIDATION_NOTE
from regard.tasks.scoring import Scoring
from tests.task_data import write_task_data

SHORT = "--set training.steps=2 --set training.batch_tokens=64 --set training.precision=float32 --threads 1 --minutes 1"
COMMANDS = {  # task → its comparison, without --out
    "classify": "labels.csv --task classify --test labels.csv --arch counts,rnn:mean,rnn:attention,tuned:encoder "
    f"--seeds 1,2 {SHORT}",
    "tag": f"tags.conll --task tag --test tags.conll --arch counts,rnn,frozen:encoder {SHORT}",
    "answer": f"squad.json --task answer --test squad.json --arch counts,tuned:encoder {SHORT}",
    "causal-lm": f"texts.txt --task causal-lm --test texts.txt --arch gpt,rotary=gpt {SHORT} --preset micro "
    "--set rotary:gpt.positions=rotary --set tokenizer.kind=characters --set documents.sequence_length=16 --seeds 1,2",
    "story-qa": "walks.txt --task story-qa --test walks.txt --arch counts,three=memory-network,one=memory-network "
    "--set one:memory_network.hops=1 --set training.restarts=1 --set training.epochs=4 --threads 1",
    "translate": f"pairs.csv --test pairs.csv --arch gru:none,gru:additive {SHORT} --preset micro --metric exact_match "
    "--set decoding.beam=1 --set decoding.max_length_a=1 --set decoding.max_length_b=3",
}
TAGGERS = "tag/rnn/seed-1 tag/frozen-encoder/seed-1"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = write_task_data(tmp_path_factory.mktemp("compare"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, dict[str, Any]]:
    """The report of every task."""
    values = {}
    for task, command in COMMANDS.items():
        assert run(["compare", *shlex.split(command), "--out", task]) == 0
        values[task] = json.loads(Path(task, "report.json").read_text("utf-8"))
    return values


def test_the_commands_are_those_of_all_tasks() -> None:
    assert COMMANDS.keys() == {name for name, task in TASKS.items() if task.comparison is not None}


@pytest.mark.parametrize("task", COMMANDS)
def test_every_task_is_compared(task: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[task]
    assert report["task"] == task
    entries = shlex.split(COMMANDS[task])[shlex.split(COMMANDS[task]).index("--arch") + 1].split(",")
    assert [model["name"] for model in report["models"]] == [entry.partition("=")[0] for entry in entries]
    assert sum(model["test"] is None for model in report["models"]) == 1
    for model in report["models"]:
        assert model["low"] <= model["score"] <= model["high"]
        assert model["prediction"] or task == "translate"
        assert model["examples_per_second"] > 0
        assert (model["minutes"] is None) == (model["name"] == "counts")
    assert report["text"] and report["reference"]
    page = Path(task, "report.html").read_text("utf-8")
    assert page.count("<h2>One example through every model</h2>") == 1
    pictures = sum(model["attention"] for model in report["models"])
    assert page.partition("<h2>One example")[2].count("<svg") == pictures


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("classify", {"counts": False, "rnn:mean": False, "rnn:attention": True, "tuned:encoder": True}),
        ("tag", {"counts": False, "rnn": False, "frozen:encoder": True}),
        ("answer", {"counts": False, "tuned:encoder": True}),
        ("story-qa", {"counts": False, "three": True, "one": True}),
        ("translate", {"gru:none": False, "gru:additive": True}),
        ("causal-lm", {"gpt": True, "rotary": True}),
    ],
)
def test_attention_is_shown_where_there_is_some(
    task: str, expected: dict[str, bool], reports: dict[str, dict[str, Any]]
) -> None:
    models = reports[task]["models"]
    assert {model["name"]: model["attention"] for model in models} == expected
    assert {model["name"] for model in models if model["pretrained"]} == {name for name in expected if ":enc" in name}


def test_the_score_is_that_of_an_evaluation(reports: dict[str, dict[str, Any]]) -> None:
    read = {"classify": read_labelled, "tag": read_tagged, "answer": read_squad}
    files = {"classify": "labels.csv", "tag": "tags.conll", "answer": "squad.json"}
    folders = {"classify": "rnn-mean", "tag": "frozen-encoder", "answer": "tuned-encoder"}
    for task, name in folders.items():
        examples: Any = read[task]([files[task]], ReadConfig())
        pipeline: Any = load(Path(task, name, "seed-1"), threads=1)
        predictions = pipeline.predict_examples(examples)
        metric = reports[task]["metric"]
        assert metric == Scoring(task).main(predictions.kind)
        model = next(model for model in reports[task]["models"] if model["name"].replace(":", "-") == name)
        assert model["scores"][metric][0] == pytest.approx(Scoring(task).compute_final(predictions)[metric])


def test_language_models_with_different_tokenizers_are_not_compared(
    reports: dict[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS["causal-lm"].replace("--set tokenizer.kind=characters", "--set rotary:tokenizer.kind=characters")
    assert run(["compare", *shlex.split(command), "--out", "tokenizers"]) == 2
    assert "losses per token are not comparable" in capfd.readouterr().err


def test_losses_of_blocks_are_those_of_the_text(reports: dict[str, dict[str, Any]]) -> None:
    documents = read_documents(["texts.txt"], ReadConfig(), "file")
    pipeline: Any = load(Path("causal-lm/rotary/seed-2"), threads=1)
    evaluated = pipeline.evaluate(documents)
    model = reports["causal-lm"]["models"][1]
    assert model["scores"]["loss"][1] == pytest.approx(evaluated["loss"], rel=1e-5)
    assert model["scores"]["perplexity"][1] == pytest.approx(evaluated["perplexity"], rel=1e-5)
    assert len(pipeline.predict_examples(documents).blocks.tokens) > 20
    assert "nats" in reports["causal-lm"]["conclusion"] or reports["causal-lm"]["attention"] is None


def test_every_seed_counts_and_the_baseline_once(reports: dict[str, dict[str, Any]]) -> None:
    counts, mean, *_ = reports["classify"]["models"]
    assert reports["classify"]["seeds"] == [1, 2]
    assert len(counts["scores"]["accuracy"]) == 1 and counts["deviation"] is None
    assert len(mean["scores"]["accuracy"]) == 2
    assert mean["score"] == pytest.approx(sum(mean["scores"]["accuracy"]) / 2)
    assert Path("classify/rnn-mean/seed-2/run.json").exists()


def test_settings_of_one_architecture_are_those_of_its_runs(reports: dict[str, dict[str, Any]]) -> None:
    assert "1 hop " in reports["story-qa"]["models"][2]["summary"]
    assert "3 hops " in reports["story-qa"]["models"][1]["summary"]


def test_learning_curves_are_read_from_the_logs(reports: dict[str, dict[str, Any]]) -> None:
    for model in reports["story-qa"]["models"][1:]:
        assert len(model["metric_curve"]) == 4  # evaluations
        assert len(model["loss_curve"]) > 4  # every epoch, also those of the linear start
        minutes = [minute for minute, _ in model["loss_curve"]]
        assert minutes == sorted(minutes)
        assert minutes[-1] == pytest.approx(model["minutes"], rel=0.01)


def test_only_runs_that_are_not_finished_are_trained(
    reports: dict[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    missing = Path("classify/rnn-mean/seed-2")
    weights = (missing / "model.safetensors").read_bytes()
    shutil.rmtree(missing)
    capfd.readouterr()
    assert run(["compare", *shlex.split(COMMANDS["classify"]), "--out", "classify"]) == 0
    notes = capfd.readouterr().err
    assert notes.count("finished before (classify/") == 5
    assert "2 of 4: rnn:mean, seed 2: training (classify/rnn-mean/seed-2)" in notes
    assert (missing / "model.safetensors").read_bytes() == weights
    again = json.loads(Path("classify/report.json").read_text("utf-8"))
    for model, former in zip(again["models"], reports["classify"]["models"], strict=True):
        assert model["scores"] == former["scores"]
        assert (model["low"], model["high"], model["test"]) == (former["low"], former["high"], former["test"])


def test_finished_runs_are_compared_without_training(
    reports: dict[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    folders = ["classify/rnn-mean/seed-1", "classify/tuned-encoder/seed-1"]
    options = ["--test", "labels.csv", "--out", "runs", "--threads", "1", "--metric", "macro_f1", "--example", "3"]
    assert run(["compare", *folders, *options, "--json"]) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert report["metric"] == "macro_f1"
    assert [model["name"] for model in report["models"]] == folders
    assert [model["pretrained"] for model in report["models"]] == [False, True]
    assert report["text"] == read_labelled(["labels.csv"]).texts[2]
    trained = reports["classify"]["models"][1]
    assert report["models"][0]["scores"]["accuracy"] == trained["scores"]["accuracy"][:1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tags.conll --task tag --arch rnn,counts --out x", "the test data are missing: add --test FILES"),
        ("tags.conll --task tag --arch rnn --test tags.conll --out x", "at least two models"),
        ("classify/rnn-mean/seed-1 --test labels.csv --out x", "at least two models"),
        ("tags.conll --task tgg --arch rnn,counts --test tags.conll --out x", "not compared (did you mean tag?)"),
        ("texts.txt --task embed --arch a,b --test texts.txt --out x", "'embed' are not compared"),
        ("labels.csv --arch rnn:mean,counts --test labels.csv --out x", "rnn:mean is for --task classify"),
        (f"{COMMANDS['tag']} --out x --text words", "--text"),
        ("labels.csv --task classify --arch rnn:mean,counts --test other.csv --out x", "csv:2: the label 'maybe'"),
        ("tags.conll --task tag --arch rnn,counts --test other.conll --out x", "other.conll:1"),
        (f"{COMMANDS['tag']} --out x --source a", "'data.read.source' of the task tag: it is a setting of translate"),
        (f"{COMMANDS['tag']} --out x --metric bleu", "the metric bleu is not for tag"),
        (f"{COMMANDS['classify']} --out x --metric mcc", "the metric mcc has no confidence interval: choose accuracy"),
        (f"{COMMANDS['classify']} --out x --metric exact_match", "not for predictions that are labels: choose one of"),
        (f"{COMMANDS['tag']} --out x --example 81", "there is no example 81: the test data have 1 to 80"),
        (f"{COMMANDS['tag']} --out x --seeds 1,a", "must be whole numbers from 0, separated by commas"),
        ("tag/rnn/seed-1 classify/rnn-mean/seed-1 --test tags.conll --out x", "models of one task are compared"),
        ("tag/rnn/seed-1 tag/rnn/seed-1 --test tags.conll --out x", "named twice"),
        (f"{TAGGERS} --test tags.conll --out x --seeds 1,2", "--seeds is for training"),
        (f"{TAGGERS} --test tags.conll --out x --task classify", "these models are for tag"),
        (f"{TAGGERS} --test tags.conll --out x --pair 2", "'data.read.pair' of the task tag"),
    ],
)  # fmt: skip
def test_a_comparison_that_cannot_be_made_is_refused_first(
    command: str, message: str, reports: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("other.csv").write_text("text,label\nada went,maybe\n")
    Path("other.conll").write_text("ada B-Y\n")
    capfd.readouterr()
    assert run(["compare", *shlex.split(command)]) == 2
    assert message in capfd.readouterr().err
    assert not Path("x").exists()


def test_models_with_different_labels_are_not_compared(
    reports: dict[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    rows = Path("labels.csv").read_text().splitlines()
    Path("three.csv").write_text("\n".join([*rows, *(f"{row.rpartition(',')[0]},maybe" for row in rows[1:20]), ""]))
    command = f"three.csv --task classify --test three.csv --arch counts,rnn:mean {SHORT}"
    assert run(["compare", *shlex.split(command), "--out", "three"]) == 0
    capfd.readouterr()
    folders = ["classify/rnn-mean/seed-1", "three/rnn-mean/seed-1"]
    assert run(["compare", *folders, "--test", "labels.csv", "--out", "x", "--metric", "macro_f1"]) == 2
    assert "models with different labels cannot be compared: not all of them have maybe" in capfd.readouterr().err


def parse(*arguments: str) -> tuple[list[str], list[str], list[str]]:
    """Inputs, validation and test files of a command line."""
    parameters = command_of_compare.make_context("compare", [*arguments, "--out", "x"]).params
    return [*parameters["inputs"]], [*parameters["valid"]], [*parameters["test"]]


@pytest.mark.parametrize("task", [["--task", "story-qa"], ["--task=story-qa"], ["--task=classify", "--task=tag"]])
def test_a_task_with_many_files_takes_all_after_an_option(task: list[str]) -> None:
    valid = ["d.txt", "e.txt", "f.txt"]
    test = ["a.txt", "b.txt", "c.txt"]
    files = parse("train.txt", *task, "--valid", *valid, "--test", *test, "--arch", "counts,rnn")
    assert files == (["train.txt"], valid, test)


def test_a_task_with_parallel_files_takes_two() -> None:
    assert parse("--test", "a", "b", "train.a", "train.b", "--arch=rnn") == (["train.a", "train.b"], [], ["a", "b"])


def test_all_files_beside_finished_runs_are_test_data(reports: dict[str, dict[str, Any]]) -> None:
    test = ["walks.txt", "texts.txt", "labels.csv"]
    runs = ["tag/rnn/seed-1", "tag/frozen-encoder/seed-1"]
    assert parse(*runs, "--test", *test) == (runs, [], test)
    assert parse("--test", *test, *runs) == (runs, [], test)


def test_a_test_on_training_or_validation_data_is_called_optimistic(
    reports: dict[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert {report["details"]["note"] for report in reports.values()} == {TRAINING_NOTE}
    shutil.copy("labels.csv", "valid.csv")
    capfd.readouterr()
    command = f"labels.csv --task classify --valid valid.csv --arch counts,rnn:max {SHORT} --out valid"
    assert run(["compare", *shlex.split(command)]) == 0
    output = capfd.readouterr()
    assert f"note: {VALIDATION_NOTE}\n" in output.out
    assert output.err.index(VALIDATION_NOTE) < output.err.index("1 architecture to train")
    for file in Path("valid").glob("report.*"):
        assert VALIDATION_NOTE in file.read_text("utf-8")
    runs = "valid/rnn-max/seed-1 classify/rnn-mean/seed-1"
    for test, note in (("valid.csv", VALIDATION_NOTE), ("labels.csv", TRAINING_NOTE)):
        assert run(["compare", *shlex.split(runs), "--test", test, "--out", "runs"]) == 0
        assert json.loads(Path("runs/report.json").read_text("utf-8"))["details"]["note"] == note
    shutil.copy("labels.csv", "test.csv")
    assert run(["compare", *shlex.split(runs), "--test", "test.csv", "--out", "runs"]) == 0
    assert "note" not in json.loads(Path("runs/report.json").read_text("utf-8"))["details"]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (f"walks.txt --task story-qa --test walks.txt --arch counts,rnn {SHORT}", "training.restarts=2"),
        (f"labels.csv --task classify --test labels.csv --arch counts,rnn:mean {SHORT}", "fine_tuning.seeds=2"),
    ],
)
def test_speed_and_curves_of_a_run_with_several_trainings_are_those_of_the_published_one(
    command: str, count: str, folder: Path
) -> None:
    out = count.partition("=")[0]
    settings = f"--set {count} --set training.steps=10 --set training.evaluate_every=5 --out {out}"
    assert run(["compare", *shlex.split(f"{command} {settings}")]) == 0
    report = json.loads(Path(out, "report.json").read_text("utf-8"))
    trained = report["models"][1]
    assert trained["training_rate"] > 0 and trained["training_unit"]
    assert len(trained["metric_curve"]) == 2  # evaluations of one of the trainings
    assert 0 < trained["metric_curve"][-1][0] < trained["minutes"]  # of both
    assert report["details"]["minutes per run"] == 1


def test_a_plugin_s_task_is_compared_by_the_class_in_its_row() -> None:
    for name, task in TASKS.items():
        if task.comparison is not None:
            assert resolve(task.comparison)(name).task == name
