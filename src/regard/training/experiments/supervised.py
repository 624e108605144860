"""What experiments on labelled examples share: training, validation and test split, encoded as rows for the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.config.task_runs import FineTunedRun
from regard.tasks.base import Objective
from regard.text.special_tokens import TruncationReport
from regard.training.experiments.base import BaseExperiment, ConfigT, EvaluatorT, subsample_indices
from regard.training.experiments.data_splits import DataSplits, ReadExamples


class LabelledExamples(ReadExamples, Protocol):
    """Examples that were read from files, of which some can be selected."""

    def select(self, indices: NDArray[np.int64], /) -> Self: ...


class EncodedRows(Protocol):
    """Sequences of token ids; several may belong to one example."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...  # [rows, 1], in tokens
    def __len__(self) -> int: ...
    def select(self, indices: NDArray[np.int64], /) -> Self: ...  # those of the examples at these indices


ExamplesT = TypeVar("ExamplesT", bound=LabelledExamples)
RowsT = TypeVar("RowsT", bound=EncodedRows)


@dataclass(frozen=True)
class EncodedSplit(Generic[ExamplesT, RowsT]):
    """Examples of a split, encoded for a model."""

    examples: ExamplesT
    rows: RowsT

    def select(self, indices: NDArray[np.int64]) -> Self:
        """The examples at these indices, encoded as they are; subclasses select what else belongs to them."""
        return replace(self, examples=self.examples.select(indices), rows=self.rows.select(indices))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all rows."""
        return int(self.rows.lengths.sum())


SplitT = TypeVar("SplitT", bound=EncodedSplit[Any, Any])


class SupervisedExperiment(BaseExperiment[ConfigT, EvaluatorT], Generic[ConfigT, EvaluatorT, SplitT]):
    """Train on labelled examples.

    Subclasses define how examples are read and encoded, and the objective; `SplitT` is an encoded split of the task.
    """

    config: FineTunedRun
    default_epochs: float
    default_batch_rows: int  # average number of rows in a batch

    # set by `prepare`
    labels: tuple[str, ...]  # of classification and tagging
    train: SplitT
    valid: SplitT
    test: SplitT | None
    objective: Objective

    # ---- data

    def prepare(self) -> None:
        """Read and encode the data, and build the objective."""
        splits = self.read_splits()
        self.labels = splits.labels
        self.notes += splits.notes
        self.digests |= splits.digests
        self.prepare_encoding(splits.train)
        self.encode_splits(splits)
        self.tokens_per_epoch = self.train.num_tokens
        self.preferred_settings = self.choose_training_settings()
        self.objective = self.build_objective()

    def prepare_encoding(self, train: Any) -> None:
        """Load or train what encodes texts; `train` are the training examples."""
        raise NotImplementedError

    def encode_splits(self, splits: DataSplits[Any]) -> None:
        """Encode all splits."""
        self.train = self.encode(splits.train, "training")
        self.valid = self.encode(splits.valid, "validation")
        self.test = None if splits.test is None else self.encode(splits.test, "test")

    def encode(self, examples: Any, split: str) -> SplitT:
        """Encode examples; note how many texts of the split are truncated."""
        raise NotImplementedError

    def report_truncation(self, report: TruncationReport, split: str) -> None:
        """Note how many texts of a split are truncated, or read in windows."""
        if report.truncated_texts:
            self.notes.append(f"{split}: {report.format()}: see --max-length")
        elif report.windowed:
            self.notes.append(f"{split}: {report.format()}")

    def choose_training_settings(self) -> dict[str, float]:
        """Training settings that suit the task, where the user sets none."""
        batch_tokens = max(1, self.default_batch_rows * self.tokens_per_epoch // len(self.train.rows))
        return {"epochs": self.default_epochs, "batch_tokens": batch_tokens}

    def build_objective(self) -> Objective:
        """Build the objective on the training split."""
        raise NotImplementedError

    # ---- interface of a run

    def limit_validation(self, fraction: float) -> None:
        """Validate on this fraction of the validation data only."""
        self.valid = self.valid.select(subsample_indices(len(self.valid.examples), fraction))

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads."""
        return self.valid.num_tokens

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of the final evaluation on validation and test data."""
        test_tokens = 0 if self.test is None else self.test.num_tokens
        tokens = self.validation_tokens() + test_tokens
        return super().closing_seconds(evaluation_seconds) * tokens / max(1, self.validation_tokens())
