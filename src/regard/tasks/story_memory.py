"""Stories as input of memory networks: word ids, batches, errors of restarts, and answers with their attention.

`StoryQuestions` → `StoryVocabulary`, `StoryExamples` → `StoryBatch` → `MemoryNetwork` → `StoryPrediction`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.rnn_models import MemoryNetworkConfig
from regard.data.babi import StoryQuestion, StoryQuestions, story_words
from regard.errors import DataError
from regard.models.memory_network import MemoryNetwork, StoryBatch
from regard.packed_tokens import Tokens
from regard.tasks.story_qa import (
    UNKNOWN_ANSWER,
    StoryPrediction,
    StoryReferences,
    StoryVocabulary,
    refuse_unknown_answers,
)

Indices = NDArray[np.int64]
BATCH_QUESTIONS = 256  # questions of a batch in inference
SINGLE_TASK_EMBEDDING = 20  # published embedding sizes (Sukhbaatar et al. 2015)
JOINT_EMBEDDING = 50


def resolve_sizes(
    config: MemoryNetworkConfig, questions: StoryQuestions, vocabulary: StoryVocabulary
) -> MemoryNetworkConfig:
    """Config with the sizes that follow from the training stories.

    The memory is not larger than the longest story; the default embedding size is the published one, 20 for one task
    and 50 for several.
    """
    texts = {text for question in questions.questions for text in (*question.sentences, question.text)}
    longest_story = max(len(question.sentences) for question in questions.questions)
    default_embedding = SINGLE_TASK_EMBEDDING if len(questions.tasks) == 1 else JOINT_EMBEDDING
    return replace(
        config,
        vocab_size=len(vocabulary.words),
        max_sentence_words=config.max_sentence_words or max(len(story_words(text)) for text in texts),
        memory_size=min(config.memory_size, longest_story),
        embedding_size=config.embedding_size or default_embedding,
    )


@dataclass(frozen=True)
class StoryExamples:
    """Questions as word ids; a sentence that occurs in many stories is stored once."""

    sentences: Tokens  # distinct sentences
    stories: Tokens  # per question, indices of the sentences in the model's memory
    questions: Tokens  # word ids of each question
    answers: Indices  # [n], UNKNOWN_ANSWER for an answer that the model cannot give
    tasks: tuple[str, ...]
    task_indices: Indices  # [n], index of each question's task
    support: list[set[int]]  # positions in the story of the supporting sentences; negative: no longer in memory
    digest: str

    def __len__(self) -> int:
        return len(self.answers)

    def references(self, vocabulary: StoryVocabulary) -> StoryReferences:
        """The known answers and the supporting sentences."""
        return StoryReferences(
            answers=tuple("" if word_id == UNKNOWN_ANSWER else vocabulary.words[word_id] for word_id in self.answers),
            tasks=tuple(self.tasks[index] for index in self.task_indices),
            support=tuple(self.support),
        )

    @cached_property
    def ages(self) -> Indices:
        """Age of each sentence of `stories`: 0 for the last one before the question."""
        lengths = self.stories.lengths
        positions = np.arange(len(self.stories.ids)) - np.repeat(self.stories.offsets[:-1], lengths)
        return np.repeat(lengths, lengths) - 1 - positions

    def noisy_ages(self, share: float, max_age: int, rng: np.random.Generator) -> Indices:
        """Ages with empty memories between sentences (Sukhbaatar et al. 2015, section 4.1, "random noise").

        A story gets up to `share` of its length as empty memories; ages stay below `max_age`.
        """
        counts = self.stories.lengths.astype(np.int64)
        num_memories = counts + rng.integers(0, np.ceil(share * counts).astype(np.int64) + 1)
        starts = np.cumsum(num_memories) - num_memories
        story = np.repeat(np.arange(len(counts)), num_memories)  # of each memory
        shuffled = np.lexsort((rng.random(len(story)), story))  # the memories of each story in random order …
        filled = shuffled[np.arange(len(story)) - starts[story] < counts[story]]  # … of which the first are filled
        filled.sort()
        ages: Indices = np.minimum((starts + num_memories)[story[filled]] - 1 - filled, max_age - 1)
        return ages

    def batch(self, indices: Indices, ages: Indices | None = None) -> StoryBatch:
        """Questions by index, with the sentences of their stories."""
        story_indices, story_offsets = _select_rows(self.stories, indices)
        word_indices, sentence_offsets = _select_rows(self.sentences, self.stories.ids[story_indices])
        question_indices, question_offsets = _select_rows(self.questions, indices)
        all_ages = self.ages if ages is None else ages
        return StoryBatch(
            Tokens(self.questions.ids[question_indices], question_offsets),
            Tokens(self.sentences.ids[word_indices], sentence_offsets),
            ages=all_ages[story_indices],
            sentence_counts=np.diff(story_offsets),
        )

    def batches(self, indices: Indices | None = None) -> Iterator[Indices]:
        """Yield the indices of all questions, or these, batch by batch."""
        all_indices = np.arange(len(self)) if indices is None else indices
        for start in range(0, len(all_indices), BATCH_QUESTIONS):
            yield all_indices[start : start + BATCH_QUESTIONS]


def _select_rows(tokens: Tokens, rows: Any) -> tuple[Indices, Any]:
    """Token indices of rows, and the offsets of these rows laid end to end."""
    lengths = tokens.lengths[rows]
    offsets = np.append(0, np.cumsum(lengths))
    return np.repeat(tokens.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets


class _SentenceTable:
    """Distinct sentences as word ids, in the order of their first occurrence."""

    def __init__(self, vocabulary: StoryVocabulary, max_words: int) -> None:
        self.vocabulary = vocabulary
        self.max_words = max_words
        self.rows: list[list[int]] = []
        self._indices: dict[str, int] = {}

    def add_story(self, question: StoryQuestion, start: int) -> list[int]:
        """Indices of a story's sentences from `start` on; new ones are added. Errors have their location."""
        for position, sentence in enumerate(question.sentences[start:], start):
            if sentence in self._indices:
                continue
            try:
                self.rows.append(self.vocabulary.encode(sentence, self.max_words))
            except DataError as error:
                location = question.sentence_location(position)
                raise DataError(error.what, location=location, advice=error.advice) from None
            self._indices[sentence] = len(self._indices)
        return [self._indices[sentence] for sentence in question.sentences[start:]]


