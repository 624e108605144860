"""The command line for models that read: train a language model, a classifier on its features, and use them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from regard.cli import run

Output = pytest.CaptureFixture[str]
LANGUAGE = "--preset custom --elmo.hidden_size 8 --steps 3 --threads 1 --precision float32 --batch-tokens 256".split()
CLASSIFY = "--tokenizer words --preset custom --rnn_classifier.encoder.hidden_size 8 --rnn_classifier.encoder.embedding_size 8".split()
CLASSIFY += "--steps 50 --threads 1 --precision float32 --batch-tokens 64".split()
MOODS = {"good": ("lovely", "bright", "warm"), "bad": ("dull", "grim", "cold")}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a language model and a classifier, all made by the command line."""
    folder, chance = tmp_path_factory.mktemp("reading"), random.Random(1)
    rows = []
    for number in range(140):
        mood = ("good", "bad")[number % 2]
        words = [f"the w{chance.randrange(5)}", "was", chance.choice(MOODS[mood])]
        rows.append((" ".join(words), mood))
    (folder / "book.txt").write_text("\n\n".join(text for text, _ in rows))
    for name, part in (("train", rows[:120]), ("test", rows[120:])):
        lines = ["text,mood", *(f'"{text}",{mood}' for text, mood in part)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    assert run(["train", "language", str(folder / "book.txt"), "--out", str(folder / "elmo"), *LANGUAGE]) == 0
    command = ["train", "classify", str(folder / "train.csv"), "--features", str(folder / "elmo")]
    assert run([*command, "--out", str(folder / "mood"), *CLASSIFY]) == 0
    return folder


def test_repeating_the_command_says_that_it_is_done(room: Path, capfd: Output) -> None:
    assert run(["train", "language", str(room / "book.txt"), "--out", str(room / "elmo"), *LANGUAGE]) == 0
    out, error = capfd.readouterr()
    assert "is finished: nothing to do" in error
    assert "learned nothing: 3 updates are too few" in out


@pytest.mark.parametrize(
    ("name", "words"), [("elmo", "bidirectional language model, lstm"), ("mood", "frozen layers of 16")]
)
def test_info_tells_what_the_folder_is(room: Path, capfd: Output, name: str, words: str) -> None:
    assert run(["info", str(room / name)]) == 0
    out = capfd.readouterr().out
    assert words in out
    assert "training: finished at step" in out
    assert run(["info", str(room / name), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["model"]["family"] in ("elmo", "classifier")
    assert found["parameters"] > 100
    config = json.loads((room / name / "config.json").read_text())
    assert config["model_type"] == f"regard-{found['model']['family']}"


def test_texts_are_labelled_in_order(room: Path, capfd: Output, tmp_path: Path) -> None:
    assert run(["classify", str(room / "mood"), "the w1 was lovely", "the w2 was grim", "--threads", "1"]) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [label for label, _ in lines] == ["good", "bad"]
    assert all(0.5 <= float(chance) <= 1 for _, chance in lines)
    (tmp_path / "in.txt").write_text("the w1 was cold\n\nthe w2 was warm\n")
    given = ["classify", str(room / "mood"), "--in", str(tmp_path / "in.txt"), "--threads", "1"]
    assert run([*given, "--json", "--all"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [one["label"] for one in found] == ["bad", None, "good"]
    assert set(found[0]["probabilities"]) == {"good", "bad"}
    assert run([*given, "--out", str(tmp_path / "out.tsv")]) == 0
    assert [line.split("\t")[0] for line in (tmp_path / "out.tsv").read_text().splitlines()] == ["bad", "", "good"]


def test_a_test_set_is_scored(room: Path, capfd: Output) -> None:
    assert run(["evaluate", str(room / "mood"), str(room / "test.csv"), "--threads", "1"]) == 0
    out = capfd.readouterr().out
    assert "20 texts, accuracy 100.00 % (95 % interval 83.9 to 100.0), macro-F1 100.00 %" in out
    assert run(["evaluate", str(room / "mood"), str(room / "test.csv"), "--threads", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["labels"], found["confusion"]) == (["bad", "good"], [[10, 0], [0, 10]])


def test_several_seeds_are_reported_with_their_spread(room: Path, capfd: Output) -> None:
    command = ["train", "classify", str(room / "train.csv"), "--seeds", "2", "--test", str(room / "test.csv")]
    assert run([*command, "--out", str(room / "seeds"), *CLASSIFY, "--steps", "6", "--json"]) == 0
    last = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert last["event"] == "report"
    measures = {f"{part}_accuracy{more}" for part in ("valid", "test") for more in ("", "_deviation")}
    assert measures <= set(last["metrics"])
    assert run(["classify", str(room / "seeds"), "the w1 was lovely", "--threads", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "classify", "{train}", "--label", "moood", "--out", "x"], "no column 'moood' (did you mean mood?)"),
        (["train", "classify", "{train}", "--features", "{train}", "--out", "x"], "train.csv: a file"),
        (["train", "classify", "{train}", "--features", "{mood}", "--out", "x"], "one for 'language' is needed"),
        (["train", "classify", "{train}", "--beam", "3", "--out", "x"], "no such option: --beam"),
        (["train", "classify", "{train}", "--decoding.beam", "3", "--out", "x"], "means nothing to the task classify"),
        (["train", "classify", "{train}", "--from", "{elmo}", "--out", "x"], "not read as an encoder"),
        (["train", "language", "{train}", "--arch", "rnn", "--out", "x"], "arch must be elmo or bert or gpt for"),
        (["train", "language", "{train}", "--features", "{elmo}", "--out", "x"], "it is for classify"),
        (["train", "language", "{none}", "--out", "x"], "none.csv: no such file"),
        (["train", "translate", "{train}", "--seeds", "2", "--out", "x"], "it is for classify"),
        (["classify", "{elmo}", "text"], "for the task 'language'; one for 'classify' is needed"),
        (["classify", "{mood}", "text", "--in", "{train}"], "both given"),
        (["classify", "no-such-folder", "text"], "no such folder"),
        (["translate", "{mood}", "text"], "(`regard classify` uses this one)"),
        (
            ["evaluate", "{mood}", "{other}"],
            "other.csv:3: the label 'godd' is not one that was learned (did you mean good?)",
        ),
        (["evaluate", "{mood}", "{test}", "--beam", "3"], "--beam means nothing to"),
    ],
)
def test_what_is_wrong_is_said_once_and_exits_with_two(
    room: Path, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    (room / "other.csv").write_text("text,mood\nthe w1 was warm,good\nthe w2 was cold,godd\n")
    places = {name: str(room / f"{name}.csv") for name in ("train", "test", "other", "none")}
    places |= {name: str(room / name) for name in ("elmo", "mood")}
    assert run([argument.format(**places) for argument in arguments]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith("regard: ")
    assert words in error
    assert "Traceback" not in error
