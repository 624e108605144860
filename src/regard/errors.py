"""The exceptions that Regard raises on purpose.

    RegardError              exit 1   something failed that is not the user's doing
    ├── DiskError            exit 1   a write failed: full or failing disk
    ├── TrainingError        exit 1   training cannot go on (numbers not finite, memory)
    └── UsageError           exit 2   something the user gave is wrong; the message says what to do
        ├── DataError        exit 2   a data file is wrong, with its place
        ├── ConfigError      exit 2   a setting is unknown, out of range or contradicts another
        └── CheckpointError  exit 2   a model or run folder is missing, damaged or of another kind

A message says what is wrong, the value, what is allowed and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RegardError(Exception):
    """The root of what Regard raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class DiskError(RegardError):
    """A write failed; nothing that was good before it is lost."""


class TrainingError(RegardError):
    """Training cannot go on; the last good checkpoint is kept."""


class UsageError(RegardError):
    """Something the user gave is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, out of range or contradicts another one."""


class CheckpointError(UsageError):
    """A model or run folder is missing, damaged or of another kind."""


class DataError(UsageError):
    """A data file is wrong; `place` is `file`, `file:line` or `file:line:column`.

    >>> print(DataError("no tab in the line", location="pairs.tsv:7", advice="two columns are needed"))
    pairs.tsv:7: no tab in the line — two columns are needed
    """

    def __init__(self, what: str, *, location: str = "", advice: str = "") -> None:
        self.what, self.location, self.advice = what, location, advice
        super().__init__((f"{location}: " if location else "") + what + (f" — {advice}" if advice else ""))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` for a mistyped name, or nothing.

    >>> nearest("wdith", ["width", "heads"])
    ' (did you mean width?)'
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
