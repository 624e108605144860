"""Fine-tuning an encoder to tag the words of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.run import RunConfig
from regard.data.tagged import Tagged, check_tags, hold_out_sentences, read_tagged
from regard.models.encoder import Encoder
from regard.tasks.tagging import EncodedWords, TaggingTask, read_words, word_chances
from regard.training.fine_tuning import EncoderJob
from regard.training.job import Say
from regard.training.keeping import Measured, spread_indices
from regard.training.parts import Parts
from regard.training.tag_scoring import HELD_OUT, Part, TagScoring, texts_and_spans
from regard.training.trivial import constant_tag
from regard.training.verdict import TrivialBaseline

Words = Part[EncodedWords]


class TaggingJob(EncoderJob):
    """Tagged sentences and the encoder that learns them."""

    name, head, passes, batch_rows = "tag", "token", 5.0, 16

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = Parts.of(config, read_tagged, self._check, hold_out_sentences, HELD_OUT)
        self.begin(parts)
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        rows = self.train.rows
        self.learn(rows)
        self.scoring = TagScoring(self.names, self.train)
        self.task = TaggingTask(
            rows,
            self.train.tags,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self.scoring.weights(config.classify.weights),
            kept=self.kept_states(rows, rows.places),
        )

    def _check(self, train: Tagged) -> None:
        self.names = tuple(check_tags(train, self.config.data.train[0]))

    def _part(self, given: Tagged, name: str) -> Words:
        tags = given.numbers(self.names)
        rows = read_words(self.framing, *texts_and_spans(given), self.longest)
        self.account(rows.account, name)
        return Part(given, rows, tags)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [*self.scoring.lines(self.tokens, self.valid, self.test), self.model_line(parameters)]

    def reading(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        return {"labels": list(self.names)}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        given = self.valid.given
        self.valid = self._part(given.chosen(spread_indices(len(given), share)), "validation")

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [constant_tag(self.train.tags, self.valid.tags, self.names)]

    # ---- measures

    def _chances(self, model: Encoder, part: Words) -> list[NDArray[np.float64]]:
        return word_chances(part.rows, part.rows.told(model), part.counts, model.config.outputs)

    def read(self) -> EncodedWords:
        """Return the validation rows."""
        return self.valid.rows

    def measured(self, model: Encoder) -> Measured:
        """Return loss and strict entity F1 on validation sentences."""
        return self.scoring.measured(self._chances(model, self.valid), self.valid)

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Score validation and test sentences, beside each word's usual tag."""
        baseline = self.config.classify.baseline
        found = self.scoring.concluded(
            lambda part: self._chances(model, part), self.valid, self.test, baseline=baseline, say=say
        )
        return found, {}
