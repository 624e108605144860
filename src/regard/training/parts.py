"""The parts of labelled data – to learn, to validate, to test – read from a run's files or held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from regard.config.data import ReadConfig
from regard.config.run import RunConfig
from regard.training.job import Rows, rejection_notes


class Read(Rows, Protocol):
    """Examples that were read from files."""

    @property
    def digest(self) -> str: ...
    def __len__(self) -> int: ...


Data = TypeVar("Data", bound=Read)


@dataclass(frozen=True)
class Parts(Generic[Data]):
    """Examples to learn, to validate and to test with."""

    train: Data
    valid: Data
    test: Data | None
    notes: list[str] = field(default_factory=list)  # what was rejected, what is held out

    @property
    def digests(self) -> dict[str, str]:
        """Of each part."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part.digest for name, part in named.items() if part is not None}

    @classmethod
    def of(
        cls,
        config: RunConfig,
        read: Callable[[Sequence[str], ReadConfig], Data],
        check: Callable[[Data], object],
        hold_out: Callable[[Data], tuple[Data, Data]],
        held_out: str,
    ) -> Parts[Data]:
        """Read a run's files; the training examples are checked before some are held out, where that is needed.

        `held_out` is how that is told, after the number of examples.
        """
        notes: list[str] = []

        def part(files: Sequence[str], name: str) -> Data:
            found = read(files, config.data.read)
            notes.extend(rejection_notes(found, name))
            return found

        train = part(config.data.train, "training")
        check(train)
        if config.data.valid:
            valid = part(config.data.valid, "validation")
        else:
            train, valid = hold_out(train)
            notes.append(f"validation: {len(valid):,} {held_out}")
        test = part([config.classify.test], "test") if config.classify.test else None
        return cls(train, valid, test, notes)
