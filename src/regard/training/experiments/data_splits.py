"""Training, validation and test data of a run: read from its files, or held out from the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from regard.config.data import ReadConfig
from regard.config.runs import RunConfig


class ReadCounts(Protocol):
    """Counts of the rows that were read from files and of those that were rejected, with notes on the files."""

    @property
    def num_read(self) -> int: ...
    @property
    def num_rejected(self) -> int: ...
    @property
    def reject_file(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class ReadExamples(ReadCounts, Protocol):
    """Examples that were read from files."""

    @property
    def digest(self) -> str: ...
    def __len__(self) -> int: ...


ExamplesT = TypeVar("ExamplesT", bound=ReadExamples)
NONE_HELD_OUT = "on the training data, as none of it is held out and --valid names no file"


def reading_notes(rows: ReadCounts, split: str) -> list[str]:
    """Notes on a split's files, and how many rows lenient reading rejected, with where they are listed."""
    if not rows.num_rejected:
        return [*rows.notes]
    return [
        *rows.notes,
        f"{rows.num_rejected:,} of {rows.num_read:,} {split} rows are rejected: see {rows.reject_file}",
    ]


@dataclass(frozen=True)
class DataSplits(Generic[ExamplesT]):
    """Training, validation and test examples."""

    train: ExamplesT
    valid: ExamplesT
    test: ExamplesT | None
    all_train: ExamplesT  # of the training files, with those that are held out
    labels: tuple[str, ...] = ()  # of the training files
    notes: list[str] = field(default_factory=list)  # on guesses in reading, rejected rows and held-out examples

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each split by its name."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split.digest for name, split in splits.items() if split is not None}

    @classmethod
    def read(
        cls,
        config: RunConfig,
        read: Callable[[Sequence[str], ReadConfig], ExamplesT],
        hold_out: Callable[[ExamplesT], tuple[ExamplesT, ExamplesT]],
        *,
        describe_held_out: Callable[[ExamplesT], str],
        find_labels: Callable[[ExamplesT, str], Sequence[str]] | None = None,
    ) -> DataSplits[ExamplesT]:
        """Read a run's files and the labels to learn; hold examples out where there are no validation files.

        `hold_out` returns the same examples twice where it holds none out. `find_labels` takes the training examples
        and the name of their first file.
        """
        notes: list[str] = []

        def read_split(files: Sequence[str], name: str) -> ExamplesT:
            examples = read(files, config.data.read)
            notes.extend(reading_notes(examples, name))
            return examples

        all_train = read_split(config.data.train, "training")
        labels = () if find_labels is None else tuple(find_labels(all_train, config.data.train[0]))
        if config.data.valid:
            train = all_train
            valid = read_split(config.data.valid, "validation")
        else:
            train, valid = hold_out(all_train)
            origin = NONE_HELD_OUT if valid is train else describe_held_out(valid)
            notes.append(f"validation: {origin}")
        test = read_split(config.test_files, "test") if config.test_files else None
        return cls(train, valid, test=test, all_train=all_train, labels=labels, notes=notes)
