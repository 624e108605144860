"""Train taggers: a fine-tuned encoder, or an RNN from scratch.

`TagScorer` evaluates both: valid tag sequences by Viterbi decoding, strict entity F1 (Tjong Kim Sang and De Meulder,
2003), and a baseline that assigns each word its most frequent tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from regard.config.rnn_models import RnnTaggerConfig
from regard.config.task_runs import TagRun
from regard.data.conll import TaggedSentences, check_tags, hold_out_sentences, read_tagged, tag_counts
from regard.formatting import format_names
from regard.models import build_model
from regard.models.bert import Bert
from regard.models.rnn_text import RnnTagger
from regard.tasks.base import Objective
from regard.tasks.baselines import f1_gain, paired_gain
from regard.tasks.entities import entity_counts, entity_scores, most_frequent_tags, tag_transitions, viterbi
from regard.tasks.losses import balanced_weights
from regard.tasks.predictions import PredictedEntities, PredictedTags, Predictions, TagSequences
from regard.tasks.scoring import Scoring
from regard.tasks.tagging import (
    FIRST_SUBWORD,
    LAST_SUBWORD,
    EncodedSentences,
    RnnSentences,
    Spans,
    encode_words,
    tag_logprobs,
    word_spans,
)
from regard.tasks.tagging_objectives import RnnTaggingObjective, TaggingObjective
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import Notify, prefix_metrics, report_gain
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.fine_tuning import EncoderExperiment
from regard.training.experiments.rnn_text import RnnTextExperiment
from regard.training.experiments.supervised import EncodedSplit, RowsT
from regard.training.trivial_baselines import constant_tag
from regard.training.verdict import TrivialBaseline

NUM_SAMPLES = 2  # sentences shown at each evaluation
MAX_SHOWN_TAGS = 12

LogProbs = Sequence[NDArray[np.float64]]  # of each sentence, [words, tags]


@dataclass(frozen=True)
class TaggedSplit(EncodedSplit[TaggedSentences, RowsT]):
    """Tagged sentences, encoded for a model."""

    tag_ids: list[NDArray[np.int64]]

    def select(self, indices: NDArray[np.int64]) -> Self:
        """The sentences at these indices."""
        return replace(super().select(indices), tag_ids=[self.tag_ids[index] for index in indices])

    @property
    def targets(self) -> list[list[str]]:
        """Reference tags of each sentence."""
        return [list(sentence.tags) for sentence in self.examples.sentences]

    @property
    def word_counts(self) -> list[int]:
        """Number of words of each sentence."""
        return [len(tag_ids) for tag_ids in self.tag_ids]


EncodedTaggedSplit = TaggedSplit[EncodedSentences]
RnnTaggedSplit = TaggedSplit[RnnSentences]


def read_tagged_splits(config: TagRun) -> DataSplits[TaggedSentences]:
    """Read tagged sentences and their tags; hold some sentences out where there are no validation files."""
    return DataSplits.read(
        config,
        read_tagged,
        hold_out_sentences,
        describe_held_out=lambda valid: f"{len(valid):,} of the sentences are held out",
        find_labels=check_tags,
    )


def texts_and_word_spans(sentences: TaggedSentences) -> tuple[list[str], list[Spans]]:
    """Join the words of sentences to texts, with the character spans of the words."""
    texts = [sentence.text for sentence in sentences.sentences]
    spans: list[Spans] = [word_spans(sentence.words) for sentence in sentences.sentences]
    return texts, spans


@dataclass(frozen=True)
class TagScorer(Generic[RowsT]):
    """Scores the tag log-probabilities of a model."""

    labels: Sequence[str]
    train: TaggedSplit[RowsT]
    scoring: Scoring
    gain_source: str = "attention"  # what a gain over the baseline is attributed to

    @property
    def has_entities(self) -> bool:
        """Whether tags mark entities."""
        return any(label.startswith("B-") for label in self.labels)

    def class_weights(self, kind: str) -> NDArray[np.float32] | None:
        """Weight of each tag in the loss; None without class weights."""
        if kind == "none":
            return None
        return balanced_weights(np.bincount(np.concatenate(self.train.tag_ids), minlength=len(self.labels)))

    def trivial_baseline(self, valid: TaggedSplit[RowsT]) -> TrivialBaseline:
        """F1, or accuracy, of one tag for every word."""
        return constant_tag(self.train.tag_ids, valid.tag_ids, self.labels)

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{len(self.train.examples):,} sentences, {sum(self.train.word_counts):,} words"

    def describe(self, num_tokens: int, valid: TaggedSplit[RowsT], test: TaggedSplit[RowsT] | None) -> list[str]:
        """Describe the data for the user."""
        test_size = f", test {len(test.examples):,}" if test is not None else ""
        counts = [f"{tag} {count:,}" for tag, count in tag_counts(self.train.examples).items()]
        return [
            f"data: {self.data_summary}, {num_tokens:,} tokens; validation {len(valid.examples):,}{test_size}",
            f"{'entities' if self.has_entities else 'tags'}: {format_names(counts, MAX_SHOWN_TAGS)}",
        ]

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return PredictedEntities.kind if self.has_entities else PredictedTags.kind

    def predict(self, logprobs: LogProbs, split: TaggedSplit[RowsT]) -> PredictedTags:
        """Predict the most probable valid tags of each sentence."""
        transitions = tag_transitions(self.labels)
        tags = [[self.labels[tag_id] for tag_id in viterbi(sentence, transitions)] for sentence in logprobs]
        total_loss = sum(
            float(-sentence[np.arange(len(tag_ids)), tag_ids].sum())
            for sentence, tag_ids in zip(logprobs, split.tag_ids, strict=True)
        )
        loss = total_loss / max(1, sum(split.word_counts))
        predictions_class = PredictedEntities if self.has_entities else PredictedTags
        return predictions_class(predictions=tags, references=split.targets, loss=loss)

    def predict_samples(self, logprobs: LogProbs, valid: TaggedSplit[RowsT]) -> tuple[PredictedTags, Samples]:
        """Predict the tags of validation sentences; also return samples."""
        predictions = self.predict(logprobs, valid)
        samples = [
            (sentence.text, " ".join(sentence.tags), " ".join(tags))
            for sentence, tags in zip(valid.examples.sentences, predictions.predictions[:NUM_SAMPLES], strict=False)
        ]
        return predictions, samples

    def compute_final_metrics(
        self,
        compute_logprobs: Callable[[TaggedSplit[RowsT]], LogProbs],
        valid: TaggedSplit[RowsT],
        test: TaggedSplit[RowsT] | None,
        *,
        baseline: bool,
        notify: Notify,
    ) -> dict[str, float]:
        """Score the validation and test splits; compare the test split, or else the other, with the baseline."""
        metrics: dict[str, float] = {}
        for name, split in (("valid", valid), ("test", test)):
            if split is None:
                continue
            predictions = self.predict(compute_logprobs(split), split)
            metrics |= prefix_metrics(name, self.scoring.compute_final(predictions))
            is_last = name == "test" or test is None
            if baseline and is_last:
                metrics |= self._compare_with_baseline(predictions.predictions, split, name, notify)
        return metrics

    def _compare_with_baseline(
        self, predictions: TagSequences, split: TaggedSplit[RowsT], name: str, notify: Notify
    ) -> dict[str, float]:
        """Score each word's most frequent training tag, and report what the model gains over it."""
        train = [(sentence.words, sentence.tags) for sentence in self.train.examples.sentences]
        words = [sentence.words for sentence in split.examples.sentences]
        baseline_tags = most_frequent_tags(train, words, self.labels)
        targets = split.targets
        if self.has_entities:
            gain = f1_gain(entity_counts(predictions, targets), entity_counts(baseline_tags, targets))
            score = entity_scores(baseline_tags, targets)["f1"]
            metric = "F1"
        else:
            flat_targets = _flatten(targets)
            is_correct = _flatten(predictions) == flat_targets
            baseline_is_correct = _flatten(baseline_tags) == flat_targets
            gain = paired_gain(is_correct, baseline_is_correct)
            score = 100 * float(baseline_is_correct.mean())
            metric = "accuracy"
        caption = f"baseline (each word's usual tag) {metric}"
        return report_gain(gain, score, name, caption, notify, source=self.gain_source)


