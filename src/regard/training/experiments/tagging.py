"""How tags are measured while a tagger learns: valid ones, strict entities, beside each word's usual tag.

Fine-tuning an encoder to tag the words of sentences.

Training a tagger with words of its own on tagged sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.native import LoadedRnnText, load_rnn_text
from regard.config.rnn_models import RnnTaggerConfig
from regard.config.runs import RunConfig
from regard.data.conll import TaggedSentences, check_tags, hold_out_sentences, read_tagged, tag_counts
from regard.formatting import format_names
from regard.models import build_model
from regard.models.bert import Bert
from regard.models.rnn_text import RnnTagger
from regard.tasks.baselines import f1_gain, paired_gain
from regard.tasks.entities import entity_counts, entity_scores, most_frequent_tags, tag_transitions, viterbi
from regard.tasks.losses import balanced_weights
from regard.tasks.tagging import (
    EncodedSentences,
    RnnSentences,
    RnnTaggingObjective,
    Spans,
    TaggingObjective,
    encode_words,
    tag_logprobs,
    word_spans,
)
from regard.training.experiments.base import (
    DataSplits,
    EvaluationResult,
    ModelEvaluator,
    Notify,
    initialize_model,
    prefix_metrics,
    report_gain,
    spread_indices,
)
from regard.training.experiments.fine_tuning import FineTuningExperiment
from regard.training.experiments.rnn_text import RnnTextExperiment
from regard.training.trivial_baselines import constant_tag
from regard.training.verdict import TrivialBaseline

HELD_OUT = "of the sentences are held out"
Rows = TypeVar("Rows")


@dataclass(frozen=True)
class TaggedSplit(Generic[Rows]):
    """Tagged sentences as a model reads them."""

    examples: TaggedSentences
    rows: Rows
    tags: list[NDArray[np.int64]]

    @property
    def targets(self) -> list[list[str]]:
        """The tags of each sentence, by name."""
        return [list(one.tags) for one in self.examples.sentences]

    @property
    def counts(self) -> list[int]:
        """The words of each sentence."""
        return [len(tags) for tags in self.tags]


def texts_and_word_spans(sentences: TaggedSentences) -> tuple[list[str], list[Spans]]:
    """Return sentences as texts, and where their words stand in them."""
    return [one.text for one in sentences.sentences], [word_spans(one.words) for one in sentences.sentences]


@dataclass(frozen=True)
class TagScorer(Generic[Rows]):
    """Scores what a tagger says; `chances` are what it says of the words of a part, as logarithms."""

    names: Sequence[str]
    train: TaggedSplit[Rows]
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

    def lines(self, tokens: int, valid: TaggedSplit[Rows], test: TaggedSplit[Rows] | None) -> list[str]:
        """Say what the data is."""
        words = sum(self.train.counts)
        tested = f", test {len(test.examples):,}" if test is not None else ""
        shown = format_names([f"{kind} {count:,}" for kind, count in tag_counts(self.train.examples).items()], 12)
        return [
            f"data: {len(self.train.examples):,} sentences, {words:,} words, {tokens:,} tokens; "
            f"validation {len(valid.examples):,}{tested}",
            f"{'entities' if self.entities else 'tags'}: {shown}",
        ]

    def _said(
        self, probabilities: Sequence[NDArray[np.float64]], part: TaggedSplit[Rows]
    ) -> tuple[list[list[str]], float]:
        """Return valid tags for each sentence, and the mean surprise at the right ones, a word."""
        allowed = tag_transitions(self.names)
        surprise = sum(
            float(-row[np.arange(len(tags)), tags].sum()) for row, tags in zip(probabilities, part.tags, strict=True)
        )
        said = [[self.names[number] for number in viterbi(row, allowed)] for row in probabilities]
        return said, surprise / max(1, sum(part.counts))

    def _metrics(self, said: Sequence[Sequence[str]], loss: float, part: TaggedSplit[Rows]) -> dict[str, float]:
        found = entity_scores(said, part.targets)
        return {"loss": loss, **(found if self.entities else {"accuracy": found["accuracy"]})}

    def measured(self, probabilities: Sequence[NDArray[np.float64]], valid: TaggedSplit[Rows]) -> EvaluationResult:
        """Return loss and strict entity F1 on validation sentences."""
        said, loss = self._said(probabilities, valid)
        metrics = self._metrics(said, loss, valid)
        rows = zip(valid.examples.sentences[:2], said[:2], strict=True)
        samples = [(one.text, " ".join(one.tags), " ".join(tags)) for one, tags in rows]
        best = metrics["f1" if self.entities else "accuracy"]
        return metrics, (round(best, 4), -loss), samples

    def concluded(
        self,
        probabilities: Callable[[TaggedSplit[Rows]], Sequence[NDArray[np.float64]]],
        valid: TaggedSplit[Rows],
        test: TaggedSplit[Rows] | None,
        *,
        baseline: bool,
        notify: Notify,
    ) -> dict[str, float]:
        """Score validation and test sentences, beside each word's usual tag."""
        metrics: dict[str, float] = {}
        for name, part in (("valid", valid), ("test", test)):
            if part is None:
                continue
            said, loss = self._said(probabilities(part), part)
            metrics |= prefix_metrics(name, self._metrics(said, loss, part))
            if baseline and (name == "test") == (test is not None):
                metrics |= self._beside(said, part, name, notify)
        return metrics

    def _beside(
        self, said: Sequence[Sequence[str]], part: TaggedSplit[Rows], name: str, notify: Notify
    ) -> dict[str, float]:
        seen = [(one.words, one.tags) for one in self.train.examples.sentences]
        theirs = most_frequent_tags(seen, [one.words for one in part.examples.sentences], self.names)
        what = "baseline (each word's usual tag)"
        if self.entities:
            gain = f1_gain(entity_counts(said, part.targets), entity_counts(theirs, part.targets))
            return report_gain(
                gain, entity_scores(theirs, part.targets)["f1"], name, f"{what} F1", notify, source=self.who
            )
        aims = np.array([tag for tags in part.targets for tag in tags])
        right = [np.array([tag for tags in side for tag in tags]) == aims for side in (said, theirs)]
        score = 100 * float(right[1].mean())
        return report_gain(paired_gain(*right), score, name, f"{what} accuracy", notify, source=self.who)


