"""Fine-tuning an encoder to tag the words of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.run import RunConfig
from regard.data.labelled import listed
from regard.data.tagged import Tagged, check_tags, hold_out_sentences, kinds, read_tagged
from regard.models.encoder import Encoder
from regard.tasks.baseline import f1_gain, paired_gain
from regard.tasks.encoding import balanced_weights
from regard.tasks.tagging import (
    EncodedWords,
    TaggingTask,
    best_tags,
    entity_counts,
    entity_scores,
    followers,
    read_words,
    usual_tags,
    word_chances,
    word_spans,
)
from regard.training.fine_tuning import EncoderJob, told_gain
from regard.training.job import Say


@dataclass(frozen=True)
class Part:
    """Tagged sentences as the encoder reads them."""

    given: Tagged
    rows: EncodedWords
    tags: list[NDArray[np.int64]]

    @property
    def wanted(self) -> list[list[str]]:
        """The tags of each sentence, by name."""
        return [list(one.tags) for one in self.given.sentences]


class TaggingJob(EncoderJob):
    """Tagged sentences and the encoder that learns them."""

    name, head, passes, batch_rows = "tag", "token", 5.0, 16

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        train = self._read(config.data.train, "train")
        self.names = tuple(check_tags(train, config.data.train[0]))
        self.entities = train.entities
        if config.data.valid:
            valid = self._read(config.data.valid, "valid")
        else:
            train, valid = hold_out_sentences(train)
            self.digests |= {"train": train.digest, "valid": valid.digest}
            self.notes.append(f"validation: {len(valid):,} of the sentences are held out")
        test = self._read([config.classify.test], "test") if config.classify.test else None
        self.begin()
        self.allowed = followers(self.names)
        self.train, self.valid = self._part(train, "training"), self._part(valid, "validation")
        self.test = None if test is None else self._part(test, "test")
        rows = self.train.rows
        self.learn(rows)
        self.task = TaggingTask(
            rows,
            self.train.tags,
            seed=config.training.seed,
            digest=train.digest,
            weights=self._weights(),
            kept=self.kept_states(rows, rows.places),
        )

    def _read(self, files: Sequence[str], name: str) -> Tagged:
        found = read_tagged(files, self.config.data.read)
        self.note_read(found, name)
        return found

    def _part(self, given: Tagged, name: str) -> Part:
        tags = given.numbers(self.names)
        texts, spans = [one.text for one in given.sentences], [word_spans(one.words) for one in given.sentences]
        rows = read_words(self.framing, texts, spans, self.longest)
        self.account(rows.account, name)
        return Part(given, rows, tags)

    def _weights(self) -> NDArray[np.float32] | None:
        if self.config.classify.weights == "equal":
            return None
        return balanced_weights(np.bincount(np.concatenate(self.train.tags), minlength=len(self.names)))

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        words = sum(map(len, self.train.tags))
        tested = f", test {len(self.test.given):,}" if self.test is not None else ""
        shown = listed([f"{kind} {count:,}" for kind, count in kinds(self.train.given).items()], 12)
        return [
            f"data: {len(self.train.given):,} sentences, {words:,} words, {self.tokens:,} tokens; "
            f"validation {len(self.valid.given):,}{tested}",
            f"{'entities' if self.entities else 'tags'}: {shown}",
            self.model_line(parameters),
        ]

    def reading(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        return {"labels": list(self.names)}

    # ---- measures

    def _said(self, model: Encoder, part: Part) -> tuple[list[list[str]], float]:
        """Return valid tags for each sentence, and the mean surprise at the right ones, a word."""
        chances = word_chances(model, part.rows, [len(tags) for tags in part.tags])
        surprise = sum(
            float(-row[np.arange(len(tags)), tags].sum()) for row, tags in zip(chances, part.tags, strict=True)
        )
        said = [[self.names[number] for number in best_tags(row, self.allowed)] for row in chances]
        return said, surprise / max(1, sum(map(len, part.tags)))

    def _metrics(self, said: Sequence[Sequence[str]], loss: float, part: Part) -> dict[str, float]:
        found = entity_scores(said, part.wanted)
        return {"loss": loss, **(found if self.entities else {"accuracy": found["accuracy"]})}

    def measured(self, model: Encoder) -> tuple[dict[str, float], tuple[float, ...], list[tuple[str, str, str]]]:
        """Return loss and strict entity F1 on validation sentences."""
        said, loss = self._said(model, self.valid)
        metrics = self._metrics(said, loss, self.valid)
        rows = zip(self.valid.given.sentences[:2], said[:2], strict=True)
        samples = [(one.text, " ".join(one.tags), " ".join(tags)) for one, tags in rows]
        best = metrics["f1" if self.entities else "accuracy"]
        return metrics, (round(best, 4), -loss), samples

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Score validation and test sentences, beside each word's usual tag."""
        metrics: dict[str, float] = {}
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is None:
                continue
            said, loss = self._said(model, part)
            metrics |= {f"{name}_{key}": value for key, value in self._metrics(said, loss, part).items()}
            if self.config.classify.baseline and (name == "test") == (self.test is not None):
                metrics |= self._beside(said, part, name, say)
        return metrics, {}

    def _beside(self, said: Sequence[Sequence[str]], part: Part, name: str, say: Say) -> dict[str, float]:
        seen = [(one.words, one.tags) for one in self.train.given.sentences]
        theirs = usual_tags(seen, [one.words for one in part.given.sentences], self.names)
        if self.entities:
            gain = f1_gain(entity_counts(said, part.wanted), entity_counts(theirs, part.wanted))
            score = entity_scores(theirs, part.wanted)["f1"]
            return told_gain(gain, score, name, "baseline (each word's usual tag) F1", say)
        aims = np.array([tag for tags in part.wanted for tag in tags])
        right = [np.array([tag for tags in side for tag in tags]) == aims for side in (said, theirs)]
        return told_gain(
            paired_gain(*right), 100 * float(right[1].mean()), name, "baseline (each word's usual tag) accuracy", say
        )
