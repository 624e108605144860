"""The tokenizer of a run: learned when it begins, the same one whenever it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.checkpoint.files import write_file
from regard.text.tokenizer import Tokenizer


def kept_tokenizer(folder: Path, make: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer that a run's folder keeps; where the run has only begun, make it and keep it."""
    place = folder / "tokenizers" / "text.json"
    if place.exists() and (folder / "run.json").exists():
        return Tokenizer.loads(place.read_text("utf-8"), where=str(place))
    tokenizer = make()
    write_file(place, tokenizer.dumps().encode())
    return tokenizer
