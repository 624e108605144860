"""What a comparison needs to know of a task: its test data, its baseline, and how an example is shown.

The row of a task in `TASKS` names its class; a plugin's task names one of these or a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from regard.config.data import DataConfig, ReadConfig
from regard.config.task_runs import ClassifyRun, TagRun
from regard.data.babi import StoryQuestions, read_stories
from regard.data.conll import OUTSIDE, TaggedSentences, read_tagged
from regard.data.documents import Documents, read_documents
from regard.data.labelled import LabelledTexts, read_labelled, training_columns
from regard.data.pairs import ParallelTexts, read_pairs
from regard.data.squad import SquadExamples, read_squad
from regard.errors import UsageError
from regard.formatting import format_names
from regard.interpret.record_request import PipelineRequest
from regard.registry import TASKS
from regard.tasks.baselines import BagOfWordsBaseline
from regard.tasks.calibration import fit_thresholds, sigmoid_probabilities
from regard.tasks.entities import most_frequent_tags
from regard.tasks.predictions import (
    PredictedEntities,
    PredictedLabels,
    PredictedLabelSets,
    PredictedNextTokens,
    PredictedStoryAnswers,
    PredictedTags,
    Predictions,
)
from regard.tasks.question_answering import PredictedAnswers, word_overlap_baseline
from regard.training.experiments.classification import read_labelled_splits
from regard.training.experiments.tagging import read_tagged_splits
from regard.training.trivial_baselines import most_frequent_answers

EXAMPLE_WORDS = (8, 14)  # length range of the example that is shown
PROMPT_WORDS = 8  # of a document, which a language model continues
NO_LABEL = "(no label)"
NO_ANSWER = "(no answer)"


class TestExamples(Protocol):
    """Examples with their references, as they were read from files."""

    @property
    def notes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...


ExamplesT = TypeVar("ExamplesT", bound=TestExamples)


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline that is fitted to the training data."""

    summary: str
    parameters: int
    predict: Callable[[Any], Predictions]


class TaskComparison(Generic[ExamplesT]):
    """Base of the comparisons of all tasks."""

    def __init__(self, task: str) -> None:
        self.task = task

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> ExamplesT:
        """Read the test data; `metadata` is the task.json of a finished model, empty before training."""
        raise NotImplementedError

    def check_labels(self, examples: ExamplesT, data: DataConfig) -> None:
        """Refuse test data with labels that the training data do not have, before anything is trained."""

    def prediction_kind(self, examples: ExamplesT) -> str:
        """Kind of the predictions of models that are trained on such examples, by which metrics apply."""
        return next(iter(TASKS[self.task].metrics), "")

    def fit_baseline(self, data: DataConfig) -> FittedBaseline:
        """Fit the baseline `counts` to the training data."""
        raise UsageError(f"the task {self.task} has no baseline: leave out counts")

    def request(self, examples: ExamplesT, index: int) -> PipelineRequest:
        """One example as the input of a pipeline."""
        raise NotImplementedError

    def reference(self, examples: ExamplesT, index: int) -> str:
        """Reference of an example, for reading."""
        raise NotImplementedError

    def text(self, examples: ExamplesT, index: int) -> str:
        """Input of an example, for reading; its length is counted in words."""
        return self.request(examples, index).text

    def lengths(self, examples: ExamplesT) -> list[int]:
        """Words of each example; none where the statistics are not of single examples."""
        return [len(self.text(examples, index).split()) for index in range(len(examples))]

    def check_comparable(self, predictions: Sequence[Predictions]) -> None:
        """Refuse predictions of models that cannot be compared, one element for each model."""

    def format_prediction(self, predictions: Any, examples: ExamplesT, index: int, result: object = None) -> str:
        """Prediction for an example, for reading; `result` is that of the pipeline, where there is one."""
        return str(predictions.predictions[index])

    def choose_example(self, examples: ExamplesT) -> int:
        """Index of the first example of a length that suits a figure, or else of the shortest."""
        lengths = self.lengths(examples) or [0]
        low, high = EXAMPLE_WORDS
        suitable = (index for index, length in enumerate(lengths) if low <= length <= high)
        return next(suitable, int(np.argmin(lengths)))


