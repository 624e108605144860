"""The command line: a table of verbs, and what every one of them shares – errors in one message, quiet interrupts."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence

import click

from regard import __version__
from regard.errors import RegardError, nearest

# verb → (module, one line of help); a verb's module is imported when it is used
VERBS = {
    "demo": ("demo", "make data, train a small model, translate and show where it looked"),
    "train": ("train", "train a model on your files"),
    "distil": ("distil", "teach a smaller model what a fine-tuned one knows"),
    "translate": ("translate", "translate texts, a file or standard input"),
    "fill": ("fill", "the likeliest words for the gaps of a text"),
    "generate": ("generate", "continue texts with a language model"),
    "classify": ("classify", "label texts, a file or standard input"),
    "tag": ("tag", "tag the words of texts, of a file or of standard input"),
    "answer": ("answer", "answer questions about a passage by spans of it, or about a story"),
    "embed": ("embed", "one vector for each text: a NumPy file, or lines of numbers"),
    "similar": ("similar", "how alike texts are; the nearest lines of a file"),
    "evaluate": ("evaluate", "score a model on a test set: BLEU, chrF, TER; accuracy, F1; errors by task"),
    "score": ("score", "log-probability of given translations"),
    "figure": ("figure", "one view of where a model looked, for a paper: SVG, PDF, PNG, TikZ"),
    "see": ("see", "where a model looked: a page in the browser, or a file"),
    "heads": ("heads", "what each head does on your data, and what is lost without it"),
    "compare": ("compare", "several models on one data set: one report"),
    "info": ("info", "what a model or run folder holds, and how to go on"),
    "convert": ("convert", "write a model in another tool's layout"),
    "data": ("data", "check, clean or make data files"),
    "doctor": ("doctor", "this machine: processors, kernels, extras, advice"),
    "bench": ("bench", "throughput and latency of a model on this machine"),
}

HELP = """Attention models from your own files: train, translate, and see where the model looked.

\b
  regard demo
  regard train translate train.en train.de --out runs/en-de
  regard translate runs/en-de "Two dogs run in the snow."
"""

INTERRUPTED, PIPE_CLOSED = 130, 141  # what shells report for SIGINT and SIGPIPE


class Verbs(click.Group):
    """The table of verbs as a command."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the verbs in the table's order."""
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a verb, imported now."""
        if name not in VERBS:
            context.fail(f"no such command: {name}{nearest(name, VERBS)}")
        module = importlib.import_module(f"regard.cli.{VERBS[name][0]}")
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
    """Run the command line and leave the process with its exit code; `command` is that of another program."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code = run(arguments or ["--help"], command, program)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _closed_pipe()
    sys.exit(code)


def run(arguments: Sequence[str], command: click.Command | None = None, program: str = "regard") -> int:
    """Run one command and return its exit code; whatever goes wrong is one message on standard error."""
    try:
        started = time.monotonic()  # time budgets count from here: a verb's imports take seconds
        result = (command or regard).main(args=list(arguments), prog_name=program, standalone_mode=False, obj=started)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.NoSuchOption as error:
        close = nearest(error.option_name, error.possibilities or ())
        return _refuse(f"no such option: {error.option_name}{close}", error)
    except click.UsageError as error:
        return _refuse(_lowered(error.format_message()), error)
    except RegardError as error:
        _say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _closed_pipe()
    except Exception as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        _say(f"unexpected {type(error).__name__}: {_first_line(error)}\n  {_report(error)}")
        return 1


def _refuse(message: str, error: click.UsageError) -> int:
    _say(f"{message}\n  {error.ctx.command_path if error.ctx else 'regard'} --help lists what there is")
    return error.exit_code


def _say(message: str) -> None:
    print(f"regard: {message}", file=sys.stderr)


def _lowered(message: str) -> str:
    """Return click's message in our manner: it follows a colon and has no full stop."""
    return message[:1].lower() + message[1:].rstrip(".")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def _report(error: Exception) -> str:
    """Write the traceback to a file and return what the user can do with it."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="regard-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(f"regard {__version__}, Python {sys.version}\n{sys.argv}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        return "this is a fault of Regard: please report it with what REGARD_DEBUG=1 shows"
    return f"this is a fault of Regard: please report it with {file.name}"


def _closed_pipe() -> int:
    """Let the reader of our output leave in peace: nothing is written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
