"""Input and output shared by the verbs that process texts: arguments, the lines of a file, or standard input."""

from __future__ import annotations

import operator
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import click

from regard.cli.model_options import MODEL_ARGUMENT, WINDOW, iter_windows
from regard.cli.options import Option, Output, Verb, verb
from regard.cli.output import json_line, note, show_progress, write_lines
from regard.errors import UsageError

Prediction = TypeVar("Prediction")
Model = TypeVar("Model")
TEXTS = click.Argument(["texts"], nargs=-1, metavar="[TEXT]…")
IN = Option(["--in", "source"], metavar="FILE", help="Read the texts from this file, one per line.")
OUT = Option(["--out"], metavar="FILE", help="Write here instead of to standard output; .gz is compressed.")
JSON_HELP = "Write one JSON object per input text, on a line of its own; with --out, into the file."
ENCODING = Option(["--encoding"], default="utf-8", metavar="NAME", help="Text encoding of the input. [default: utf-8]")


@dataclass(frozen=True)
class TextInput:
    """Texts that a verb processes, and where and how its output is written."""

    texts: tuple[str, ...]
    source: str | None  # file with one text per line
    out: str | None
    encoding: str
    as_json: bool

    def check(self) -> None:
        """Reject texts that come both as arguments and from a file."""
        if self.texts and self.source:
            raise UsageError("texts and --in are both given: keep one of them")

    def lines(self) -> list[str]:
        """Texts of the arguments or of the file; standard input is not read."""
        self.check()
        if not self.source:
            return list(self.texts)
        from regard.config.data import ReadConfig
        from regard.data.ledger import read_texts

        return list(read_texts(self.source, ReadConfig(encoding=self.encoding)))

    def windows(self) -> tuple[Iterable[Sequence[str]], int]:
        """Windows of texts, and the number of texts; 0 for standard input, where it is unknown."""
        if self.texts and not self.source:
            return [self.texts], len(self.texts)
        lines = self.lines()
        if lines:
            return iter_windows(lines), len(lines)
        if self.source:
            return [], 0
        from regard.config.data import ReadConfig
        from regard.data.ledger import iter_lines

        return iter_available(iter_lines(sys.stdin.buffer, ReadConfig(encoding=self.encoding))), 0


def text_verb(
    help: str, options: Sequence[click.Parameter] = (), *, output: Output, json_help: str = JSON_HELP
) -> Callable[[Callable[..., None]], Verb]:
    """Decorator that turns a function of context, model folder and `TextInput` into a verb."""

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
            inputs = TextInput(texts, source, out=out, encoding=encoding, as_json=as_json)
            function(context, folder, inputs, **settings)

        parameters = [MODEL_ARGUMENT, TEXTS, IN, OUT, ENCODING, *options]
        return verb(help, parameters, output=output, json_help=json_help, name=function.__name__)(call)

    return decorate


def write_output(lines: Iterable[str], out: str | None) -> None:
    """Write lines to a file, or to standard output as they are computed."""
    if out:
        write_lines(out, lines)
        return
    for line in lines:
        print(line, flush=True)


def process_texts(
    inputs: TextInput,
    load_model: Callable[[], Model],
    predict: Callable[[Model, Sequence[str]], Iterable[Prediction]],
    format_prediction: Callable[[Model, int, Prediction], Iterable[str]],
    to_dict: Callable[[Prediction], Any] = operator.methodcaller("to_dict"),
) -> None:
    """Stream texts through a model, write the predictions, formatted or as JSON, and report truncated texts.

    The model is loaded once the output file is known to be writable.
    """
    models: list[Model] = []

    def lines() -> Iterator[str]:
        windows, total = inputs.windows()
        model = load_model()
        models.append(model)
        batches = (list(predict(model, window)) for window in windows)
        should_report = bool(inputs.out and total)
        predictions = show_progress(batches, total, "texts") if should_report else chain.from_iterable(batches)
        for index, prediction in enumerate(predictions):
            if inputs.as_json:
                yield json_line(to_dict(prediction))
            else:
                yield from format_prediction(model, index, prediction)

    write_output(lines(), inputs.out)
    for model in models:
        report = getattr(model, "truncation_report", None)
        if report:
            note(report.format())


def iter_available(lines: Iterable[str], max_lines: int = WINDOW) -> Iterator[list[str]]:
    """Yield lines in windows of those that are available: single lines from a slow source, many from a fast one.

    >>> list(iter_available(iter("abc")))[0][0]
    'a'
    """
    pending: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * max_lines)

    def read() -> None:
        try:
            for line in lines:
                pending.put(line)
            pending.put(None)
        except BaseException as error:  # passed on: raised where the lines are consumed
            pending.put(error)

    threading.Thread(target=read, daemon=True).start()
    entry: str | BaseException | None = ""
    while isinstance(entry, str):
        window: list[str] = []
        entry = pending.get()
        while isinstance(entry, str):
            window.append(entry)
            if len(window) == max_lines or pending.empty():
                break
            entry = pending.get()
        if window:
            yield window
    if entry is not None:
        raise entry
