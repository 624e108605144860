"""`regard translate`: texts, a file, or standard input line by line."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.models import COMPUTING, ENSEMBLE, FOLDER, SEARCHING, WINDOW, opened, windows
from regard.cli.options import Option, changes, verb
from regard.cli.output import json_line, progress, write_lines
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.decoding.constraints import Constraints
    from regard.pipeline import Translation

HELP = """Translate TEXT, the lines of a file, or standard input line by line, in order.

\b
  regard translate runs/en-de "Two dogs run in the snow."
  regard translate runs/en-de --in big.txt --out big.de
  regard translate runs/en-de --nbest 3 --json < lines.txt
"""
WORDS = "What it must say"


@verb(
    HELP,
    [
        FOLDER,
        click.Argument(["texts"], nargs=-1, metavar="[TEXT]…"),
        Option(["--in", "source"], metavar="FILE", help="translate the lines of this file"),
        Option(["--out"], metavar="FILE", help="write here instead of to standard output; .gz is compressed"),
        Option(["--encoding"], default="utf-8", help="text encoding of what is read [default: utf-8]"),
        Option(["--align"], is_flag=True, help="add word alignments (0-0 1-2 …) after a tab"),
        Option(["--no-split"], is_flag=True, help="take each text as one sentence"),
        ENSEMBLE,
        Option(["--prefix"], metavar="TEXT", section=WORDS, help="what each translation begins with"),
        Option(
            ["--force-word"],
            multiple=True,
            metavar="TEXT",
            section=WORDS,
            help="a word or phrase to force; may be repeated",
        ),
        Option(
            ["--forbid-word"],
            multiple=True,
            metavar="TEXT",
            section=WORDS,
            help="a word or phrase to forbid; may be repeated",
        ),
        Option(
            ["--glossary"],
            metavar="FILE",
            section=WORDS,
            help="source phrase, tab, target phrase: forced where the source has it",
        ),
        *SEARCHING,
        *COMPUTING,
    ],
)
def translate(
    context: click.Context,
    folder: str,
    texts: tuple[str, ...],
    source: str | None,
    out: str | None,
    encoding: str,
    align: bool,
    no_split: bool,
    ensemble: tuple[str, ...],
    prefix: str | None,
    force_word: tuple[str, ...],
    forbid_word: tuple[str, ...],
    glossary: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Translate what was given."""
    if texts and source:
        raise UsageError("texts and --in are both given: keep one of them")
    settings = changes(context)

    def lines() -> Iterator[str]:
        given, total = _given(texts, source, encoding)
        model = opened(folder, computing, ensemble)
        words = _constraints(force_word, forbid_word, glossary)
        wishes = {"split": not no_split, "constraints": words, "prefix": prefix or "", **settings}
        found = (list(model.stream(window, **wishes)) for window in given)
        said = progress(found, total, "texts") if out and total else itertools.chain.from_iterable(found)
        for number, translation in enumerate(said):
            yield from shown(translation, number, align, as_json)

    if out:
        write_lines(out, lines())
    else:
        for line in lines():
            print(line, flush=True)


def _given(texts: tuple[str, ...], source: str | None, encoding: str) -> tuple[Iterable[Sequence[str]], int]:
    """Return the texts to translate, some at a time, and how many there are; 0 where nobody knows yet."""
    from regard.config.data import ReadConfig
    from regard.data.sources import iter_lines, read_lines

    reading = ReadConfig(encoding=encoding)
    if texts:
        return [texts], len(texts)
    if source:
        found = read_lines(source, reading)
        return windows(found), len(found)
    return arrived(iter_lines(sys.stdin.buffer, reading)), 0


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


def _constraints(force: tuple[str, ...], forbid: tuple[str, ...], glossary: str | None) -> Constraints | None:
    if not (force or forbid or glossary):
        return None
    from regard.decoding.constraints import Constraints, Glossary

    return Constraints(force, forbid, Glossary.read(glossary) if glossary else None)


def shown(translation: Translation, number: int, align: bool, as_json: bool) -> Iterator[str]:
    """Yield the lines for one text: its translation, or its n-best list in the form `number ||| text ||| score`."""
    several = [translation, *translation.alternatives]
    if as_json:
        best, *rest = (facts(one, align) for one in several)
        yield json_line({"number": number, "source": translation.source, **best, "alternatives": rest})
        return
    for one in several:
        text = str(one) if len(several) == 1 else f"{number} ||| {one} ||| {one.score:.4f}"
        yield f"{text}\t{one.pharaoh}" if align else text


def facts(translation: Translation, align: bool) -> dict[str, Any]:
    """Return a translation as plain values."""
    found: dict[str, Any] = {"translation": str(translation), "score": round(translation.score, 6)}
    return {**found, "alignment": translation.pharaoh} if align else found
