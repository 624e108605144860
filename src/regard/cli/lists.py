"""Option values that are lists, separated by commas."""

from __future__ import annotations

from regard.config.settings import AUTO
from regard.errors import UsageError


def split_list(text: str) -> list[str]:
    """Split a list at commas.

    >>> split_list("rnn, transformer")
    ['rnn', 'transformer']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_numbers(option: str, text: str) -> list[int]:
    """Parse numbers separated by commas; of auto, there are none.

    >>> parse_numbers("--threads", "1,2"), parse_numbers("--threads", "auto")
    ([1, 2], [])
    """
    if text == AUTO:
        return []
    try:
        return [int(digits) for digits in split_list(text)]
    except ValueError:
        raise UsageError(f"{option} takes numbers separated by commas, not {text!r}") from None