def encode_stories(
    questions: StoryQuestions, vocabulary: StoryVocabulary, config: MemoryNetworkConfig, *, strict: bool = True
) -> StoryExamples:
    """Encode the questions as word ids.

    Unknown words and sentences that are too long are errors with their location. So are, with `strict`, answers that
    do not occur in training; otherwise such questions count as wrong.
    """
    if strict:
        refuse_unknown_answers(questions, vocabulary.answers)
    sentences = _SentenceTable(vocabulary, config.max_sentence_words)
    story_rows: list[list[int]] = []
    question_rows: list[list[int]] = []
    support: list[set[int]] = []
    for question in questions.questions:
        num_truncated = len(question.sentences) - len(question.sentences[-config.memory_size :])
        story_rows.append(sentences.add_story(question, num_truncated))
        question_rows.append(_encode_question(question, vocabulary, config))
        support.append({position - num_truncated for position in question.support})
    tasks = questions.tasks
    return StoryExamples(
        sentences=Tokens.from_rows(sentences.rows),
        stories=Tokens.from_rows(story_rows),
        questions=Tokens.from_rows(question_rows),
        answers=np.array([_answer_id(question.answer, vocabulary) for question in questions.questions], dtype=np.int64),
        tasks=tuple(tasks),
        task_indices=np.array([tasks.index(question.task) for question in questions.questions], dtype=np.int64),
        support=support,
        digest=questions.digest,
    )


