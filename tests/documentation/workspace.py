"""A folder in which the commands of the pages run: the samples, small models under hub names, and short trainings.

Commands run as they are written, except that training takes a few steps: the tests check that commands work, not the
quality of the models. A model that a command names and that does not exist yet is trained first, by the first command
of the pages that writes it.
"""

from __future__ import annotations

import contextlib
import doctest
import glob
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import regard
from docs.make_samples import NOTES, sentences, write_samples
from regard.cli import regard as verbs
from regard.cli import run
from tests.documentation.blocks import ROOT, Block, blocks, commands, pages
from tests.encoders import saved_encoder
from tests.scale import HANG_GUARD

HUB_MODELS = ("sentence-transformers/all-MiniLM-L6-v2", "bert-base-uncased")  # local folders: nothing is downloaded
SHORT_PLANS = {  # verb, or verb and task → options that keep training short
    "train story-qa": ("--epochs", "2", "--restarts", "2", "--training.linear_start_epochs", "1"),
    "train translate": (
        *("--steps", "2", "--batch-tokens", "256", "--precision", "float32"),
        *("--decoding.beam", "3", "--decoding.max_length_a", "1", "--decoding.max_length_b", "3"),
    ),
    "train": ("--steps", "2", "--batch-tokens", "256", "--precision", "float32"),
    "distil": ("--steps", "2"),
    "compare": ("--minutes", "0.005"),
    "compare pairs.tsv": ("--minutes", "0.005", "--preset", "micro"),
    "demo": ("--seconds", "1"),
    "heads": ("--sample", "4"),
    "probe": ("--sample", "40"),
    "bench": ("--rounds", "1", "--count", "2"),
    "reach": ("--sample", "4"),
    "cost": ("--rounds", "1", "--lengths", "3,5", "--batch-tokens", "8", "--hidden-size", "8"),
}
BUDGET_FLAGS = {"--minutes", "--epochs", "--steps", "--seconds"}  # dropped in favour of the short plan
SMALL_VALUES = {"--seeds": "2", "--restarts": "2", "--hops": "2", "--workers": "1", "--max-new-tokens": "5"}
SMALL_FILES = {"pairs.tsv": "mine.tsv"}  # for the comparison, which trains several models


@dataclass
class Workspace:
    """Folder in which commands and Python blocks run."""

    folder: Path
    train_commands: Mapping[str, str] = field(default_factory=dict)  # model folder → command that trains it
    finished: set[str] = field(default_factory=set)  # commands that have run

    @classmethod
    def create(cls, folder: Path) -> Workspace:
        """Fill a folder with the samples and the small models."""
        write_samples(folder)
        (folder / "recipes").symlink_to(ROOT / "recipes")
        (folder / "docs").symlink_to(ROOT / "docs")
        texts = [text for pair in sentences()[:400] for text in pair] + [text for text, _ in NOTES]
        for name in HUB_MODELS:
            saved_encoder(folder / name, texts)
        return cls(folder, find_train_commands())

    def run(self, command: str, location: str) -> None:
        """Run a command of a page; a failure names its location."""
        arguments = shlex.split(command, comments=True)
        if shlex.join(arguments) in self.finished:
            return
        self._train_missing_models(command)
        if arguments[0] == "regard" and not {"<", ">", "|", "&&"} & set(arguments):
            code = self._run_regard(_expand_patterns(arguments[1:]))
        else:
            code = self._run_shell(command)
        assert code == 0, f"{location}: exit code {code}: {command}"
        self.finished.add(shlex.join(arguments))

    def _train_missing_models(self, command: str) -> None:
        """Train the models that a command reads and that do not exist yet."""
        out = output_folder(command)
        for argument in shlex.split(command, comments=True):
            train_command = self.train_commands.get(argument, "")
            if train_command and argument != out and not Path(argument).exists():
                self.run(train_command, argument)

    def _run_regard(self, arguments: list[str]) -> int:
        """Run Regard in this process; a training run never overwrites an existing folder."""
        arguments = shorten(arguments)
        if "--out" in arguments and arguments[0] in ("train", "distil", "compare"):
            out = arguments.index("--out") + 1
            if Path(arguments[out]).exists():
                arguments[out] = f"again/{len(self.finished)}"
        if arguments[0] == "convert":
            shutil.rmtree(arguments[2], ignore_errors=True)
        return run(arguments)

    def _run_shell(self, command: str) -> int:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(["bash", "-ec", command], env=environment, timeout=HANG_GUARD).returncode

    def run_python(self, block: Block, names: dict[str, Any]) -> None:
        """Run a Python block; the output of one with prompts is compared with the page."""
        for folder, train_command in self.train_commands.items():
            is_read = f'"{folder}"' in block.text and f'out="{folder}"' not in block.text
            if is_read and not Path(folder).exists():
                self.run(train_command, block.location)
        with short_training():
            if ">>>" in block.text:
                _run_doctest(block, names)
            else:
                source = "\n" * (block.line - 1) + block.text
                exec(compile(source, str(block.page), "exec", dont_inherit=True), names)  # as in a file of its own


