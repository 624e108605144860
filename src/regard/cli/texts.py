"""What the verbs that take texts share: arguments, the lines of a file, or standard input line by line."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

import click

from regard.cli.models import WINDOW, windows
from regard.cli.options import Option
from regard.cli.output import note, progress, write_lines
from regard.errors import UsageError

Item = TypeVar("Item")
Opened = TypeVar("Opened", bound="Accountable")
GIVEN: list[click.Parameter] = [
    click.Argument(["texts"], nargs=-1, metavar="[TEXT]…"),
    Option(["--in", "source"], metavar="FILE", help="take the lines of this file"),
    Option(["--out"], metavar="FILE", help="write here instead of to standard output; .gz is compressed"),
    Option(["--encoding"], default="utf-8", help="text encoding of what is read [default: utf-8]"),
]


def given(texts: tuple[str, ...], source: str | None, encoding: str) -> tuple[Iterable[Sequence[str]], int]:
    """Return the texts that were given, some at a time, and how many there are; 0 where nobody knows yet."""
    if texts and source:
        raise UsageError("texts and --in are both given: keep one of them")
    from regard.config.data import ReadConfig
    from regard.data.sources import iter_lines, read_lines

    reading = ReadConfig(encoding=encoding)
    if texts:
        return [texts], len(texts)
    if source:
        found = read_lines(source, reading)
        return windows(found), len(found)
    return arrived(iter_lines(sys.stdin.buffer, reading)), 0


def put(lines: Iterable[str], out: str | None) -> None:
    """Write lines to a file, or to standard output as they come."""
    if out:
        write_lines(out, lines)
        return
    for line in lines:
        print(line, flush=True)


class Accountable(Protocol):
    """A model that keeps account of how much of the texts it read."""

    @property
    def account(self) -> Any: ...


def put_each(
    waiting: tuple[Iterable[Sequence[str]], int],
    out: str | None,
    model: Opened,
    read: Callable[[Opened, Sequence[str]], Iterable[Item]],
    shown: Callable[[Opened, int, Item], Iterable[str]],
) -> None:
    """Let a model read texts as they come, write what it says of each, and tell how much of them it read."""
    windows, total = waiting
    found = (list(read(model, window)) for window in windows)
    said = progress(found, total, "texts") if out and total else chain.from_iterable(found)
    put((line for number, one in enumerate(said) for line in shown(model, number, one)), out)
    note(model.account.line())


def arrived(lines: Iterable[str], most: int = WINDOW) -> Iterator[list[str]]:
    """Yield lines as they come: alone when each is waited for, many together when they are all there.

    >>> list(arrived(iter("abc")))[0][0]
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
