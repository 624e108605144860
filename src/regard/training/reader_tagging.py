"""Training a tagger with words of its own on tagged sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.reader_folder import LoadedReader, load_reader
from regard.config.model import TaggerConfig
from regard.config.run import RunConfig
from regard.data.tagged import Tagged, check_tags, hold_out_sentences, read_tagged
from regard.models import build
from regard.models.tagger import Tagger
from regard.tasks.reader_tagging import ReaderTaggingTask, WordRows
from regard.tasks.tagging import word_chances
from regard.training.job import Say, started
from regard.training.keeping import Measured, ModelEvaluator, spread_indices
from regard.training.parts import Parts
from regard.training.reader_job import ReaderJob
from regard.training.tag_scoring import HELD_OUT, Part, TagScoring, texts_and_spans
from regard.training.trivial import constant_tag
from regard.training.verdict import TrivialBaseline

Words = Part[WordRows]


class ReaderTaggingJob(ReaderJob[TaggerConfig, "TagEvaluator"]):
    """Tagged sentences and the tagger that learns them."""

    name = "tag"

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = Parts.of(config, read_tagged, self._check, hold_out_sentences, HELD_OUT)
        self.begin(parts, [one.text for one in parts.train.sentences])
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        self.learn([part.rows for part in (self.train, self.valid, self.test) if part is not None])
        self.scoring = TagScoring(self.names, self.train, who="reading in context")
        self.task = ReaderTaggingTask(
            self.train.rows,
            self.train.tags,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self.scoring.weights(config.classify.weights),
        )
        self.model_config, self.reason = self.sized(config.tagger)
        self.width = self.model_config.encoder.width

    def _check(self, train: Tagged) -> None:
        self.names = check_tags(train, self.config.data.train[0])

    def _part(self, given: Tagged, name: str) -> Words:
        tags = given.numbers(self.names)
        rows = WordRows.read(self.perception, *texts_and_spans(given))
        self.account(rows, name)
        return Part(given, rows, tags)

    # ---- what a run asks

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation sentences only."""
        given = self.valid.given
        self.valid = self._part(given.chosen(spread_indices(len(given), share)), "validation")

    def model(self) -> Tagger:
        """Return the model with its first weights."""
        return started(build(self.model_config), self.config.training.seed)

    def evaluator(self, device: str) -> TagEvaluator:
        """Return what measures weights."""
        return TagEvaluator(self.model_config, self.scoring, self.valid, device)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [*self.scoring.lines(self.tokens, self.valid, self.test), *self.model_lines(parameters)]

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [constant_tag(self.train.tags, self.valid.tags, self.names)]

    def kept(self) -> LoadedReader[TaggerConfig]:
        """Return the run's model as it was written."""
        return load_reader(self.folder, TaggerConfig, self.name)

    def conclude(self, evaluator: TagEvaluator, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score validation and test sentences, beside each word's usual tag."""
        baseline = self.config.classify.baseline
        return self.scoring.concluded(evaluator.chances, self.valid, self.test, baseline=baseline, say=say), {}


class TagEvaluator(ModelEvaluator[Tagger]):
    """Measures a tagger on validation sentences."""

    def __init__(self, config: TaggerConfig, scoring: TagScoring[WordRows], valid: Words, device: str) -> None:
        super().__init__(build(config), device)
        self.scoring, self.valid = scoring, valid

    def chances(self, part: Words) -> list[NDArray[np.float64]]:
        """Return the log-chances of all tags for each word."""
        return word_chances(part.rows, part.rows.told(self.model), part.counts, self.model.config.outputs)

    def measured(self) -> Measured:
        """Return loss and strict entity F1 on validation sentences."""
        return self.scoring.measured(self.chances(self.valid), self.valid)
