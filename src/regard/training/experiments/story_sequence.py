"""Train RNNs and Transformers from scratch to answer questions about stories, read as one sequence of words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.native import TextModelConfig
from regard.config.models import BertConfig
from regard.config.rnn_models import RnnClassifierConfig
from regard.config.story_run import StoryQARun
from regard.data.babi import StoryQuestions
from regard.models import build_model
from regard.models.bert import Bert
from regard.models.rnn_text import RnnClassifier
from regard.tasks.base import Objective
from regard.tasks.classification import ClassificationObjective, TextClassificationObjective
from regard.tasks.predictions import PredictedStoryAnswers, Predictions
from regard.tasks.story_qa import describe_truncation, score_answers
from regard.tasks.story_sequence import StoryEncoder, StorySequences, story_tokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import build_word_tokenizer
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import EvaluatorT, Notify, prefix_metrics
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.fine_tuning import EncoderEvaluator, EncoderExperiment
from regard.training.experiments.rnn_text import RnnTextExperiment
from regard.training.experiments.story_splits import (
    NUM_SAMPLES,
    answers_by_task,
    count_tasks,
    read_story_splits,
    report_scores,
)
from regard.training.experiments.supervised import EncodedSplit, SupervisedExperiment
from regard.training.trivial_baselines import majority_answer
from regard.training.verdict import TrivialBaseline
from regard.training.vocabulary import load_or_train_tokenizer

ConfigT = TypeVar("ConfigT", bound=TextModelConfig)


@dataclass(frozen=True)
class StorySplit(EncodedSplit[StoryQuestions, Any]):
    """Questions about stories, encoded for a model."""

    sequences: StorySequences[Any]

    def select(self, indices: NDArray[np.int64]) -> Self:
        """The questions at these indices."""
        sequences = self.sequences.select(indices)
        return replace(self, examples=self.examples.select(indices), rows=sequences.rows, sequences=sequences)


class StorySequenceExperiment(SupervisedExperiment[ConfigT, EvaluatorT, StorySplit]):
    """Train a model that reads story and question as one sequence; the answers are its labels."""

    config: StoryQARun
    default_epochs = 100.0
    default_batch_rows = 32
    has_pairs: bool  # whether story and question are a pair of texts with special tokens

    # set by `prepare`
    words: list[str]  # of all training stories, with those that are held out
    encoder: StoryEncoder

    # ---- data

    def read_splits(self) -> DataSplits[StoryQuestions]:
        """Read stories; hold some out where there are no validation files."""
        splits = read_story_splits(self.config)
        self.words = story_tokens(splits.all_train)
        return splits

    def load_tokenizer(self, train: StoryQuestions) -> Tokenizer:
        """A tokenizer of the words of the training stories."""
        return load_or_train_tokenizer(self.folder, lambda: build_word_tokenizer(self.words))

    def build_encoder(self, tokenizer: Tokenizer) -> StoryEncoder:
        """Encoder of stories with this tokenizer."""
        return StoryEncoder(tokenizer, self.labels, max_length=self.config.data.max_length, has_pairs=self.has_pairs)

    def encode(self, examples: StoryQuestions, split: str) -> StorySplit:
        """Encode questions; note stories that are too long."""
        sequences = self.encoder.encode(examples)
        if truncation := describe_truncation([text.truncated_sentences for text in sequences.texts]):
            self.notes.append(f"{split}: {truncation}: see --max-length")
        return StorySplit(examples, sequences.rows, sequences)

    # ---- interface of a run

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{len(self.train.examples):,} questions of {count_tasks(self.train.examples)}"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        test = f", test {len(self.test.examples):,}" if self.test is not None else ""
        return [
            f"data: {self.data_summary}, {self.tokens_per_epoch:,} tokens; validation {len(self.valid.examples):,} "
            f"questions{test}",
            f"answers: {len(self.labels)}",
            *self.describe_parts(num_parameters),
        ]

    def describe_parts(self, num_parameters: int) -> list[str]:
        """Describe vocabulary and model for the user."""
        return [self.describe_tokenizer(), self.describe_model(num_parameters)]

    def describe_tokenizer(self) -> str:
        """Describe the vocabulary for the user."""
        return f"tokens: words, vocabulary of {self.encoder.tokenizer.vocab_size:,}"

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return PredictedStoryAnswers.kind

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Error of the most frequent answer to each task."""
        train = answers_by_task(self.train.examples)
        return [majority_answer(train, answers_by_task(self.valid.examples), metric="error")]

    # ---- metrics

    def predict_validation(self, model: Any) -> tuple[Predictions, Samples]:
        """Predict the validation questions; also return samples."""
        sequences = self.valid.sequences
        answers, loss = self.encoder.predict_texts(model, sequences)
        predictions = PredictedStoryAnswers.from_answers(sequences.references, answers, loss=loss)
        questions = self.valid.examples.questions[:NUM_SAMPLES]
        samples = [
            (question.text, question.answer, answer) for question, answer in zip(questions, answers, strict=False)
        ]
        return predictions, samples

    def score_final(self, model: Any, notify: Notify) -> dict[str, Any]:
        """Score the final model by task on validation and test questions."""
        metrics: dict[str, Any] = {}
        for name, split in (("valid", self.valid), ("test", self.test)):
            if split is None:
                continue
            references = split.sequences.references
            answers, loss = self.encoder.predict(model, split.sequences)
            texts = [answer.text for answer in answers]
            predictions = PredictedStoryAnswers.from_answers(references, texts, loss=loss)
            scores = score_answers(references, answers)
            metrics |= prefix_metrics(name, self.scoring.compute_final(predictions)) | scores.metrics_of(name)
            report_scores(scores, name, notify)
        return metrics


