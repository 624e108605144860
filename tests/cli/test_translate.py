"""`regard train translate` and the verbs that use its model, by the commands that users type."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.cli import run
from regard.cli.texts import iter_available
from regard.errors import DataError
from tests.scale import HANG_GUARD

SMALL = (
    "--tokenizer words --preset custom --model.hidden_size 16 --model.dropout 0 --threads 1 --precision float32".split()
)
SMALL += [
    f"--model.{side}.{name}"
    for side in ("encoder", "decoder")
    for name in ("num_layers=1", "num_heads=2", "feed_forward_size=32")
]
PLAN = "--steps 40 --batch-tokens 256 --learning-rate 0.01 --evaluate-every 20 --save-every 20".split()

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a translation model trained by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    for split, count in (("train", 600), ("valid", 19), ("test", 23)):
        path = str(folder / f"{split}.tsv")
        assert run(["data", "make", "copy", "--count", str(count), "--split", split, "--out", path]) == 0
    assert run(train_command(folder)) == 0
    return folder


def train_command(workspace: Path, out: str = "run") -> list[str]:
    files = ["train", "translate", str(workspace / "train.tsv"), "--valid", str(workspace / "valid.tsv")]
    return [*files, "--out", str(workspace / out), *SMALL, *PLAN]


def read_sources(workspace: Path) -> list[str]:
    return [line.split("\t")[0] for line in (workspace / "test.tsv").read_text().splitlines()]


def read_output(output: Output) -> list[str]:
    return output.readouterr().out.splitlines()


def test_a_finished_run_is_reported_with_exit_code_zero(workspace: Path, capfd: Output) -> None:
    assert run(train_command(workspace)) == 0
    out, error = capfd.readouterr()
    assert "is finished: nothing to do" in error
    assert "40 steps in" in out


def test_other_settings_in_an_existing_run_are_refused_by_name(workspace: Path, capfd: Output) -> None:
    assert run([*train_command(workspace), "--seed", "7"]) == 2
    assert "training.seed: 1 there, 7 now" in capfd.readouterr().err


def test_training_as_json_is_one_event_per_line(workspace: Path, capfd: Output) -> None:
    assert run([*train_command(workspace, "other"), "--steps", "4", "--training.max_checkpoints=3", "--json"]) == 0
    out, error = capfd.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert events[0]["event"] == "plan"
    assert events[-1]["event"] == "report"
    assert events[-1]["step"] == 4
    assert error == ""


def test_info_describes_the_run(workspace: Path, capfd: Output) -> None:
    assert run(["info", str(workspace / "run")]) == 0
    text = capfd.readouterr().out
    assert "training: finished at step 40" in text
    assert "1+1 layers of 16, 2 heads, feed-forward 32" in text
    assert "best alignment head: decoder.0.cross" in text
    assert run(["info", str(workspace / "run"), "--json"]) == 0
    info = json.loads(capfd.readouterr().out)
    assert info["kind"] == "run"
    assert info["model"]["hidden_size"] == 16
    assert info["run"]["checkpoints"] == [20, 40]


def test_texts_lines_and_files_are_translated_alike_and_in_order(
    workspace: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = read_sources(workspace)
    folder = str(workspace / "run")
    assert run(["translate", folder, *texts]) == 0
    translations = read_output(capfd)
    assert len(translations) == len(texts)
    source = tmp_path / "in.txt"
    out = tmp_path / "out.txt.gz"
    source.write_text("".join(f"{text}\n" for text in texts))
    assert run(["translate", folder, "--in", str(source), "--out", str(out)]) == 0
    assert read_output(capfd) == []
    assert gzip.decompress(out.read_bytes()).decode().splitlines() == translations
    with source.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": stream}))
        assert run(["translate", folder]) == 0
    assert read_output(capfd) == translations


def test_empty_and_blank_lines_keep_their_positions(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a b\n\n   \nc d\n")
    assert run(["translate", str(workspace / "run"), "--in", str(source)]) == 0
    lines = read_output(capfd)
    assert len(lines) == 4
    assert [bool(line.strip()) for line in lines] == [True, False, False, True]


def test_n_best_lists_have_scores_and_alignments(workspace: Path, capfd: Output) -> None:
    folder = str(workspace / "run")
    assert run(["translate", folder, "a b c", "d e", "--nbest", "3", "--beam", "4", "--align"]) == 0
    rows = [line.split("\t") for line in read_output(capfd)]
    hypotheses = [row[0].split(" ||| ") for row in rows]
    assert [index for index, _, _ in hypotheses] == ["0", "0", "0", "1", "1", "1"]
    scores = [float(score) for _, _, score in hypotheses]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert all("-" in link for row in rows for link in row[1].split())
    assert run(["translate", folder, "a b c", "--nbest", "3", "--beam", "4", "--align", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["source"], result["text"]) == ("a b c", hypotheses[0][1])
    assert result["score"] == pytest.approx(scores[0], abs=1e-3)
    alternatives = [alternative["text"] for alternative in result["alternatives"]]
    assert alternatives == [text for _, text, _ in hypotheses[1:3]]


def test_words_can_be_forced_and_forbidden(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    folder = str(workspace / "run")
    glossary = tmp_path / "glossary.tsv"
    glossary.write_text("a\tp\n")
    assert run(["translate", folder, "a b c", "--force-word", "k", "--forbid-word", "b", "--target-prefix", "o"]) == 0
    words = capfd.readouterr().out.split()
    assert words[0] == "o" and "k" in words and "b" not in words
    assert run(["translate", folder, "a b c", "--glossary", str(glossary)]) == 0
    assert "p" in capfd.readouterr().out.split()


def test_samples_depend_on_the_seed_alone(workspace: Path, capfd: Output) -> None:
    def sample(seed: int) -> str:
        settings = ["--sample", "--temperature", "2", "--top-k", "7", "--seed", str(seed)]
        assert run(["translate", str(workspace / "run"), "a b c d e f", *settings]) == 0
        return capfd.readouterr().out

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_an_ensemble_of_a_model_with_itself_translates_the_same(workspace: Path, capfd: Output) -> None:
    folder = str(workspace / "run")
    assert run(["translate", folder, "a b c"]) == 0
    single = capfd.readouterr().out
    assert run(["translate", folder, "a b c", "--ensemble", folder]) == 0
    assert capfd.readouterr().out == single


@pytest.mark.parametrize("flag", ["--split", "--no-split"])
def test_evaluate_reproduces_translate_with_the_same_flag(
    workspace: Path, tmp_path: Path, capfd: Output, flag: str
) -> None:
    folder = str(workspace / "run")
    texts = ["a b. C d e.", "d e f"]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\t{text}\n" for text in texts))
    hypotheses = {name: tmp_path / f"{name}.txt" for name in ("flag", "default")}
    assert run(["translate", folder, *texts, flag]) == 0
    translations = read_output(capfd)
    assert run(["evaluate", folder, str(pairs), flag, "--out", str(hypotheses["flag"])]) == 0
    assert hypotheses["flag"].read_text().splitlines() == translations
    assert run(["evaluate", folder, str(pairs), "--out", str(hypotheses["default"])]) == 0
    is_default = hypotheses["default"].read_text().splitlines() == translations
    assert is_default == (flag == "--no-split")


def test_evaluate_computes_every_metric_that_its_help_names(workspace: Path, capfd: Output) -> None:
    assert run(["evaluate", "--help"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    listed = text.partition(" translate: ")[2].partition(".")[0]
    names = re.sub(r" \([^)]*\)", "", listed).split(", ")
    assert {"bleu", "chrf", "ter"} <= set(names)
    metrics = [argument for name in names for argument in ("--metric", name)]
    assert (
        run(["evaluate", str(workspace / "run"), str(workspace / "test.tsv"), "--beam", "1", *metrics, "--json"]) == 0
    )
    assert set(names) <= set(json.loads(capfd.readouterr().out))


def test_a_test_set_is_evaluated_and_scored(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    folder = str(workspace / "run")
    test = str(workspace / "test.tsv")
    hypotheses = tmp_path / "hypotheses.txt"
    assert run(["evaluate", folder, test, "--out", str(hypotheses), "--beam", "2", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert scores["sentences"] == 23
    assert "tok:13a" in scores["bleu_signature"]
    assert sum(group["sentences"] for group in scores["by_length"]) == 23
    assert len(hypotheses.read_text().splitlines()) == 23
    assert run(["evaluate", folder, test, "--beam", "2"]) == 0
    assert re.search(rf"^BLEU +{scores['bleu']:.2f}  nrefs", capfd.readouterr().out, re.MULTILINE)

    assert run(["translate", folder, "--json", *read_sources(workspace), "--beam", "2"]) == 0
    best = [json.loads(line) for line in read_output(capfd)]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{result['source']}\t{result['text']}\n" for result in best))
    assert run(["score", folder, str(pairs), "--json"]) == 0
    out, error = capfd.readouterr()
    scored = [json.loads(line) for line in out.splitlines()]
    assert [result["score"] for result in scored] == pytest.approx([result["score"] for result in best], abs=1e-4)
    assert "perplexity" in error


def test_a_converted_model_translates_the_same(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    assert run(["convert", str(workspace / "run"), str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["model_type"]
    outputs = []
    for folder in (workspace / "run", tmp_path / "out"):
        assert run(["translate", str(folder), *read_sources(workspace)]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--in", "b"], "both given"),
        (["--in", "no-such-file"], "no-such-file"),
        (["a", "--nbest", "9"], "nbest (9) must not exceed beam (5)"),
        (["a", "--glossary", "no-such-file"], "no-such-file"),
        (["a", "--out", "/dev/null/x"], "cannot be written"),
        (["a", "--out", "."], "is a folder"),
        (["a", "--beam", "0"], "--beam"),
        (["a", "--force-word", "b", "--forbid-word", "b"], "forbidden"),
    ],
)
def test_an_error_is_one_message(
    workspace: Path, arguments: list[str], message: str, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["translate", str(workspace / "run"), *arguments]) == 2
    out, error = capfd.readouterr()
    assert (out, error.count("\n") <= 2) == ("", True)
    assert message in error
    assert not list(tmp_path.iterdir())


def test_an_error_in_the_input_leaves_the_output_file_unchanged(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "in.txt"
    out = tmp_path / "out.txt"
    source.write_bytes(b"a b\n\xff\xfe broken\n")
    out.write_text("old\n")
    assert run(["translate", str(workspace / "run"), "--in", str(source), "--out", str(out)]) == 2
    assert "in.txt:2" in capfd.readouterr().err
    assert out.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_available_lines_are_yielded_before_an_error_is_raised() -> None:
    def broken_lines() -> Iterator[str]:
        yield "a"
        yield "b"
        raise DataError("broken")

    lines = []
    with pytest.raises(DataError, match="broken"):
        for window in iter_available(broken_lines()):
            lines += window
    assert lines == ["a", "b"]
    assert [line for window in iter_available(iter("abcdefg"), max_lines=3) for line in window] == list("abcdefg")
    assert max(len(window) for window in iter_available(iter("abcdefg"), max_lines=3)) <= 3


def test_standard_input_is_translated_line_by_line(workspace: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "regard", "translate", str(workspace / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for text in ("a b", "c d e"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(timeout=HANG_GUARD) == 0
