"""`regard train story-qa`, `answer` and `evaluate` on stories, by the commands that users type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.cli import run
from tests.stories import walks, write

PLAN = "--hops 2 --restarts 3 --epochs 20 --training.linear_start_epochs 3 --threads 1".split()
STORY = "Mary went to the kitchen.\n\nJohn went to the garden.\nMary went to the office.\n"
NUMBERED = """1 Mary went to the kitchen.
2 Where is Mary?\tkitchen\t1
3 John went to the garden.
4 Mary went to the office.
"""

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a memory network trained by the command line."""
    folder = tmp_path_factory.mktemp("stories")
    write(folder, "walks_train.txt", 240, seed=1)
    for index in (1, 2, 3):
        write(folder, f"walks{index}_test.txt", 11 * index, seed=10 + index)
    (folder / "story.txt").write_text(STORY)
    (folder / "numbered.txt").write_text(NUMBERED)
    assert run(train_command(folder)) == 0
    return folder


def train_command(workspace: Path) -> list[str]:
    valid = [str(workspace / f"walks{index}_test.txt") for index in (1, 2, 3)]
    return [
        "train",
        "story-qa",
        str(workspace / "walks_train.txt"),
        "--valid",
        *valid,
        *PLAN,
        "--out",
        str(workspace / "run"),
    ]


def answer_command(workspace: Path, *arguments: str, story: str = "story.txt") -> list[str]:
    return ["answer", str(workspace / "run"), "--story", str(workspace / story), "--threads", "1", *arguments]


def test_all_files_after_valid_are_validation_data_and_errors_are_reported_by_task(
    workspace: Path, capfd: Output
) -> None:
    assert run([*train_command(workspace), "--json"]) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert "is finished: nothing to do" in events[0]["text"]
    report = events[-1]
    assert (report["event"], report["step"], report["reason"]) == ("report", 23, "finished before")
    tasks = report["metrics"]["valid"]["tasks"]
    assert [(task["task"], task["questions"]) for task in tasks] == [("walks1", 11), ("walks2", 22), ("walks3", 33)]
    assert run(train_command(workspace)) == 0
    out = capfd.readouterr().out
    assert "23 epochs in" in out
    assert out.splitlines()[-1].startswith("next     regard ")
    assert run([*train_command(workspace), "--hops", "3"]) == 2
    assert "memory_network.hops: 2 there, 3 now" in capfd.readouterr().err


def test_info_describes_the_run(workspace: Path, capfd: Output) -> None:
    assert run(["info", str(workspace / "run")]) == 0
    text = capfd.readouterr().out
    assert (
        "model: memory network, " in text
        and "(family memory_network)" in text
        and "2 hops" in text
        and "embedding size 20" in text
    )
    assert "vocabulary: 12 tokens in vocabulary.json" in text
    assert "  walks2" in text and "mean of 3 tasks" in text
    assert "training: finished at epoch 23" in text
    assert run(["info", str(workspace / "run"), "--json"]) == 0
    info = json.loads(capfd.readouterr().out)
    assert (info["model"]["hops"], info["task"]["task"], info["run"]["unit"]) == (2, "story-qa", "epoch")