class TranslationComparison(TaskComparison[ParallelTexts]):
    """Translation models."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> ParallelTexts:
        """Read parallel texts."""
        return read_pairs(files, config)

    def request(self, examples: ParallelTexts, index: int) -> PipelineRequest:
        """A source text."""
        return PipelineRequest(examples.source[index])

    def reference(self, examples: ParallelTexts, index: int) -> str:
        """Its target text."""
        return examples.target[index]


class LabelComparison(TaskComparison[LabelledTexts]):
    """Text classifiers: one label, several labels, or pairs of texts."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> LabelledTexts:
        """Read labelled texts, by default from the columns of training."""
        columns: dict[str, str] = {**training_columns(metadata)}
        columns["label_separator"] = str(metadata.get("label_separator") or "")
        return read_labelled(
            files, config.override({name: value for name, value in columns.items() if not getattr(config, name)})
        )

    def check_labels(self, examples: LabelledTexts, data: DataConfig) -> None:
        """Refuse test data with labels that the training data do not have."""
        examples.label_matrix(self.read(data.train, data.read, {}).label_names)

    def prediction_kind(self, examples: LabelledTexts) -> str:
        """One label for each text, or any number of them."""
        return PredictedLabelSets.kind if examples.label_separator else PredictedLabels.kind

    def check_comparable(self, predictions: Sequence[Predictions]) -> None:
        """Refuse models with different labels: one that chooses from fewer has an easier task."""
        labelled = (model for model in predictions if isinstance(model, PredictedLabels | PredictedLabelSets))
        label_sets = [{*model.labels} for model in labelled]
        first, *_ = label_sets
        others = sorted(first.union(*label_sets) - first.intersection(*label_sets))
        if others:
            raise UsageError(
                f"models with different labels cannot be compared: not all of them have {format_names(others)}: train "
                "them on data with the same labels"
            )

    def request(self, examples: LabelledTexts, index: int) -> PipelineRequest:
        """A text, or a pair of texts."""
        pair = None if examples.pairs is None else examples.pairs[index]
        return PipelineRequest(examples.texts[index], pair=pair)

    def text(self, examples: LabelledTexts, index: int) -> str:
        """A text, and the second one of a pair."""
        pairs = examples.pairs
        return examples.texts[index] if pairs is None else f"{examples.texts[index]} ‖ {pairs[index]}"

    def reference(self, examples: LabelledTexts, index: int) -> str:
        """Its labels."""
        return ", ".join(examples.label_sets[index]) or NO_LABEL

    def format_prediction(self, predictions: Any, examples: LabelledTexts, index: int, result: object = None) -> str:
        """The predicted labels."""
        predicted = predictions.predictions[index]
        if isinstance(predictions, PredictedLabelSets):
            return ", ".join(compress(predictions.labels, predicted)) or NO_LABEL
        return str(predictions.labels[predicted])

    def fit_baseline(self, data: DataConfig) -> FittedBaseline:
        """Fit logistic regression on words and bigrams; validation texts choose its penalty and thresholds."""
        splits = read_labelled_splits(ClassifyRun(data=data))
        labels = splits.labels
        train = splits.train
        valid = splits.valid
        is_multi_label = bool(train.label_separator)

        def targets(texts: LabelledTexts) -> Any:
            return texts.label_matrix(labels) if is_multi_label else texts.label_ids(labels)

        model = BagOfWordsBaseline.fit(
            train.texts,
            targets(train),
            len(labels),
            pairs=train.pairs,
            valid=(valid.texts, valid.pairs, targets(valid)),
        )
        thresholds: Any = None
        if is_multi_label:
            valid_logits = model.logits(valid.texts, valid.pairs)
            thresholds = fit_thresholds(sigmoid_probabilities(valid_logits), targets(valid))

        def predict(examples: LabelledTexts) -> Predictions:
            logits = model.logits(examples.texts, examples.pairs)
            references = targets(examples)
            if is_multi_label:
                predicted = sigmoid_probabilities(logits) >= thresholds
                return PredictedLabelSets(predictions=predicted, references=references > 0, labels=labels)
            return PredictedLabels(predictions=logits.argmax(1), references=references, labels=labels)

        parameters = model.weight.numel() + model.bias.numel()
        summary = f"logistic regression on TF-IDF weights of {len(model.vocabulary):,} words and bigrams"
        return FittedBaseline(summary, parameters, predict)