EncodedTaggedSplit = TaggedSplit[EncodedSentences]


class TaggingExperiment(FineTuningExperiment):
    """Tagged sentences and the encoder that learns them."""

    name, head, passes, batch_rows = "tag", "token", 5.0, 16

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = DataSplits.read(config, read_tagged, self._check, hold_out_sentences, HELD_OUT)
        self.prepare(parts)
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        rows = self.train.rows
        self.set_training_rows(rows)
        self.scoring = TagScorer(self.labels, self.train)
        self.task = TaggingObjective(
            rows,
            self.train.tags,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self.scoring.weights(config.fine_tuning.class_weights),
            kept=self.cache_states(rows, rows.positions),
        )

    def _check(self, train: TaggedSentences) -> None:
        self.labels = tuple(check_tags(train, self.config.data.train[0]))

    def _part(self, given: TaggedSentences, name: str) -> EncodedTaggedSplit:
        tags = given.tag_ids(self.labels)
        rows = encode_words(self.framing, *texts_and_word_spans(given), self.max_length)
        self.report_truncation(rows.account, name)
        return TaggedSplit(given, rows, tags)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [*self.scoring.lines(self.tokens_per_epoch, self.valid, self.test), self.model_line(parameters)]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        return {"labels": list(self.labels)}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        given = self.valid.examples
        self.valid = self._part(given.select(spread_indices(len(given), share)), "validation")

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [constant_tag(self.train.tags, self.valid.tags, self.labels)]

    # ---- measures

    def _chances(self, model: Bert, part: EncodedTaggedSplit) -> list[NDArray[np.float64]]:
        return tag_logprobs(part.rows, part.rows.iter_token_logits(model), part.counts, model.config.num_outputs)

    def validation_rows(self) -> EncodedSentences:
        """Return the validation rows."""
        return self.valid.rows

    def compute_metrics(self, model: Bert) -> EvaluationResult:
        """Return loss and strict entity F1 on validation sentences."""
        return self.scoring.measured(self._chances(model, self.valid), self.valid)

    def concluded(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Score validation and test sentences, beside each word's usual tag."""
        baseline = self.config.fine_tuning.baseline
        found = self.scoring.concluded(
            lambda part: self._chances(model, part), self.valid, self.test, baseline=baseline, notify=notify
        )
        return found, {}


RnnTaggedSplit = TaggedSplit[RnnSentences]


class RnnTaggingExperiment(RnnTextExperiment[RnnTaggerConfig, "RnnTaggingEvaluator"]):
    """Tagged sentences and the tagger that learns them."""

    name = "tag"

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = DataSplits.read(config, read_tagged, self._check, hold_out_sentences, HELD_OUT)
        self.begin(parts, [one.text for one in parts.train.sentences])
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        self.learn([part.rows for part in (self.train, self.valid, self.test) if part is not None])
        self.scoring = TagScorer(self.labels, self.train, who="reading in context")
        self.task = RnnTaggingObjective(
            self.train.rows,
            self.train.tags,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self.scoring.weights(config.fine_tuning.class_weights),
        )
        self.model_config, self.reason = self.choose_config(config.rnn_tagger)
        self.hidden_size = self.model_config.encoder.hidden_size

    def _check(self, train: TaggedSentences) -> None:
        self.labels = check_tags(train, self.config.data.train[0])

    def _part(self, given: TaggedSentences, name: str) -> RnnTaggedSplit:
        tags = given.tag_ids(self.labels)
        rows = RnnSentences.read(self.perception, *texts_and_word_spans(given))
        self.account(rows, name)
        return TaggedSplit(given, rows, tags)

    # ---- what a run asks

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation sentences only."""
        given = self.valid.examples
        self.valid = self._part(given.select(spread_indices(len(given), share)), "validation")

    def model(self) -> RnnTagger:
        """Return the model with its first weights."""
        return initialize_model(build_model(self.model_config), self.config.training.seed)

    def evaluator(self, device: str) -> RnnTaggingEvaluator:
        """Return what measures weights."""
        return RnnTaggingEvaluator(self.model_config, self.scoring, self.valid, device)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [*self.scoring.lines(self.tokens_per_epoch, self.valid, self.test), *self.model_lines(parameters)]

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [constant_tag(self.train.tags, self.valid.tags, self.labels)]

    def load_saved(self) -> LoadedRnnText[RnnTaggerConfig]:
        """Return the run's model as it was written."""
        return load_rnn_text(self.folder, RnnTaggerConfig, self.name)

    def final_evaluation(self, evaluator: RnnTaggingEvaluator, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score validation and test sentences, beside each word's usual tag."""
        baseline = self.config.fine_tuning.baseline
        return self.scoring.concluded(evaluator.chances, self.valid, self.test, baseline=baseline, notify=notify), {}


class RnnTaggingEvaluator(ModelEvaluator[RnnTagger]):
    """Measures a tagger on validation sentences."""

    def __init__(
        self, config: RnnTaggerConfig, scoring: TagScorer[RnnSentences], valid: RnnTaggedSplit, device: str
    ) -> None:
        super().__init__(build_model(config), device)
        self.scoring, self.valid = scoring, valid

    def chances(self, part: RnnTaggedSplit) -> list[NDArray[np.float64]]:
        """Return the log-chances of all tags for each word."""
        return tag_logprobs(
            part.rows, part.rows.iter_token_logits(self.model), part.counts, self.model.config.num_outputs
        )

    def compute_metrics(self) -> EvaluationResult:
        """Return loss and strict entity F1 on validation sentences."""
        return self.scoring.measured(self.chances(self.valid), self.valid)