def _answer_id(answer: str, vocabulary: StoryVocabulary) -> int:
    """Word id of an answer; `UNKNOWN_ANSWER` if it is no answer of the training stories."""
    return vocabulary.word_ids[answer] if answer in vocabulary.answers else UNKNOWN_ANSWER


def _encode_question(question: StoryQuestion, vocabulary: StoryVocabulary, config: MemoryNetworkConfig) -> list[int]:
    try:
        return vocabulary.encode(question.text, config.max_sentence_words, "question")
    except DataError as error:
        raise DataError(error.what, location=question.location, advice=error.advice) from None


@dataclass(frozen=True)
class StoryErrors:
    """Errors and losses of the restarts of a memory network."""

    tasks: tuple[str, ...]
    errors: NDArray[np.float64]  # [tasks, M], in percent
    loss: NDArray[np.float64]  # [M], per question
    error: NDArray[np.float64]  # [M], over all questions, in percent


@torch.no_grad()
def evaluate_restarts(
    model: MemoryNetwork, examples: StoryExamples, indices: Indices | None = None, *, linear: bool = False
) -> StoryErrors:
    """Errors of every restart by task, and its loss over the questions whose answer the model can give."""
    all_indices = np.arange(len(examples)) if indices is None else indices
    batch_errors: list[NDArray[np.bool_]] = []  # [M, B]
    loss = np.zeros(model.num_restarts)
    for batch in examples.batches(all_indices):
        answers = examples.answers[batch]
        logits = model.logits(model(examples.batch(batch), linear=linear))  # [M, B, V]
        batch_errors.append(logits.argmax(-1).cpu().numpy() != answers)
        known = np.flatnonzero(answers != UNKNOWN_ANSWER)
        logprobs = logits.log_softmax(-1)[:, known, answers[known]]
        loss -= logprobs.double().sum(1).cpu().numpy()
    is_wrong = np.concatenate([np.zeros((model.num_restarts, 0), dtype=bool), *batch_errors], axis=1)
    task = examples.task_indices[all_indices]
    num_known = int((examples.answers[all_indices] != UNKNOWN_ANSWER).sum())
    present = [index for index in range(len(examples.tasks)) if (task == index).any()]
    errors = np.array([100 * is_wrong[:, task == index].mean(1) for index in present])
    return StoryErrors(
        tasks=tuple(examples.tasks[index] for index in present),
        errors=errors.reshape(-1, model.num_restarts),
        loss=loss / max(1, num_known),
        error=100 * is_wrong.mean(1),
    )


@torch.no_grad()
def predict_answers(
    model: MemoryNetwork, vocabulary: StoryVocabulary, examples: StoryExamples, *, top_k: int = 1
) -> list[StoryPrediction]:
    """Answers of the first restart with their attention; of each question the `top_k` most likely."""
    predictions = []
    for indices in examples.batches():
        batch = examples.batch(indices)
        with trace("hop.*", full_precision=True) as captured:
            output = model(batch)
        probabilities, word_ids = model.logits(output)[0].softmax(-1).sort(dim=-1, descending=True, stable=True)
        weights = np.stack([captured[f"hop.{hop}"].weights[0, 0] for hop in range(model.config.hops)])
        offsets = np.append(0, np.cumsum(batch.sentence_counts))
        top = zip(probabilities[:, :top_k].tolist(), word_ids[:, :top_k].tolist(), strict=True)  # [B, V] each
        for row, (row_probabilities, row_ids) in enumerate(top):
            words = [vocabulary.words[word_id] for word_id in row_ids]
            answers = list(zip(words, row_probabilities, strict=True))
            text, probability = answers[0]
            predictions.append(
                StoryPrediction(
                    text,
                    probability,
                    weights=weights[:, row, offsets[row] : offsets[row + 1]],
                    alternatives=tuple(answers[1:]),
                )
            )
    return predictions