class TagComparison(TaskComparison[TaggedSentences]):
    """Token classifiers."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> TaggedSentences:
        """Read tagged sentences."""
        return read_tagged(files, config)

    def check_labels(self, examples: TaggedSentences, data: DataConfig) -> None:
        """Refuse test data with tags that the training data do not have."""
        examples.tag_ids(self.read(data.train, data.read, {}).tags)

    def prediction_kind(self, examples: TaggedSentences) -> str:
        """Entities where tags mark them, otherwise tags of single words."""
        return PredictedEntities.kind if examples.has_entities else PredictedTags.kind

    def request(self, examples: TaggedSentences, index: int) -> PipelineRequest:
        """The words of a sentence, joined by spaces."""
        return PipelineRequest(examples.sentences[index].text)

    def reference(self, examples: TaggedSentences, index: int) -> str:
        """Its words with their tags."""
        sentence = examples.sentences[index]
        return _format_tags(sentence.words, sentence.tags)

    def format_prediction(self, predictions: Any, examples: TaggedSentences, index: int, result: object = None) -> str:
        """The words with their predicted tags."""
        return _format_tags(examples.sentences[index].words, predictions.predictions[index])

    def choose_example(self, examples: TaggedSentences) -> int:
        """Index of a suitable sentence with an entity, where there is one."""
        has_entity = [set(sentence.tags) > {OUTSIDE} for sentence in examples.sentences]
        indices = np.flatnonzero(has_entity)
        if not len(indices):
            return super().choose_example(examples)
        return int(indices[super().choose_example(examples.select(indices))])

    def fit_baseline(self, data: DataConfig) -> FittedBaseline:
        """Count the tags of each word."""
        splits = read_tagged_splits(TagRun(data=data))
        train = [(sentence.words, sentence.tags) for sentence in splits.train.sentences]
        predictions_class = PredictedEntities if splits.train.has_entities else PredictedTags

        def predict(examples: TaggedSentences) -> Predictions:
            words = [sentence.words for sentence in examples.sentences]
            return predictions_class(
                predictions=most_frequent_tags(train, words, splits.labels),
                references=[list(sentence.tags) for sentence in examples.sentences],
            )

        vocabulary = {word for words, _ in train for word in words}
        return FittedBaseline("the most frequent tag of each word", len(vocabulary) * len(splits.labels), predict)


def _format_tags(words: Sequence[str], tags: Sequence[str]) -> str:
    """Words with their tags, but O.

    >>> _format_tags(["in", "York"], ["O", "B-place"])
    'in York/B-place'
    """
    pairs = zip(words, tags, strict=True)
    return " ".join(word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in pairs)


class AnswerComparison(TaskComparison[SquadExamples]):
    """Extractive question answering."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> SquadExamples:
        """Read questions and passages."""
        return read_squad(files, config)

    def request(self, examples: SquadExamples, index: int) -> PipelineRequest:
        """A question and its passage."""
        example = examples.examples[index]
        return PipelineRequest(example.question, passage=example.passage)

    def text(self, examples: SquadExamples, index: int) -> str:
        """A question and its passage."""
        example = examples.examples[index]
        return f"{example.question} ‖ {example.passage}"

    def reference(self, examples: SquadExamples, index: int) -> str:
        """Its reference answers."""
        return " / ".join(text or NO_ANSWER for text in dict.fromkeys(examples.examples[index].texts))

    def format_prediction(self, predictions: Any, examples: SquadExamples, index: int, result: object = None) -> str:
        """The predicted answer."""
        return predictions.predictions[index] or NO_ANSWER

    def fit_baseline(self, data: DataConfig) -> FittedBaseline:
        """The phrase of the passage near most words of the question, which needs no training."""

        def predict(questions: SquadExamples) -> Predictions:
            answers = [word_overlap_baseline(example.question, example.passage) for example in questions.examples]
            return PredictedAnswers(predictions=answers, references=questions.examples)

        return FittedBaseline("the phrase of the passage near most words of the question", 0, predict)