# ---- RNN


class StoryRnnExperiment(
    StorySequenceExperiment[RnnClassifierConfig, "StoryRnnEvaluator"],
    RnnTextExperiment[RnnClassifierConfig, "StoryRnnEvaluator", StorySplit],
):
    """Train an RNN over story and question; the baseline of Weston et al. 2015 is one of its configs."""

    config: StoryQARun
    has_pairs = False

    def prepare_encoding(self, train: StoryQuestions) -> None:
        """Build the vocabulary."""
        super().prepare_encoding(train)
        self.encoder = self.build_encoder(self.preprocessor.tokenizer)

    def base_config(self) -> RnnClassifierConfig:
        """Model config of the run, before its sizes are chosen."""
        return self.config.rnn_classifier

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the answers."""
        return TextClassificationObjective(
            self.train.rows,
            self.train.sequences.targets,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
        )

    def evaluator(self, device: str) -> StoryRnnEvaluator:
        """Build the evaluator on validation questions."""
        return StoryRnnEvaluator(self, device)

    def final_evaluation(self, evaluator: StoryRnnEvaluator, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evaluate the final model on validation and test questions."""
        return self.score_final(evaluator.model, notify), {}


class StoryRnnEvaluator(ModelEvaluator[RnnClassifier]):
    """Evaluates an RNN on validation questions."""

    def __init__(self, experiment: StoryRnnExperiment, device: str) -> None:
        super().__init__(build_model(experiment.model_config), device, experiment.scoring)
        self.experiment = experiment

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the validation questions."""
        return self.experiment.predict_validation(self.model)


# ---- Transformer


class StoryTransformerExperiment(StorySequenceExperiment[BertConfig, EncoderEvaluator], EncoderExperiment[StorySplit]):
    """Train a Transformer over the pair of story and question."""

    config: StoryQARun
    head = "label"
    problem_type = "single_label_classification"
    has_pairs = True
    fresh_epochs = StorySequenceExperiment.default_epochs

    def prepare_encoding(self, train: StoryQuestions) -> None:
        """Build the vocabulary and the model."""
        super().prepare_encoding(train)
        self.encoder = self.build_encoder(self.start.tokenizer)

    def describe_parts(self, num_parameters: int) -> list[str]:
        """Describe vocabulary and model for the user."""
        return [self.describe_model(num_parameters)]

    def training_texts(self, train: StoryQuestions) -> list[str]:
        """Stories with their questions, by whose length the model is chosen."""
        return [" ".join((*question.sentences, question.text)) for question in train.questions]

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the answers."""
        return ClassificationObjective(
            self.train.rows,
            self.train.sequences.targets,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
        )

    def predict(self, model: Bert) -> tuple[Predictions, Samples]:
        """Predict the validation questions; also return samples."""
        return self.predict_validation(model)

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evaluate the final model on validation and test questions."""
        return self.score_final(model, notify), {}
