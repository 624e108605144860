"""How tags are measured while a tagger learns: valid ones, strict entities, beside each word's usual tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.labelled import listed
from regard.data.tagged import Tagged, kinds
from regard.tasks.baseline import f1_gain, paired_gain
from regard.tasks.encoding import balanced_weights
from regard.tasks.entities import best_tags, entity_counts, entity_scores, followers, usual_tags
from regard.tasks.tagging import Spans, word_spans
from regard.training.gain import told_gain
from regard.training.job import Say
from regard.training.keeping import Measured, measured_on

HELD_OUT = "of the sentences are held out"

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """Tagged sentences as a model reads them."""

    given: Tagged
    rows: Rows
    tags: list[NDArray[np.int64]]

    @property
    def wanted(self) -> list[list[str]]:
        """The tags of each sentence, by name."""
        return [list(one.tags) for one in self.given.sentences]

    @property
    def counts(self) -> list[int]:
        """The words of each sentence."""
        return [len(tags) for tags in self.tags]


def texts_and_spans(given: Tagged) -> tuple[list[str], list[Spans]]:
    """Return sentences as texts, and where their words stand in them."""
    return [one.text for one in given.sentences], [word_spans(one.words) for one in given.sentences]


@dataclass(frozen=True)
class TagScoring(Generic[Rows]):
    """Scores what a tagger says; `chances` are what it says of the words of a part, as logarithms."""

    names: Sequence[str]
    train: Part[Rows]
    who: str = "attention"  # what a better score than the baseline's is owed to

    @property
    def entities(self) -> bool:
        """Whether tags mark entities."""
        return any(name.startswith("B-") for name in self.names)

    def weights(self, kind: str) -> NDArray[np.float32] | None:
        """Return what each tag weighs in training, if not all are equal."""
        if kind == "equal":
            return None
        return balanced_weights(np.bincount(np.concatenate(self.train.tags), minlength=len(self.names)))

    def lines(self, tokens: int, valid: Part[Rows], test: Part[Rows] | None) -> list[str]:
        """Say what the data is."""
        words = sum(self.train.counts)
        tested = f", test {len(test.given):,}" if test is not None else ""
        shown = listed([f"{kind} {count:,}" for kind, count in kinds(self.train.given).items()], 12)
        return [
            f"data: {len(self.train.given):,} sentences, {words:,} words, {tokens:,} tokens; "
            f"validation {len(valid.given):,}{tested}",
            f"{'entities' if self.entities else 'tags'}: {shown}",
        ]

    def _said(self, chances: Sequence[NDArray[np.float64]], part: Part[Rows]) -> tuple[list[list[str]], float]:
        """Return valid tags for each sentence, and the mean surprise at the right ones, a word."""
        allowed = followers(self.names)
        surprise = sum(
            float(-row[np.arange(len(tags)), tags].sum()) for row, tags in zip(chances, part.tags, strict=True)
        )
        said = [[self.names[number] for number in best_tags(row, allowed)] for row in chances]
        return said, surprise / max(1, sum(part.counts))

    def _metrics(self, said: Sequence[Sequence[str]], loss: float, part: Part[Rows]) -> dict[str, float]:
        found = entity_scores(said, part.wanted)
        return {"loss": loss, **(found if self.entities else {"accuracy": found["accuracy"]})}

    def measured(self, chances: Sequence[NDArray[np.float64]], valid: Part[Rows]) -> Measured:
        """Return loss and strict entity F1 on validation sentences."""
        said, loss = self._said(chances, valid)
        metrics = self._metrics(said, loss, valid)
        rows = zip(valid.given.sentences[:2], said[:2], strict=True)
        samples = [(one.text, " ".join(one.tags), " ".join(tags)) for one, tags in rows]
        best = metrics["f1" if self.entities else "accuracy"]
        return metrics, (round(best, 4), -loss), samples

    def concluded(
        self,
        chances: Callable[[Part[Rows]], Sequence[NDArray[np.float64]]],
        valid: Part[Rows],
        test: Part[Rows] | None,
        *,
        baseline: bool,
        say: Say,
    ) -> dict[str, float]:
        """Score validation and test sentences, beside each word's usual tag."""
        metrics: dict[str, float] = {}
        for name, part in (("valid", valid), ("test", test)):
            if part is None:
                continue
            said, loss = self._said(chances(part), part)
            metrics |= measured_on(name, self._metrics(said, loss, part))
            if baseline and (name == "test") == (test is not None):
                metrics |= self._beside(said, part, name, say)
        return metrics

    def _beside(self, said: Sequence[Sequence[str]], part: Part[Rows], name: str, say: Say) -> dict[str, float]:
        seen = [(one.words, one.tags) for one in self.train.given.sentences]
        theirs = usual_tags(seen, [one.words for one in part.given.sentences], self.names)
        what = "baseline (each word's usual tag)"
        if self.entities:
            gain = f1_gain(entity_counts(said, part.wanted), entity_counts(theirs, part.wanted))
            return told_gain(gain, entity_scores(theirs, part.wanted)["f1"], name, f"{what} F1", say, who=self.who)
        aims = np.array([tag for tags in part.wanted for tag in tags])
        right = [np.array([tag for tags in side for tag in tags]) == aims for side in (said, theirs)]
        score = 100 * float(right[1].mean())
        return told_gain(paired_gain(*right), score, name, f"{what} accuracy", say, who=self.who)