def test_answers_come_with_the_attention_of_every_hop(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    page = tmp_path / "page.html"
    assert run(answer_command(workspace, "Where is Mary?", "Where is John?", "--page", str(page))) == 0
    out, error = capfd.readouterr()
    first, second = out.split("\n\nWhere is John?\n")
    assert first.splitlines()[0] == "Where is Mary?"
    assert first.splitlines()[1].startswith("→ office")
    assert second.startswith("→ garden")
    assert "hop 1" in first and "hop 2" in first
    assert "3 Mary went to the office." in first and "█" in first
    assert "Where is Mary? → office" in page.read_text()
    assert str(page) in error


def test_answers_are_printed_as_json(workspace: Path, capfd: Output) -> None:
    assert run(answer_command(workspace, "Where is Mary?", "--json", "--top-k", "2")) == 0
    (answer,) = map(json.loads, capfd.readouterr().out.splitlines())
    assert (answer["question"], answer["text"], answer["truncated_sentences"]) == ("Where is Mary?", "office", 0)
    assert len(answer["alternatives"]) == 1
    assert [len(row) for row in answer["hops"]] == [3, 3]
    assert answer["supporting"][0]["sentence"] == "Mary went to the office."


def test_the_math_of_hops_is_refused_without_naming_an_option(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    command = ["figure", str(workspace / "run"), "Where is Mary?", "--story", str(workspace / "story.txt")]
    assert run([*command, "--view", "math", "--out", str(tmp_path / "x.svg"), "--threads", "1"]) == 2
    error = capfd.readouterr().err
    assert "the hops of a memory network have no queries, keys and values: choose another view" in error


def test_questions_are_read_from_the_story_or_from_standard_input(
    workspace: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(answer_command(workspace, "--json", story="numbered.txt")) == 0
    (answer,) = map(json.loads, capfd.readouterr().out.splitlines())
    assert (answer["text"], answer["sentences"]) == ("kitchen", ["Mary went to the kitchen."])
    assert run(answer_command(workspace, "Where is Mary?", "--json", story="numbered.txt")) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["text"] == "office"
    assert "questions of the story (1) are skipped" in error
    questions = tmp_path / "questions.txt"
    questions.write_text("Where is John?\n\nWhere is Mary?\n")
    with questions.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": stream}))
        assert run(answer_command(workspace, "--json")) == 0
    answers = [json.loads(line)["text"] for line in capfd.readouterr().out.splitlines()]
    assert answers == ["garden", "office"]


def test_test_files_are_evaluated_by_task(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    files = [str(workspace / f"walks{index}_test.txt") for index in (1, 3)]
    predictions = tmp_path / "predictions.txt"
    assert run(["evaluate", str(workspace / "run"), *files, "--threads", "1", "--json", "--out", str(predictions)]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert [(task["task"], task["questions"]) for task in scores["tasks"]] == [("walks1", 11), ("walks3", 33)]
    assert scores["error"] == pytest.approx(sum(task["error"] for task in scores["tasks"]) / 2)
    assert scores["error"] < 20 and scores["support"] > 80
    assert len(predictions.read_text().splitlines()) == 44
    assert run(["evaluate", str(workspace / "run"), *files, "--threads", "1"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == ["walks1", "walks3", "mean of 2 tasks"]
    assert all("error" in line and "attention on support" in line for line in lines)


def test_an_answer_that_is_not_in_training_is_wrong_and_reported_or_refused(
    workspace: Path, tmp_path: Path, capfd: Output
) -> None:
    unknown = tmp_path / "unknown.txt"
    story = "1 Mary went to the office.\n2 Where is Mary?\tmary\t1\n3 Where is Mary?\tjohn\t1\n"
    unknown.write_text(walks(3, seed=1) + story)
    num_lines = len(unknown.read_text().splitlines())
    expected = f"2 of 5 answers never occur in training: 'mary' ({unknown}:{num_lines - 1}), 'john' ({unknown}:"
    assert run(["evaluate", str(workspace / "run"), str(unknown), "--json"]) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["error"] >= 40 and json.loads(out)["questions"] == 5
    assert expected in error and "they count as wrong" in error
    assert run(["evaluate", str(workspace / "run"), str(unknown), "--unknown-answers", "error"]) == 2
    out, error = capfd.readouterr()
    assert out == "" and expected in error and "--unknown-answers wrong" in error


@pytest.mark.parametrize(
    ("story", "arguments", "message"),
    [
        (STORY, ["Where is Marry?"], "question 1: the model does not know the word 'marry' (did you mean mary?)"),
        (STORY, ["Where is Mary?", "Where?", "Who?"], "question 3: the model does not know the word 'who'"),
        ("Mary went home.\n", ["Where is Mary?"], "story.txt:1: the model does not know the word 'home'"),
        (STORY, ["Where is Mary in the office"], "question 1: the model does not know the word 'in'"),
        (STORY, ["Where is Mary the the office"], "question 1: the question has 6 words, the model holds 5"),
        ("\n\n", ["Where is Mary?"], "story.txt: the story is empty — write one sentence per line"),
        ("Where is Mary?\n", [], "story.txt: the story is empty"),
        (
            "1 Where is Mary?\tkitchen\n2 Mary went to the kitchen.\n",
            [],
            "story.txt:1: no sentence stands before the question",
        ),
        (
            "1 Mary went to the kitchen.\n3 Mary went to the office.\n",
            ["Where?"],
            "story.txt:2: the line has the number 3",
        ),
        (NUMBERED + NUMBERED, ["Where is Mary?"], "story.txt:5: a second story begins"),
        (STORY, [], "no question: add one as an argument"),
        (STORY, ["Where?", "--precision", "bf16"], "compute in float32"),
        (STORY, ["Where?", "--top-k", "0"], "--top-k"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_message(
    workspace: Path,
    tmp_path: Path,
    capfd: Output,
    monkeypatch: pytest.MonkeyPatch,
    story: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text(story)
    with open("/dev/null", "rb") as empty:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": empty}))
        code = run(["answer", str(workspace / "run"), "--story", "story.txt", *arguments])
    error = capfd.readouterr().err
    assert code == 2
    assert error.startswith("regard: ") and message in error
    assert len(error.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hops", "0"], "'--hops' / '--memory_network.hops': 0 is not in the range 1<=x<=32"),
        (["--minutes", "5"], "training.minutes (5.0) means nothing to --arch memory-network: it is for --arch rnn or"),
        (["--epochs", "1.5"], "training.epochs (1.5) of a memory network must be a whole number"),
        (["--beam", "3"], "no such option: --beam"),
        (["--arch", "pretrained"], "'pretrained' is not one of 'memory-network', 'rnn', 'transformer'"),
        (["--arch", "transformer", "--hops", "2"], "memory_network.hops (2) means nothing to --arch transformer"),
        (["--valid", "no-such.txt"], "no-such.txt: no such file"),
        (["other.txt"], "walks.txt: shares none of its 12 words with any other of the 2 files"),
        (["silent.txt"], "silent.txt:1: the story of 1 lines has no question"),
        (["empty.txt"], "empty.txt: the file is empty"),
    ],
)
def test_a_run_that_cannot_be_trained_is_refused(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "walks.txt", 5, seed=1)
    Path("other.txt").write_text("1 Kuh muht.\n2 Muht wer?\tkuh\t1\n")
    Path("silent.txt").write_text("1 Mary slept.\n")
    Path("empty.txt").touch()
    assert run(["train", "story-qa", "walks.txt", *arguments, "--out", "run"]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert message in error
    assert "Traceback" not in error


def test_a_model_for_another_task_is_named_with_its_verb(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    folder = str(workspace / "run")
    test = str(workspace / "walks1_test.txt")
    for arguments, message in (
        (["translate", folder, "a"], "one for 'translate' is needed (`regard answer` uses this one)"),
        (["score", folder, test, test], "(`regard answer` uses this one)"),
        (["convert", folder, str(tmp_path / "out")], "(`regard answer` uses this one)"),
        (["evaluate", folder, test, "--beam", "2"], "--beam does not apply to"),
        (["evaluate", folder, test, "--split"], "--split does not apply to"),
        (["answer", folder, "Where is Mary?"], "--story"),
    ):
        assert run(arguments) == 2
        assert message in capfd.readouterr().err
    task = json.loads((workspace / "run/task.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "marian"}')
    (other / "task.json").write_text(json.dumps({**task, "task": "translate"}))
    assert run(["answer", str(other), "--story", str(workspace / "story.txt"), "Where?"]) == 2
    assert "which answers no questions (`regard translate` uses this one)" in capfd.readouterr().err
    assert run(["evaluate", str(other), test, test, "--unknown-answers", "wrong"]) == 2
    assert "--unknown-answers does not apply to" in capfd.readouterr().err
