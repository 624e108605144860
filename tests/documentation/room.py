"""A folder in which the pages' commands run: the samples, small models under published names, and thrift.

Commands run as they are written, except that trainings get a plan of a few steps: what is tested is that they work,
not how good they make a model. A model that a command names and that nobody has trained yet is trained first, by the
command of the page that makes it.
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
from docs.make_samples import NOTES, sentences, write
from regard.cli import regard as verbs
from regard.cli import run
from tests.documentation.blocks import ROOT, Block, blocks, commands, pages
from tests.encoders import saved_encoder
from tests.scale import HANG_GUARD

PUBLISHED = ("sentence-transformers/all-MiniLM-L6-v2", "bert-base-uncased")  # folders here, so that nothing is fetched
PLANS = {  # verb, task, or both → how a training is kept short
    "train stories": ("--epochs", "2", "--starts", "2", "--stories.linear_start_epochs", "1"),
    "train translate": (
        *("--steps", "2", "--batch-tokens", "256", "--precision", "float32"),
        *("--decoding.beam", "3", "--decoding.max_length_a", "1", "--decoding.max_length_b", "3"),
    ),
    "train": ("--steps", "2", "--batch-tokens", "256", "--precision", "float32"),
    "distil": ("--steps", "2"),
    "compare": ("--minutes", "0.005", "--preset", "micro"),
    "demo": ("--seconds", "1"),
    "heads": ("--sample", "4"),
}
BUDGETS = {"--minutes", "--epochs", "--steps", "--seconds"}  # given ones are dropped for the short plan
FEWER = {"--seeds": "2", "--starts": "2", "--hops": "2", "--workers": "1"}
SMALLER = {"pairs.tsv": "mine.tsv"}  # for the comparison, which trains several models


@dataclass
class Room:
    """Where commands and Python blocks run."""

    folder: Path
    makers: Mapping[str, str] = field(default_factory=dict)  # model folder → the command that trains it
    done: set[str] = field(default_factory=set)

    @classmethod
    def furnished(cls, folder: Path) -> Room:
        """Return a room with the samples and the small models."""
        write(folder)
        (folder / "recipes").symlink_to(ROOT / "recipes")
        (folder / "docs").symlink_to(ROOT / "docs")
        texts = [text for pair in sentences()[:400] for text in pair] + [text for text, _ in NOTES]
        for name in PUBLISHED:
            saved_encoder(folder / name, texts)
        return cls(folder, makers())

    def run(self, command: str, place: str) -> None:
        """Run a command of a page; one that fails is told with its place."""
        words = shlex.split(command, comments=True)
        if shlex.join(words) in self.done:
            return
        self._provide(command)
        if words[0] == "regard" and not {"<", ">", "|", "&&"} & set(words):
            code = self._regard([found for word in words[1:] for found in sorted(glob.glob(word)) or [word]])
        else:
            code = self._shell(command)
        assert code == 0, f"{place}: exit code {code}: {command}"
        self.done.add(shlex.join(words))

    def _provide(self, command: str) -> None:
        """Train the models that a command reads and that are not there."""
        made = out_of(command)
        for word in shlex.split(command, comments=True):
            maker = self.makers.get(word, "")
            if maker and word != made and not Path(word).exists():
                self.run(maker, word)

    def _regard(self, words: list[str]) -> int:
        """Run Regard in this process; a training writes beside what is there, which is kept."""
        words = thrifty(words)
        out = words.index("--out") + 1 if "--out" in words and words[0] in ("train", "distil", "compare") else 0
        if out and Path(words[out]).exists():
            place = Path(f"again/{len(self.done)}")
            words = [*words[:out], str(place), *words[out + 1 :]]
        if words[0] == "convert":
            shutil.rmtree(words[2], ignore_errors=True)
        return run(words)

    def _shell(self, command: str) -> int:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(["bash", "-ec", command], env=environment, timeout=HANG_GUARD).returncode

    def python(self, block: Block, names: dict[str, Any]) -> None:
        """Run a Python block; one with prompts is compared with what it shows."""
        for name in self.makers:
            if f'"{name}"' in block.text and not Path(name).exists() and f'out="{name}"' not in block.text:
                self.run(self.makers[name], block.place)
        with short_training():
            if ">>>" in block.text:
                flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
                test = doctest.DocTestParser().get_doctest(block.text, names, block.place, str(block.page), block.line)
                told: list[str] = []
                runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
                runner.run(test, out=told.append, clear_globs=False)
                names.update(test.globs)
                assert not told, "".join(told)
            else:
                exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)


def thrifty(words: list[str]) -> list[str]:
    """Return a command with a short plan.

    >>> thrifty(["distil", "teacher", "a.csv", "--minutes", "30", "--out", "x"])
    ['distil', 'teacher', 'a.csv', '--out', 'x', '--steps', '2', '--threads', '1']
    """
    plan = PLANS.get(" ".join(words[:2]), PLANS.get(words[0], ()))
    dropped = {*plan[::2], *(BUDGETS if plan else ())}
    kept: list[str] = []
    for word in words:
        before = kept[-1] if kept else ""
        kept.append(FEWER.get(before, SMALLER.get(word, word) if words[0] == "compare" else word))
    chosen: list[str] = []
    skipping = False
    for word in kept:
        if skipping or word in dropped:
            skipping = not skipping
            continue
        chosen.append(word)
    threads = ["--threads", "1"] if "--threads" not in words and takes_threads(words[0]) else []
    return [*chosen, *plan, *threads]


def takes_threads(name: str) -> bool:
    """Whether a verb can be kept to one core."""
    verb = verbs.get_command(click.Context(verbs), name)
    return verb is not None and any("--threads" in option.opts for option in verb.params)


def out_of(command: str) -> str:
    """Return where a command writes a model."""
    words = shlex.split(command, comments=True)
    return words[words.index("--out") + 1] if "--out" in words[:-1] else ""


def makers() -> dict[str, str]:
    """Return, for every model folder of the pages, the first command that trains it."""
    found: dict[str, str] = {}
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                for _, command in commands(block):
                    if command.startswith(("regard train", "regard distil", "regard demo")):
                        found.setdefault(out_of(command), command)
    found.pop("", None)
    return found


@contextlib.contextmanager
def short_training() -> Iterator[None]:
    """Give every training of a translator that Python code starts a plan of two steps."""
    train = regard.train
    plan = {"steps": 2, "threads": 1, "batch_tokens": 256, "precision": "float32"}
    plan |= {"decoding__beam": 1, "decoding__max_length_a": 1, "decoding__max_length_b": 3}

    def short(*words: Any, out: str, **settings: Any) -> Any:
        for name in ("minutes", "epochs", "steps"):
            settings.pop(name, None)
        return train(*words, out="again/python" if Path(out).exists() else out, **plan, **settings)

    regard.train = short  # type: ignore[assignment]
    try:
        yield
    finally:
        regard.train = train