def _flatten(tags: TagSequences) -> NDArray[np.str_]:
    return np.array(list(chain.from_iterable(tags)))


# ---- fine-tuned encoders


class TaggingExperiment(EncoderExperiment[EncodedTaggedSplit]):
    """Fine-tune or train an encoder on tagged sentences."""

    config: TagRun
    head = "token"
    default_epochs = 5.0
    default_batch_rows = 16

    @cached_property
    def scorer(self) -> TagScorer[EncodedSentences]:
        """Scorer for the tags of the data."""
        return TagScorer(self.labels, self.train, self.scoring)

    def read_splits(self) -> DataSplits[TaggedSentences]:
        """Read tagged sentences."""
        return read_tagged_splits(self.config)

    def training_texts(self, train: TaggedSentences) -> list[str]:
        """Sentences of the training examples."""
        return [sentence.text for sentence in train.sentences]

    def encode(self, examples: TaggedSentences, split: str) -> EncodedTaggedSplit:
        """Encode sentences and their tags."""
        tag_ids = examples.tag_ids(self.labels)
        texts, spans = texts_and_word_spans(examples)
        rows = encode_words(self.special_tokens, texts, spans, self.max_length, self._word_token)
        self.report_truncation(rows.truncation, split)
        return TaggedSplit(examples, rows, tag_ids=tag_ids)

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the tags."""
        rows = self.train.rows
        return TaggingObjective(
            rows,
            self.train.tag_ids,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
            class_weights=self.scorer.class_weights(self.config.fine_tuning.class_weights),
            cached_states=self.cache_states(rows, rows.positions),
        )

    # ---- interface of a run

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return self.scorer.data_summary

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        data_lines = self.scorer.describe(self.tokens_per_epoch, self.valid, self.test)
        return [*data_lines, self.describe_model(num_parameters)]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Entries of task.json on the labels, and on the subword at which a word is tagged."""
        return {"labels": list(self.labels), "word_token": self._word_token}

    @property
    def _word_token(self) -> str:
        """Subword at which a word is tagged: of a causal model, the one that has seen the whole word."""
        return LAST_SUBWORD if self.model_config.causal else FIRST_SUBWORD

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return self.scorer.prediction_kind

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [self.scorer.trivial_baseline(self.valid)]

    # ---- metrics

    def _compute_logprobs(self, model: Bert, split: EncodedTaggedSplit) -> list[NDArray[np.float64]]:
        logits = split.rows.iter_token_logits(model)
        return tag_logprobs(split.rows, logits, split.word_counts, model.config.num_outputs)

    def predict(self, model: Bert) -> tuple[Predictions, Samples]:
        """Predict the tags of validation sentences."""
        return self.scorer.predict_samples(self._compute_logprobs(model, self.valid), self.valid)

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Score validation and test sentences, and compare with the baseline."""
        metrics = self.scorer.compute_final_metrics(
            lambda split: self._compute_logprobs(model, split),
            self.valid,
            self.test,
            baseline=self.config.fine_tuning.baseline,
            notify=notify,
        )
        return metrics, {}


# ---- RNN taggers


class RnnTaggingExperiment(RnnTextExperiment[RnnTaggerConfig, "RnnTaggingEvaluator", RnnTaggedSplit]):
    """Train an RNN tagger on tagged sentences."""

    config: TagRun

    @cached_property
    def scorer(self) -> TagScorer[RnnSentences]:
        """Scorer for the tags of the data."""
        return TagScorer(self.labels, self.train, self.scoring, gain_source="reading in context")

    def base_config(self) -> RnnTaggerConfig:
        """Model config of the run, before its sizes are chosen."""
        return self.config.rnn_tagger

    def read_splits(self) -> DataSplits[TaggedSentences]:
        """Read tagged sentences."""
        return read_tagged_splits(self.config)

    def tokenizer_texts(self, examples: TaggedSentences) -> list[str]:
        """The sentences, without tags."""
        return [sentence.text for sentence in examples.sentences]

    def encode(self, examples: TaggedSentences, split: str) -> RnnTaggedSplit:
        """Encode sentences and their tags."""
        tag_ids = examples.tag_ids(self.labels)
        texts, spans = texts_and_word_spans(examples)
        rows = RnnSentences.encode(self.preprocessor, texts, spans)
        self.report_truncation(self.preprocessor.report_truncation(rows), split)
        return TaggedSplit(examples, rows, tag_ids=tag_ids)

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the tags."""
        return RnnTaggingObjective(
            self.train.rows,
            self.train.tag_ids,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
            class_weights=self.scorer.class_weights(self.config.fine_tuning.class_weights),
        )

    # ---- interface of a run

    def evaluator(self, device: str) -> RnnTaggingEvaluator:
        """Build the evaluator on validation data."""
        return RnnTaggingEvaluator(self.model_config, self.scorer, valid=self.valid, device=device)

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return self.scorer.data_summary

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        data_lines = self.scorer.describe(self.tokens_per_epoch, self.valid, self.test)
        return [*data_lines, self.describe_tokenizer(), self.describe_model(num_parameters)]

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return self.scorer.prediction_kind

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """F1, or accuracy, of one tag for every word."""
        return [self.scorer.trivial_baseline(self.valid)]

    def final_evaluation(self, evaluator: RnnTaggingEvaluator, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score validation and test sentences, and compare with the baseline."""
        metrics = self.scorer.compute_final_metrics(
            evaluator.compute_logprobs,
            self.valid,
            self.test,
            baseline=self.config.fine_tuning.baseline,
            notify=notify,
        )
        return metrics, {}


class RnnTaggingEvaluator(ModelEvaluator[RnnTagger]):
    """Evaluates an RNN tagger on validation sentences."""

    def __init__(
        self, config: RnnTaggerConfig, scorer: TagScorer[RnnSentences], valid: RnnTaggedSplit, device: str
    ) -> None:
        super().__init__(build_model(config), device, scorer.scoring)
        self.scorer = scorer
        self.valid = valid

    def compute_logprobs(self, split: RnnTaggedSplit) -> list[NDArray[np.float64]]:
        """Log-probabilities of all tags for each word."""
        logits = split.rows.iter_token_logits(self.model)
        return tag_logprobs(split.rows, logits, split.word_counts, self.model.config.num_outputs)

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the tags of validation sentences."""
        return self.scorer.predict_samples(self.compute_logprobs(self.valid), self.valid)
