"""What the verbs that take texts share: arguments, the lines of a file, or standard input line by line."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import click

from regard.cli.model_options import FOLDER, WINDOW, iter_windows
from regard.cli.options import Option, Verb, verb
from regard.cli.output import note, show_progress, write_lines
from regard.errors import UsageError

Item = TypeVar("Item")
Opened = TypeVar("Opened")
TEXTS = click.Argument(["texts"], nargs=-1, metavar="[TEXT]…")
IN = Option(["--in", "source"], metavar="FILE", help="take the lines of this file")
OUT = Option(["--out"], metavar="FILE", help="write here instead of to standard output; .gz is compressed")
ENCODING = Option(["--encoding"], default="utf-8", help="text encoding of what is read [default: utf-8]")


@dataclass(frozen=True)
class TextInput:
    """What a verb is to work on, and where and how its lines are written."""

    texts: tuple[str, ...]
    source: str | None  # a file of them
    out: str | None
    encoding: str
    as_json: bool

    def check(self) -> None:
        """Refuse texts that are given twice."""
        if self.texts and self.source:
            raise UsageError("texts and --in are both given: keep one of them")

    def lines(self) -> list[str]:
        """Return the texts that were given, or the lines of the file; nothing is waited for."""
        self.check()
        if not self.source:
            return list(self.texts)
        from regard.config.data import ReadConfig
        from regard.data.ledger import read_lines

        return list(read_lines(self.source, ReadConfig(encoding=self.encoding)))

    def windows(self) -> tuple[Iterable[Sequence[str]], int]:
        """Return the texts, some at a time, and how many there are; 0 for standard input, where nobody knows yet."""
        if self.texts and not self.source:
            return [self.texts], len(self.texts)
        if found := self.lines():
            return iter_windows(found), len(found)
        if self.source:
            return [], 0
        from regard.config.data import ReadConfig
        from regard.data.ledger import iter_lines

        return iter_available(iter_lines(sys.stdin.buffer, ReadConfig(encoding=self.encoding))), 0


def text_verb(help: str, options: Sequence[click.Parameter] = ()) -> Callable[[Callable[..., None]], Verb]:
    """Return a decorator that makes a function a verb for texts: it gets the context, a folder and what was `Given`."""

    def decorate(function: Callable[..., None]) -> Verb:
        def call(
            context: click.Context,
            folder: str,
            texts: tuple[str, ...],
            source: str | None,
            out: str | None,
            encoding: str,
            as_json: bool,
            **settings: Any,
        ) -> None:
            function(context, folder, TextInput(texts, source, out, encoding, as_json), **settings)

        return verb(help, [FOLDER, TEXTS, IN, OUT, ENCODING, *options], name=function.__name__)(call)

    return decorate


def write_output(lines: Iterable[str], out: str | None) -> None:
    """Write lines to a file, or to standard output as they come."""
    if out:
        write_lines(out, lines)
        return
    for line in lines:
        print(line, flush=True)


def process_texts(
    given: TextInput,
    opened: Callable[[], Opened],
    read: Callable[[Opened, Sequence[str]], Iterable[Item]],
    shown: Callable[[Opened, int, Item], Iterable[str]],
) -> None:
    """Let a model read texts as they come, write what it says of each, and tell how much of them it read.

    The model is opened when the place to write to is known to be one.
    """
    models: list[Opened] = []

    def lines() -> Iterator[str]:
        waiting, total = given.windows()
        models.append(model := opened())
        found = (list(read(model, window)) for window in waiting)
        said = show_progress(found, total, "texts") if given.out and total else chain.from_iterable(found)
        for number, one in enumerate(said):
            yield from shown(model, number, one)

    write_output(lines(), given.out)
    for model in models:
        if account := getattr(model, "account", None):
            note(account.format())


def iter_available(lines: Iterable[str], most: int = WINDOW) -> Iterator[list[str]]:
    """Yield lines as they come: alone when each is waited for, many together when they are all there.

    >>> list(iter_available(iter("abc")))[0][0]
    'a'
    """
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * most)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # handed over: it is raised where the lines are used
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    last: str | BaseException | None = ""
    while isinstance(last, str):
        window: list[str] = []
        last = waiting.get()
        while isinstance(last, str):
            window.append(last)
            if len(window) == most or waiting.empty():
                break
            last = waiting.get()
        if window:
            yield window
    if last is not None:
        raise last
