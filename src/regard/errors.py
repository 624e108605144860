"""The exceptions that Regard raises on purpose.

    RegardError              exit 1   a failure that is not the user's fault
    ├── CancelledError       exit 1   nobody waits for the result any more
    ├── DiskError            exit 1   a write failed: full or failing disk
    ├── TrainingError        exit 1   training cannot continue (non-finite loss, out of memory)
    └── UsageError           exit 2   wrong input or options; the message says what to do
        ├── DataError        exit 2   a data file is wrong, with its location
        ├── ConfigError      exit 2   a setting is unknown, out of range or contradicts another
        ├── CheckpointError  exit 2   a model or run folder is missing, damaged or of another type
        └── InterruptedTrainingError
                             exit 2   a signal stopped one training of several; the same command resumes

A message says what is wrong, where, the value, what is allowed and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RegardError(Exception):
    """Base class of Regard's exceptions; `exit_code` is the exit status of the command line."""

    exit_code = 1


class CancelledError(RegardError):
    """The work was cancelled before its end."""


class DiskError(RegardError):
    """A write failed; files written before it are intact."""


class TrainingError(RegardError):
    """Training cannot continue; the last valid checkpoint is kept."""


class UsageError(RegardError):
    """Wrong input or options."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, out of range or contradicts another one."""


class CheckpointError(UsageError):
    """A model or run folder is missing, damaged or of another type."""


class InterruptedTrainingError(UsageError):
    """A signal stopped one training of several."""


class CheckpointWarning(UserWarning):
    """A model folder is read, but perhaps not as it was meant: weights are not used, or a config looks wrong."""


class DataError(UsageError):
    """A data file is wrong; `location` is `file`, `file:line` or `file:line:column`.

    >>> print(DataError("no tab in the line", location="pairs.tsv:7", advice="two columns are needed"))
    pairs.tsv:7: no tab in the line — two columns are needed
    """

    def __init__(self, what: str, *, location: str = "", advice: str = "") -> None:
        self.what = what
        self.location = location
        self.advice = advice
        prefix = f"{location}: " if location else ""
        suffix = f" — {advice}" if advice else ""
        super().__init__(prefix + what + suffix)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name for a mistyped one, as ` (did you mean …?)`; empty where none is close.

    >>> nearest("wdith", ["width", "heads"])
    ' (did you mean width?)'
    """
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""
