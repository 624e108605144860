"""The command line with a model: train, go on, translate, score, convert – by the commands that users type."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
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
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a model that was trained by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    for split, count in (("train", 600), ("valid", 19), ("test", 23)):
        place = str(folder / f"{split}.tsv")
        assert run(["data", "make", "copy", "--count", str(count), "--split", split, "--out", place]) == 0
    assert run(command(folder)) == 0
    return folder


def command(room: Path, out: str = "run") -> list[str]:
    files = ["train", "translate", str(room / "train.tsv"), "--valid", str(room / "valid.tsv")]
    return [*files, "--out", str(room / out), *SMALL, *PLAN]


def sources(room: Path) -> list[str]:
    return [line.split("\t")[0] for line in (room / "test.tsv").read_text().splitlines()]


def printed(output: Output) -> list[str]:
    return output.readouterr().out.splitlines()


def test_a_finished_run_says_so_and_ends_well(room: Path, capfd: Output) -> None:
    assert run(command(room)) == 0
    out, error = capfd.readouterr()
    assert "is finished: nothing to do" in error
    assert "step 40, finished before" in out


def test_other_settings_in_an_existing_run_are_refused_by_name(room: Path, capfd: Output) -> None:
    assert run([*command(room), "--seed", "7"]) == 2
    assert "training.seed: 1 there, 7 now" in capfd.readouterr().err


def test_training_as_json_is_one_event_a_line(room: Path, capfd: Output) -> None:
    assert run([*command(room, "other"), "--steps", "4", "--training.max_checkpoints=3", "--json"]) == 0
    out, error = capfd.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert events[0]["event"] == "plan"
    assert events[-1]["event"] == "report"
    assert events[-1]["step"] == 4
    assert error == ""


def test_info_tells_what_the_run_is(room: Path, capfd: Output) -> None:
    assert run(["info", str(room / "run")]) == 0
    text = capfd.readouterr().out
    assert "training: finished at step 40" in text
    assert "1+1 layers of 16, 2 heads, feed-forward 32" in text
    assert "best aligning head: decoder.0.cross" in text
    assert run(["info", str(room / "run"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["kind"] == "run"
    assert found["model"]["hidden_size"] == 16
    assert found["run"]["checkpoints"] == [20, 40]


def test_texts_lines_and_files_are_translated_alike_and_in_order(
    room: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, folder = sources(room), str(room / "run")
    assert run(["translate", folder, *texts]) == 0
    said = printed(capfd)
    assert len(said) == len(texts)
    source, out = tmp_path / "in.txt", tmp_path / "out.txt.gz"
    source.write_text("".join(f"{text}\n" for text in texts))
    assert run(["translate", folder, "--in", str(source), "--out", str(out)]) == 0
    assert printed(capfd) == []
    assert gzip.decompress(out.read_bytes()).decode().splitlines() == said
    with source.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": stream}))
        assert run(["translate", folder]) == 0
    assert printed(capfd) == said


def test_empty_and_blank_lines_stay_in_their_place(room: Path, tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a b\n\n   \nc d\n")
    assert run(["translate", str(room / "run"), "--in", str(source)]) == 0
    lines = printed(capfd)
    assert len(lines) == 4
    assert [bool(line.strip()) for line in lines] == [True, False, False, True]


def test_lists_of_the_best_with_scores_and_alignments(room: Path, capfd: Output) -> None:
    folder = str(room / "run")
    assert run(["translate", folder, "a b c", "d e", "--nbest", "3", "--beam", "4", "--align"]) == 0
    rows = [line.split("\t") for line in printed(capfd)]
    parts = [row[0].split(" ||| ") for row in rows]
    assert [part[0] for part in parts] == ["0", "0", "0", "1", "1", "1"]
    scores = [float(part[2]) for part in parts]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert all("-" in link for row in rows for link in row[1].split())
    assert run(["translate", folder, "a b c", "--nbest", "3", "--beam", "4", "--align", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["number"], found["source"], found["translation"]) == (0, "a b c", parts[0][1])
    assert found["score"] == pytest.approx(scores[0], abs=1e-3)
    assert [one["translation"] for one in found["alternatives"]] == [part[1] for part in parts[1:3]]


def test_words_can_be_forced_and_forbidden(room: Path, tmp_path: Path, capfd: Output) -> None:
    folder = str(room / "run")
    glossary = tmp_path / "glossary.tsv"
    glossary.write_text("a\tp\n")
    assert run(["translate", folder, "a b c", "--force-word", "k", "--forbid-word", "b", "--prefix", "o"]) == 0
    words = capfd.readouterr().out.split()
    assert words[0] == "o" and "k" in words and "b" not in words
    assert run(["translate", folder, "a b c", "--glossary", str(glossary)]) == 0
    assert "p" in capfd.readouterr().out.split()


def test_samples_depend_on_the_seed_alone(room: Path, capfd: Output) -> None:
    def sample(seed: int) -> str:
        settings = ["--sample", "--temperature", "2", "--top-k", "7", "--seed", str(seed)]
        assert run(["translate", str(room / "run"), "a b c d e f", *settings]) == 0
        return capfd.readouterr().out

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_a_model_beside_itself_says_the_same(room: Path, capfd: Output) -> None:
    folder = str(room / "run")
    assert run(["translate", folder, "a b c"]) == 0
    alone = capfd.readouterr().out
    assert run(["translate", folder, "a b c", "--ensemble", folder]) == 0
    assert capfd.readouterr().out == alone


def test_a_test_set_is_evaluated_and_scored(room: Path, tmp_path: Path, capfd: Output) -> None:
    folder, test, said = str(room / "run"), str(room / "test.tsv"), tmp_path / "said.txt"
    assert run(["evaluate", folder, test, "--out", str(said), "--beam", "2", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert scores["sentences"] == 23
    assert "tok:13a" in scores["bleu_signature"]
    assert sum(group["sentences"] for group in scores["by_length"]) == 23
    assert len(said.read_text().splitlines()) == 23
    assert run(["evaluate", folder, test, "--beam", "2"]) == 0
    assert re.search(rf"^BLEU +{scores['bleu']:.2f}  nrefs", capfd.readouterr().out, re.MULTILINE)

    assert run(["translate", folder, "--json", *sources(room), "--beam", "2"]) == 0
    best = [json.loads(line) for line in printed(capfd)]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{one['source']}\t{one['translation']}\n" for one in best))
    assert run(["score", folder, str(pairs), "--json"]) == 0
    out, error = capfd.readouterr()
    scored = [json.loads(line) for line in out.splitlines()]
    assert [one["score"] for one in scored] == pytest.approx([one["score"] for one in best], abs=1e-4)
    assert "perplexity" in error


def test_a_converted_model_translates_the_same(room: Path, tmp_path: Path, capfd: Output) -> None:
    assert run(["convert", str(room / "run"), str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["model_type"]
    said = []
    for folder in (room / "run", tmp_path / "out"):
        assert run(["translate", str(folder), *sources(room)]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_what_cannot_be_done_is_refused(
    room: Path, arguments: list[str], words: str, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["translate", str(room / "run"), *arguments]) == 2
    out, error = capfd.readouterr()
    assert (out, error.count("\n") <= 2) == ("", True)
    assert words in error
    assert not list(tmp_path.iterdir())


def test_a_fault_in_the_input_leaves_no_half_output(room: Path, tmp_path: Path, capfd: Output) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"a b\n\xff\xfe broken\n")
    out.write_text("kept\n")
    assert run(["translate", str(room / "run"), "--in", str(source), "--out", str(out)]) == 2
    assert "in.txt:2" in capfd.readouterr().err
    assert out.read_text() == "kept\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_lines_that_are_waited_for_come_alone_and_a_fault_comes_last() -> None:
    def faulty() -> list[str]:
        yield "a"
        yield "b"
        raise DataError("broken")

    seen = []
    with pytest.raises(DataError, match="broken"):
        for window in iter_available(faulty()):
            seen += window
    assert seen == ["a", "b"]
    assert [line for window in iter_available(iter("abcdefg"), most=3) for line in window] == list("abcdefg")
    assert max(len(window) for window in iter_available(iter("abcdefg"), most=3)) <= 3


def test_a_conversation_is_answered_line_by_line(room: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "regard", "translate", str(room / "run")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as talk:
        assert talk.stdin and talk.stdout and talk.stderr
        for text in ("a b", "c d e"):
            talk.stdin.write(f"{text}\n")
            talk.stdin.flush()
            assert talk.stdout.readline().strip()
        talk.stdin.close()
        assert talk.stdout.read() == ""
        assert talk.wait(timeout=HANG_GUARD) == 0