def _expand_patterns(arguments: list[str]) -> list[str]:
    """Expand file patterns as a shell does."""
    expanded = []
    for argument in arguments:
        expanded += sorted(glob.glob(argument)) or [argument]
    return expanded


def _run_doctest(block: Block, names: dict[str, Any]) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(block.text, names, block.location, str(block.page), block.line)
    failures: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    runner.run(test, out=failures.append, clear_globs=False)
    names.update(test.globs)
    assert not failures, "".join(failures)


def shorten(arguments: list[str]) -> list[str]:
    """Replace the budget of a command by a short plan.

    >>> shorten(["distil", "teacher", "a.csv", "--minutes", "30", "--out", "x"])
    ['distil', 'teacher', 'a.csv', '--out', 'x', '--steps', '2', '--threads', '1']
    """
    verb = arguments[0]
    plan = SHORT_PLANS.get(" ".join(arguments[:2]), SHORT_PLANS.get(verb, ()))
    if arguments[:2] == ["train", "story-qa"] and "--arch" in arguments:  # trained as in other tasks
        plan = SHORT_PLANS["train"]
    is_of_finished_runs = (verb == "compare" and "--arch" not in arguments) or "--history" in arguments
    if is_of_finished_runs:
        plan = ()
    dropped_flags = {*plan[::2], *(BUDGET_FLAGS if plan else ())}
    shortened: list[str] = []
    flag = ""  # the argument before
    for argument in arguments:
        is_dropped = argument in dropped_flags or flag in dropped_flags
        if flag in SMALL_VALUES:
            argument = SMALL_VALUES[flag]
        elif verb == "compare":
            argument = SMALL_FILES.get(argument, argument)
        if not is_dropped:
            shortened.append(argument)
        flag = argument
    computes = "--threads" not in arguments and "--history" not in arguments and has_threads_option(verb)
    threads = ["--threads", "1"] if computes else []
    return [*shortened, *plan, *threads]


def has_threads_option(name: str) -> bool:
    """Whether a verb can be limited to one thread."""
    verb = verbs.get_command(click.Context(verbs), name)
    return verb is not None and any("--threads" in option.opts for option in verb.params)


def output_folder(command: str) -> str:
    """Folder to which a command writes a model."""
    arguments = shlex.split(command, comments=True)
    return arguments[arguments.index("--out") + 1] if "--out" in arguments[:-1] else ""


def find_train_commands() -> dict[str, str]:
    """For every model folder of the pages, the first command that trains it."""
    train_commands: dict[str, str] = {}
    for page in pages():
        for command in _console_commands(page):
            if command.startswith(("regard train", "regard distil", "regard demo")):
                train_commands.setdefault(output_folder(command), command)
    train_commands.pop("", None)
    return train_commands


def _console_commands(page: Path) -> Iterator[str]:
    for block in blocks(page):
        if block.language == "console":
            yield from (command for _, command in commands(block))


@contextlib.contextmanager
def short_training() -> Iterator[None]:
    """Limit every training that Python code starts to two steps."""
    train = regard.train
    plan = {"steps": 2, "threads": 1, "batch_tokens": 256, "precision": "float32"}
    decoding = {"decoding__beam": 1, "decoding__max_length_a": 1, "decoding__max_length_b": 3}

    def train_briefly(task: str, *files: str, out: str, **settings: Any) -> Any:
        for name in ("minutes", "epochs", "steps"):
            settings.pop(name, None)
        short_plan = plan | decoding if task == "translate" else plan
        return train(task, *files, out="again/python" if Path(out).exists() else out, **short_plan, **settings)

    regard.train = train_briefly  # type: ignore[assignment]
    try:
        yield
    finally:
        regard.train = train