class StoryComparison(TaskComparison[StoryQuestions]):
    """Questions about stories."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> StoryQuestions:
        """Read stories with questions, one file per task."""
        return read_stories(files, config)

    def request(self, examples: StoryQuestions, index: int) -> PipelineRequest:
        """A question and the sentences before it."""
        question = examples.questions[index]
        return PipelineRequest(question.text, story=question.sentences)

    def text(self, examples: StoryQuestions, index: int) -> str:
        """The story and the question."""
        question = examples.questions[index]
        return f"{' '.join(question.sentences)} ‖ {question.text}"

    def reference(self, examples: StoryQuestions, index: int) -> str:
        """The answer."""
        return examples.questions[index].answer

    def fit_baseline(self, data: DataConfig) -> FittedBaseline:
        """Count the answers of each task."""
        stories = read_stories(data.train, data.read)
        answers = most_frequent_answers((question.task, question.answer) for question in stories.questions)

        def predict(examples: StoryQuestions) -> Predictions:
            tasks = [question.task for question in examples.questions]
            return PredictedStoryAnswers(
                predictions=[answers.get(task, answers[""]) for task in tasks],
                references=[question.answer for question in examples.questions],
                tasks=tasks,
                stories=examples.stories,
            )

        return FittedBaseline("the most frequent answer of each task", len(answers), predict)


class CausalLMComparison(TaskComparison[Documents]):
    """Causal language models; the examples of intervals and tests are blocks of tokens."""

    def read(self, files: Sequence[str], config: ReadConfig, metadata: Mapping[str, Any]) -> Documents:
        """Read running text."""
        return read_documents(files, config, str(metadata.get("document", "file")))

    def lengths(self, examples: Documents) -> list[int]:
        """None: blocks of tokens have one length."""
        return []

    def check_comparable(self, predictions: Sequence[Predictions]) -> None:
        """Refuse models with different tokenizers: a loss per token means something else for each."""
        blocks = [model.blocks for model in predictions if isinstance(model, PredictedNextTokens)]
        tokens = [block.tokens.tolist() for block in blocks if block is not None]
        if any(other != tokens[0] for other in tokens[1:]):
            counts = ", ".join(f"{sum(other):,}" for other in tokens)
            raise UsageError(
                f"losses per token are not comparable: the models read the test data in different rows, as {counts} "
                "tokens: compare models with one tokenizer and one --documents.sequence_length"
            )

    def request(self, examples: Documents, index: int) -> PipelineRequest:
        """The first words of a document."""
        return PipelineRequest(" ".join(examples.texts[index].split()[:PROMPT_WORDS]))

    def reference(self, examples: Documents, index: int) -> str:
        """The words that follow."""
        return " ".join(examples.texts[index].split()[PROMPT_WORDS : 2 * PROMPT_WORDS]) + " …"

    def format_prediction(self, predictions: Any, examples: Documents, index: int, result: object = None) -> str:
        """The continuation of the first words."""
        return f"{result} …"
