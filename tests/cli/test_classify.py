"""`regard train elmo`, a classifier on its features, and the verbs that use them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from regard.cli import run

Output = pytest.CaptureFixture[str]
LANGUAGE = "--preset custom --elmo.hidden_size 8 --steps 3 --threads 1 --precision float32 --batch-tokens 256".split()
CLASSIFY = "--tokenizer words --preset custom --rnn_classifier.encoder.hidden_size 8".split()
CLASSIFY += "--rnn_classifier.encoder.embedding_size 8".split()
CLASSIFY += "--steps 50 --threads 1 --precision float32 --batch-tokens 64".split()
WORDS = [("lovely", "good"), ("dull", "bad"), ("bright", "good"), ("grim", "bad")]
MOODS = {"good": ("lovely", "bright", "warm"), "bad": ("dull", "grim", "cold")}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a language model and a classifier, all trained by the command line."""
    folder = tmp_path_factory.mktemp("classify")
    rng = random.Random(1)
    rows = []
    for index in range(140):
        mood = ("good", "bad")[index % 2]
        words = [f"the w{rng.randrange(5)}", "was", rng.choice(MOODS[mood])]
        rows.append((" ".join(words), mood))
    (folder / "book.txt").write_text("\n\n".join(text for text, _ in rows))
    for name, split in (("train", rows[:120]), ("test", rows[120:])):
        lines = ["text,mood", *(f'"{text}",{mood}' for text, mood in split)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    assert run(["train", "elmo", str(folder / "book.txt"), "--out", str(folder / "elmo"), *LANGUAGE]) == 0
    command = ["train", "classify", str(folder / "train.csv"), "--features", str(folder / "elmo")]
    assert run([*command, "--out", str(folder / "mood"), *CLASSIFY]) == 0
    return folder


def test_a_repeated_command_reports_a_finished_run(workspace: Path, capfd: Output) -> None:
    assert run(["train", "elmo", str(workspace / "book.txt"), "--out", str(workspace / "elmo"), *LANGUAGE]) == 0
    out, error = capfd.readouterr()
    assert "is finished: nothing to do" in error
    assert "learned nothing: 3 updates are too few" in out


@pytest.mark.parametrize(
    ("name", "summary"), [("elmo", "bidirectional language model, LSTM"), ("mood", "frozen layers of 16")]
)
def test_info_describes_the_folder(workspace: Path, capfd: Output, name: str, summary: str) -> None:
    assert run(["info", str(workspace / name)]) == 0
    out = capfd.readouterr().out
    assert summary in out
    assert "training: finished at step" in out
    assert run(["info", str(workspace / name), "--json"]) == 0
    info = json.loads(capfd.readouterr().out)
    assert info["model"]["family"] in ("elmo", "rnn_classifier")
    assert info["parameters"] > 100
    config = json.loads((workspace / name / "config.json").read_text())
    assert config["model_type"] == f"regard-{info['model']['family'].replace('_', '-')}"


def test_texts_are_labelled_in_order(workspace: Path, capfd: Output, tmp_path: Path) -> None:
    assert run(["classify", str(workspace / "mood"), "the w1 was lovely", "the w2 was grim", "--threads", "1"]) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [label for label, _ in lines] == ["good", "bad"]
    assert all(0.5 <= float(probability) <= 1 for _, probability in lines)
    (tmp_path / "in.txt").write_text("the w1 was cold\n\nthe w2 was warm\n")
    command = ["classify", str(workspace / "mood"), "--in", str(tmp_path / "in.txt"), "--threads", "1"]
    assert run([*command, "--json"]) == 0
    predictions = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [prediction["label"] for prediction in predictions] == ["bad", "", "good"]
    assert set(predictions[0]["probabilities"]) == {"good", "bad"}
    assert run([*command, "--out", str(tmp_path / "out.tsv")]) == 0
    assert [line.split("\t")[0] for line in (tmp_path / "out.tsv").read_text().splitlines()] == ["bad", "", "good"]


def test_json_lines_go_into_the_file(workspace: Path, capfd: Output, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the w1 was cold\nthe w2 was warm\n")
    command = ["classify", str(workspace / "mood"), "--in", str(tmp_path / "in.txt"), "--threads", "1"]
    assert run([*command, "--json", "--out", str(tmp_path / "out.jsonl")]) == 0
    assert capfd.readouterr().out == ""
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["the w1 was cold", "the w2 was warm"]


def test_a_test_set_is_read_with_the_columns_of_the_run(workspace: Path, capfd: Output, tmp_path: Path) -> None:
    rows = [f"{index},the w{index} was {word},{label}" for index, (word, label) in enumerate(WORDS * 6)]
    data = tmp_path / "data.csv"
    data.write_text("\n".join(["id,review,sentiment", *rows]))
    out = str(tmp_path / "run")
    columns = ["--text", "review", "--label", "sentiment"]
    command = ["train", "classify", str(data), *columns, "--features", str(workspace / "elmo"), "--out", out]
    assert run([*command, *CLASSIFY, "--steps", "2"]) == 0
    capfd.readouterr()
    evaluate = ["evaluate", out, str(data), "--threads", "1"]
    assert run([*evaluate, "--json"]) == 0
    inherited = capfd.readouterr().out
    assert run([*evaluate, "--json", *columns]) == 0
    assert capfd.readouterr().out == inherited
    assert json.loads(inherited)["texts"] == len(rows)
    other = tmp_path / "other.csv"
    other.write_text(data.read_text().replace("id,review,sentiment", "id,text,label"))
    assert run(["evaluate", out, str(other), "--threads", "1"]) == 2
    assert "no column 'review' — there are id, text, label: select one with --text" in capfd.readouterr().err
    assert run(["evaluate", out, str(other), "--threads", "1", "--text", "text", "--label", "label", "--json"]) == 0
    assert capfd.readouterr().out == inherited
    assert run(["heads", out, str(data), "--threads", "1", "--sample", "4", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["sample"] == 4


def test_naming_a_metric_of_the_task_adds_nothing(workspace: Path, capfd: Output) -> None:
    command = ["evaluate", str(workspace / "mood"), str(workspace / "test.csv"), "--threads", "1"]
    for flag in ([], ["--json"]):
        assert run([*command, *flag]) == 0
        expected = capfd.readouterr().out
        assert run([*command, *flag, "--metric", "accuracy", "--metric", "macro_f1", "--metric", "accuracy"]) == 0
        assert capfd.readouterr().out == expected


def test_a_test_set_is_evaluated(workspace: Path, capfd: Output) -> None:
    assert run(["evaluate", str(workspace / "mood"), str(workspace / "test.csv"), "--threads", "1"]) == 0
    out = capfd.readouterr().out
    assert "20 texts, accuracy 100.00 % (95 % interval 83.9 to 100.0), macro-F1 100.00 %" in out
    assert run(["evaluate", str(workspace / "mood"), str(workspace / "test.csv"), "--threads", "1", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert (scores["labels"], scores["confusion"]) == (["bad", "good"], [[10, 0], [0, 10]])


def test_several_seeds_are_reported_with_their_spread(workspace: Path, capfd: Output) -> None:
    command = ["train", "classify", str(workspace / "train.csv"), "--seeds", "2", "--test", str(workspace / "test.csv")]
    assert run([*command, "--out", str(workspace / "seeds"), *CLASSIFY, "--steps", "6", "--json"]) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert report["event"] == "report"
    metrics = {f"{split}_accuracy{suffix}" for split in ("valid", "test") for suffix in ("", "_deviation")}
    assert metrics <= set(report["metrics"])
    assert run(["classify", str(workspace / "seeds"), "the w1 was lovely", "--threads", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "classify", "{train}", "--label", "moood", "--out", "x"], "no column 'moood' (did you mean mood?)"),
        (["train", "classify", "{train}", "--features", "{train}", "--out", "x"], "train.csv: a file"),
        (["train", "classify", "{train}", "--features", "{mood}", "--out", "x"], "whose layers are not features: ELMo"),
        (["train", "classify", "{train}", "--beam", "3", "--out", "x"], "no such option: --beam"),
        (
            ["train", "classify", "{train}", "--decoding.beam", "3", "--out", "x"],
            "--decoding.beam is for translate",
        ),
        (["train", "classify", "{train}", "--from", "{elmo}", "--out", "x"], "not read as an encoder"),
        (
            ["train", "elmo", "{train}", "--arch", "rnn", "--out", "x"],
            "is for translate, classify, tag, answer, story-qa, not for elmo",
        ),
        (["train", "elmo", "{train}", "--features", "{elmo}", "--out", "x"], "is for classify, tag, not for elmo"),
        (["train", "elmo", "{none}", "--out", "x"], "none.csv: no such file"),
        (
            ["train", "translate", "{train}", "--seeds", "2", "--out", "x"],
            "--seeds is for classify, tag, answer",
        ),
        (["classify", "{elmo}", "text"], "for the task 'elmo'; one for 'classify' is needed"),
        (["classify", "{mood}", "text", "--in", "{train}"], "both given"),
        (["classify", "no-such-folder", "text"], "no such folder"),
        (["translate", "{mood}", "text"], "(`regard classify` uses this one)"),
        (
            ["evaluate", "{mood}", "{other}"],
            "other.csv:3: the label 'godd' is not one that was learned (did you mean good?)",
        ),
        (["evaluate", "{mood}", "{test}", "--beam", "3"], "--beam does not apply to"),
    ],
)
def test_an_error_is_one_message_and_exit_code_two(
    workspace: Path, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    (workspace / "other.csv").write_text("text,mood\nthe w1 was warm,good\nthe w2 was cold,godd\n")
    paths = {name: str(workspace / f"{name}.csv") for name in ("train", "test", "other", "none")}
    paths |= {name: str(workspace / name) for name in ("elmo", "mood")}
    assert run([argument.format(**paths) for argument in arguments]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith("regard: ")
    assert message in error
    assert "Traceback" not in error


def test_a_table_is_not_read_as_lines_of_text(workspace: Path, capfd: Output) -> None:
    for name in ("x.csv", "x.TSV", "x.xlsx", "x.csv.gz"):
        assert run(["classify", str(workspace / "mood"), "--in", str(workspace / name)]) == 2
        out, error = capfd.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert f"{workspace / name}: is a table, a file with one text per line is needed" in error


def test_the_guess_about_the_first_row_is_reported_and_a_flag_decides(
    workspace: Path, tmp_path: Path, capfd: Output
) -> None:
    rows = (workspace / "test.csv").read_text().splitlines()[1:]
    table = tmp_path / "nohead.csv"
    table.write_text("\n".join(rows))
    command = ["evaluate", str(workspace / "mood"), str(table), "--threads", "1", "--json"]
    assert run(command) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["texts"] == len(rows)
    assert f"{table}:1: the first row (" in error and "is taken as data" in error
    for flag, count in (("--header", len(rows) - 1), ("--no-header", len(rows))):
        assert run([*command, flag]) == 0
        out, error = capfd.readouterr()
        assert json.loads(out)["texts"] == count and "first row" not in error
    assert run([*command, "--header", "--no-header"]) == 2
    assert "is set twice, to different values" in capfd.readouterr().err
    train = ["train", "classify", str(table), "--out", str(tmp_path / "run"), *CLASSIFY]
    assert run([*train, "--steps", "1"]) == 0
    assert "is taken as data; if it names the columns, use --header" in capfd.readouterr().err
    assert run([*train, "--steps", "1", "--data.read.header", "no", "--json"]) == 2
    assert "data.read.header: 'auto' there, 'no' now" in capfd.readouterr().err
