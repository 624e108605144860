"""Subjects of head studies on stories: memory networks, and models that read the story as one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from regard.attention.sites import POOLING_SITE
from regard.attention.trace import trace
from regard.config.data import ReadConfig
from regard.data.babi import StoryQuestions, read_stories
from regard.errors import UsageError
from regard.interpret.encoder_subjects import EncoderAttention
from regard.interpret.head_statistics import AttentionBatch, pad_ids
from regard.interpret.subjects import (
    NO_MATCH_OFFSET,
    Indices,
    SiteAttention,
    StudySubject,
    SubjectScore,
    find_special,
    site_attention,
)
from regard.pipeline.memory_network import MemoryNetworkReader
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.story_readers import EncoderStoryReader, SequenceReader
from regard.tasks.story_memory import encode_stories, evaluate_restarts


class StorySubject:
    """Questions about stories: loss, or the percentage of right answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}

    @classmethod
    def read(cls, pipeline: StoryQAPipeline, files: Sequence[str], config: ReadConfig) -> StudySubject:
        """Read files of stories for a model of any architecture."""
        stories = read_stories(files, config)
        reader = pipeline.reader
        if isinstance(reader, MemoryNetworkReader):
            return MemoryNetworkSubject(reader, stories)
        assert isinstance(reader, SequenceReader)
        return StorySequenceSubject(reader, stories)


class MemoryNetworkSubject(StorySubject):
    """Questions that a memory network answers."""

    def __init__(self, reader: MemoryNetworkReader, stories: StoryQuestions) -> None:
        self.model = reader.model
        self.examples = encode_stories(stories, reader.vocabulary, self.model.config, strict=False)

    def __len__(self) -> int:
        return len(self.examples)

    @torch.no_grad()
    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of the hops, question by question; keys are sentences, the latest first."""
        for index in indices:
            question = self.examples.batch(np.array([index]))
            with trace() as captured:
                self.model(question)
            sentences = np.arange(int(question.sentence_counts[0]))[None]
            is_special = np.zeros(sentences.shape, dtype=bool)
            attention_batch = AttentionBatch(np.full((1, 1), NO_MATCH_OFFSET), sentences, is_special, is_self=False)
            latest_first = slice(sentences.shape[1] - 1, None, -1) if sentences.size else slice(0)
            attention = [site_attention(captured, site, attention_batch) for site in captured]
            yield [(site, weights[..., latest_first], tokens) for site, weights, tokens in attention]

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per question, or the percentage of right answers."""
        scores = evaluate_restarts(self.model, self.examples, indices)
        return SubjectScore(float(scores.loss[0]) if metric == "loss" else 100 - float(scores.error[0]))


class StorySequenceSubject(StorySubject):
    """Questions to a model that reads story and question as one sequence."""

    def __init__(self, reader: SequenceReader, stories: StoryQuestions) -> None:
        self.reader = reader
        self.stories = stories
        self.model = reader.model
        if not self.model.attention_sites():
            raise UsageError("this model has no attention: it is an RNN, and there is no head to study")

    def __len__(self) -> int:
        return len(self.stories)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over story and question."""
        encoder = self.reader.encoder
        rows = encoder.encode(self.stories.select(indices.tolist())).rows
        if isinstance(self.reader, EncoderStoryReader):
            yield from EncoderAttention(self.reader.model, encoder.tokenizer)(rows)
            return
        for _, batch in rows.batches():
            with trace() as captured:
                self.model.probabilities(batch)
            keys = pad_ids([*batch.tokens])
            answer = np.full((len(keys), 1), NO_MATCH_OFFSET)  # as a query it equals no token of the story
            is_special = find_special(keys, encoder.tokenizer.special_ids)
            pooling = AttentionBatch(answer, keys, is_special, is_self=False)
            yield [site_attention(captured, POOLING_SITE, pooling)]

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per question, or the percentage of right answers."""
        sequences = self.reader.encoder.encode(self.stories.select(indices.tolist()))
        answers, loss = self.reader.encoder.predict_texts(self.model, sequences)
        if metric == "loss":
            return SubjectScore(loss)
        pairs = zip(answers, sequences.references.answers, strict=True)
        return SubjectScore(100 * float(np.mean([answer == reference for answer, reference in pairs])))
