"""The command line: a table of verbs, and what they all share: one message per error, quiet interrupts."""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from regard import __version__
from regard.cli.renamed import SYNONYMS, replacement
from regard.errors import CheckpointWarning, RegardError, nearest
from regard.tables import PluginWarning

# verb → (module, one line of help); a verb's module is imported when the verb is used
VERBS = {
    "demo": ("demo", "generate data, train a small model, translate, and show its attention"),
    "train": ("train", "train a model on your files"),
    "distil": ("distil", "distil a fine-tuned encoder into a smaller one"),
    "translate": ("translate", "translate texts, a file or standard input"),
    "fill": ("fill", "fill-mask: predict the masked tokens of a text"),
    "generate": ("generate", "generate text with a causal language model"),
    "classify": ("classify", "classify texts, a file or standard input"),
    "tag": ("tag", "token classification: tag the words of texts, a file or standard input"),
    "answer": ("answer", "question answering: spans of a passage, or a memory network over a story"),
    "embed": ("embed", "text embeddings: a NumPy file, or one line of values per text"),
    "similar": ("similar", "semantic similarity of texts; nearest lines of a file"),
    "evaluate": ("evaluate", "evaluate a model on a test set: BLEU, chrF, TER; accuracy, F1; error rate by task"),
    "score": ("score", "probability of given translations, or that a text follows another"),
    "figure": ("figure", "one figure of a model's attention, for a paper: SVG, PDF, PNG, TikZ"),
    "see": ("see", "attention of a model: a page in the browser, or a file"),
    "heads": ("heads", "statistics and importance of every attention head on your data"),
    "probe": ("probe", "linear probes of every layer: tags, positions or depths that it encodes"),
    "reach": ("reach", "how far a model looks back: influence and exact match by distance"),
    "compare": ("compare", "several models on one data set: one report"),
    "info": ("info", "contents and state of a model or run folder"),
    "convert": ("convert", "export a model to ONNX, CTranslate2 or Hugging Face, or pack it for the engine"),
    "data": ("data", "check, clean, join or generate data files"),
    "doctor": ("doctor", "report on this machine: processor, kernels, extras, advice"),
    "bench": ("bench", "throughput and latency of a model on this machine"),
    "cost": ("cost", "seconds and operations of an update by sequence length, and state size, by architecture"),
}

HELP = """Train, run and visualise attention models on your own text.

\b
  regard demo
  regard train translate train.en train.de --out runs/en-de
  regard translate runs/en-de "Two dogs run in the snow."
"""

# exit codes that shells report for SIGINT and SIGPIPE
INTERRUPTED = 130
PIPE_CLOSED = 141


@dataclass(frozen=True)
class Invocation:
    """The command line of this process."""

    started: float  # time.monotonic() at its start: time budgets count from here
    arguments: tuple[str, ...]


class Verbs(click.Group):
    """Command group that imports a verb's module when the verb is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the module of a verb and return its command."""
        if name not in VERBS:
            synonym = SYNONYMS.get(name)
            suggestion = f" (did you mean {synonym}?)" if synonym else nearest(name, VERBS)
            context.fail(f"no such command: {name}{suggestion}")
        module_name, _ = VERBS[name]
        module = importlib.import_module(f"regard.cli.{module_name}")
        command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their help from the table, so that none is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


regard = Verbs("regard", help=HELP, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
regard = click.version_option(__version__, prog_name="regard", message="%(prog)s %(version)s")(regard)


def main(
    arguments: Sequence[str] | None = None, *, command: click.Command | None = None, program: str = "regard"
) -> None:
    """Run the command line and exit with its code; other programs pass a `command` and a name of their own."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code = run(arguments or ["--help"], command, program)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _silence_stdout()
    sys.exit(code)


def run(arguments: Sequence[str], command: click.Command | None = None, program: str = "regard") -> int:
    """Run one command and return its exit code; every error is one message on standard error."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run_command(arguments, command or regard, program)


def _run_command(arguments: Sequence[str], command: click.Command, program: str) -> int:
    try:
        invocation = Invocation(started=time.monotonic(), arguments=tuple(arguments))  # a verb's imports take seconds
        status = command.main(args=list(arguments), prog_name=program, standalone_mode=False, obj=invocation)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.NoSuchOption as error:
        return _report_usage_error(_describe_unknown_option(error), error)
    except click.UsageError as error:
        return _report_usage_error(_in_our_style(error.format_message()), error)
    except RegardError as error:
        _print_error(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _silence_stdout()
    except Exception as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        _print_error(f"unexpected {type(error).__name__}: {_first_line(error)}\n  {_save_traceback(error)}")
        return 1


def _describe_unknown_option(error: click.NoSuchOption) -> str:
    """Name the option that replaced it, or the nearest one of the command."""
    option = error.option_name.partition("=")[0]
    if error.ctx is not None:
        _, _, command = error.ctx.command_path.partition(" ")
        options = {
            name for parameter in error.ctx.command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        new_name = replacement(command, option)
        if new_name in options:
            return f"{option} is now {new_name}"
    return f"no such option: {error.option_name}{nearest(error.option_name, error.possibilities or ())}"


def _report_usage_error(message: str, error: click.UsageError) -> int:
    program = error.ctx.command_path if error.ctx else "regard"
    _print_error(f"{message}\n  {program} --help shows the usage")
    return error.exit_code


def _print_error(message: str) -> None:
    print(f"regard: {message}", file=sys.stderr)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning about a plugin or a folder as one message, any other as Python does."""
    if issubclass(category, PluginWarning | CheckpointWarning):
        _print_error(str(message))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _in_our_style(message: str) -> str:
    """Convert a message of click: ours follow a colon and have no full stop."""
    return message[:1].lower() + message[1:].rstrip(".")


def _first_line(error: Exception) -> str:
    message = str(error).strip()
    return message.splitlines()[0] if message else "no message"


def _save_traceback(error: Exception) -> str:
    """Write the traceback to a file and return the advice for the user."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="regard-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(f"regard {__version__}, Python {sys.version}\n{sys.argv}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        return "this is a bug in Regard: please report it with the output of REGARD_DEBUG=1"
    return f"this is a bug in Regard: please report it with {file.name}"


def _silence_stdout() -> int:
    """Redirect standard output to nowhere after its reader has closed the pipe, so that exiting writes nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
