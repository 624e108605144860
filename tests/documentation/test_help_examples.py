"""Every example of every help text runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from regard.cli import VERBS
from regard.cli import regard as command_line
from regard.data.brackets import generate_brackets
from regard.data.conll import conll_lines
from regard.data.coreference import HEADER
from regard.data.coreference_templates import generate_coreference
from regard.report import demo
from tests.documentation.workspace import Workspace, output_folder

SHORTENED = {  # sample → lines that the examples need
    **dict.fromkeys(("train.en", "train.de", "pairs.tsv"), 600),
    **dict.fromkeys(("test.en", "test.de", "val.en", "val.de", "test.tsv"), 20),
    **dict.fromkeys(("reviews.csv", "books/one.txt", "books/two.txt"), 150),
    **dict.fromkeys(("test.csv", "big.txt"), 20),
}
COPIES = {  # file of an example → sample that stands for it
    "dev.tsv": "test.tsv",
    "dev.en": "test.en",
    "dev.de": "test.de",
    "dev.csv": "test.csv",
    "dev.conll": "test.conll",
    "squad-dev.json": "squad.json",
    "qa1_train.txt": "qa2_train.txt",
    "qa1_test.txt": "qa2_test.txt",
    "news.txt": "lines.txt",
    "reviews.txt": "lines.txt",
    "data/multi30k/train.en": "test.en",
    "data/multi30k/train.de": "test.de",
    "data/multi30k/valid.en": "test.en",
    "data/multi30k/valid.de": "test.de",
}
HUB_MODELS = {"bert-base-uncased": "runs/bert", "gpt2": "runs/gpt"}  # name on the hub → run that stands for it
TEXTS = {
    "masked.txt": "Two dogs [MASK] in the snow.\n",
    "story-questions.txt": "Where is the apple?\n",
    "prompts.txt": "Two dogs\n",
    "pairs.csv": "source,target\nTwo dogs run.,Zwei Hunde rennen.\n",
    "brackets.conll": "".join(f"{line}\n" for line in conll_lines(generate_brackets(20, lengths=(4, 9)))),
    "coreference.tsv": "".join("\t".join(map(str, row)) + "\n" for row in (HEADER, *generate_coreference(5))),
}


def commands() -> list[click.Command]:
    """Every command that has a help text."""
    context = click.Context(command_line)
    found: list[click.Command] = [command_line]
    for name in VERBS:
        command = command_line.get_command(context, name)
        assert command is not None
        found.append(command)
        if isinstance(command, click.Group):
            found += filter(None, (command.get_command(context, inner) for inner in command.list_commands(context)))
    return found


def examples() -> list[str]:
    """Examples of all help texts."""
    lines = [line.strip() for command in commands() for line in (command.help or "").splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith("regard ")))


def train_commands() -> dict[str, str]:
    """For every model folder, the first example that trains it."""
    trained: dict[str, str] = {}
    for example in examples():
        if example.startswith(("regard train", "regard distil")) and output_folder(example):
            trained.setdefault(output_folder(example), example)
    return trained


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """The samples of the pages, and what the examples name beside them."""
    folder = tmp_path_factory.mktemp("help")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(demo, "NUM_PAIRS", {"train": 500, "valid": 11})  # as in the demo's own test
        patch.setattr(demo, "NUM_TEST_DATES", 43)
        workspace = Workspace.create(folder)
        workspace.train_commands = train_commands()
        write_files(folder)
        shutil.rmtree(folder / "bert-base-uncased")
        for name, run in HUB_MODELS.items():
            workspace.run(f"regard info {run}", "preparation")  # which trains it
            (folder / name).symlink_to(folder / run)
        for preparation in (
            'regard see runs/en-de "Two dogs run." --out dogs.json',
            "regard embed runs/adapted --in notes.txt --out notes.npy",
        ):
            workspace.run(preparation, "preparation")
        yield workspace
    shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: Path) -> None:
    """Shorten the samples, and write the other files that the examples name."""
    for name, num_lines in SHORTENED.items():
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:num_lines]))
    for name, sample in COPIES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / sample, folder / name)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    reviews = (folder / "reviews.csv").read_text()
    (folder / "survey.csv").write_text(reviews.replace("text,label", "review,sentiment", 1))


@pytest.mark.parametrize("example", examples())
def test_an_example_of_a_help_text_runs(example: str, workspace: Workspace) -> None:
    if "--to onnx" in example:
        pytest.importorskip("onnxscript", reason="the extra onnx exports models")
    workspace.run(without_waiting(example), "help")


def without_waiting(example: str) -> str:
    """An example that ends by itself and soon: a page is not served, matrix products are not timed."""
    if example.startswith("regard see") and "--out" not in example:
        return f"{example} --json"
    return f"{example} --quick" if example == "regard doctor" else example
