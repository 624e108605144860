"""Subjects of head studies on encoders: classifiers, taggers, answers, embeddings, masked language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import disable_ablation
from regard.attention.sites import POOLING_SITE
from regard.attention.trace import trace
from regard.backends import EncoderBackend
from regard.config.data import ReadConfig
from regard.data.batching import length_sorted_batches
from regard.data.conll import TaggedSentences, read_tagged
from regard.data.documents import Documents, read_documents
from regard.data.labelled import LabelledTexts, read_labelled
from regard.data.squad import SquadExamples, read_squad
from regard.errors import UsageError
from regard.interpret.head_report import CHANGE
from regard.interpret.head_statistics import AttentionBatch, pad_ids
from regard.interpret.subjects import (
    ATTENTION_BATCH_TOKENS,
    MIN_PROBABILITY,
    NO_MATCH_OFFSET,
    Indices,
    SiteAttention,
    SubjectScore,
    find_special,
    site_attention,
)
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, TextModelClassifier
from regard.pipeline.embedding import EmbeddingPipeline, normalize
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline, question_passage_pairs
from regard.pipeline.tagging import EncoderTagger, TokenClassificationPipeline
from regard.tasks.tagging import word_spans
from regard.tasks.windows import EncodedTexts, encode_texts
from regard.text.tokenizer import Tokenizer


class EncoderAttention:
    """Attention of an encoder over encoded texts."""

    def __init__(self, model: EncoderBackend, tokenizer: Tokenizer) -> None:
        self.model = model
        self.special_ids = tokenizer.special_ids

    def __call__(self, texts: EncodedTexts) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites, batch by batch."""
        for indices in length_sorted_batches(texts.lengths, max_tokens=ATTENTION_BATCH_TOKENS):
            tokens = texts.batch(indices)
            with trace() as captured:
                self.model.encode(tokens)
            ids = pad_ids([*tokens])
            batch = AttentionBatch(ids, ids, find_special(ids, self.special_ids), is_self=True)
            yield [site_attention(captured, site, batch) for site in captured]


class LabelSubject:
    """Labelled texts: loss, accuracy or macro-F1."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True, "f1": True}

    def __init__(self, pipeline: ClassificationPipeline, examples: LabelledTexts) -> None:
        assert isinstance(pipeline.classifier, TextModelClassifier | EncoderClassifier)
        self.pipeline = pipeline
        self.examples = examples
        self.classifier = pipeline.classifier
        self.model = pipeline.classifier.model
        examples.label_matrix(pipeline.labels)  # reject unknown labels before anything is computed

    @classmethod
    def read(cls, pipeline: ClassificationPipeline, files: Sequence[str], config: ReadConfig) -> LabelSubject:
        """Read files of labelled texts."""
        return cls(pipeline, read_labelled(files, pipeline.read_config(config)))

    def __len__(self) -> int:
        return len(self.examples)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over the texts."""
        examples = self.examples.select(indices)
        if isinstance(self.classifier, EncoderClassifier):
            special_tokens = self.classifier.special_tokens
            encoded = encode_texts(special_tokens, examples.texts, examples.pairs, self.classifier.max_length)
            yield from EncoderAttention(self.classifier.model, special_tokens.tokenizer)(encoded)
            return
        preprocessor = self.classifier.preprocessor
        for _, texts in preprocessor.encode(examples.texts).batches():
            with trace() as captured:
                self.classifier.model.probabilities(texts)
            keys = pad_ids([*texts.tokens])
            is_special = find_special(keys, preprocessor.tokenizer.special_ids)
            label = np.full((len(keys), 1), NO_MATCH_OFFSET)  # as a query it equals no token of the text
            pooling = AttentionBatch(label, keys, is_special, is_self=False)
            attention = AttentionBatch(keys, keys, is_special, is_self=True)
            yield [site_attention(captured, site, pooling if site == POOLING_SITE else attention) for site in captured]

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per text, or accuracy or macro-F1 in percent."""
        examples = self.examples.select(indices)
        if metric == "loss":
            return self._loss(examples)
        labels = list(self.pipeline.stream(examples.texts, examples.pairs))
        scores = self.pipeline.evaluate(examples, labels)
        if metric == "f1":
            return SubjectScore(float(scores["macro_f1"]))
        return SubjectScore(float(scores["accuracy"] if "accuracy" in scores else scores["exact_match"]))

    def _loss(self, examples: LabelledTexts) -> SubjectScore:
        probabilities = self.classifier.predict(examples.texts, examples.pairs).probabilities  # [texts, labels]
        targets = examples.label_matrix(self.pipeline.labels)
        if self.pipeline.thresholds is None:
            target_probabilities = (probabilities * targets).sum(axis=1)
            losses = -np.log(np.maximum(target_probabilities, MIN_PROBABILITY))
        else:
            target_probabilities = np.where(targets > 0, probabilities, 1 - probabilities)
            losses = -np.log(np.maximum(target_probabilities, MIN_PROBABILITY)).mean(axis=1)
        return SubjectScore.from_losses(losses, len(examples))


class TagSubject:
    """Tagged sentences: loss of the right tags, strict F1 of entities, or accuracy of tags."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "f1": True, "accuracy": True}

    def __init__(self, pipeline: TokenClassificationPipeline, examples: TaggedSentences) -> None:
        if not isinstance(pipeline.tagger, EncoderTagger):
            raise UsageError("this tagger has no attention: it is an RNN, and there is no head to study")
        self.pipeline = pipeline
        self.examples = examples
        self.tagger = pipeline.tagger
        self.model = pipeline.tagger.model
        examples.tag_ids(pipeline.tags)  # reject unknown tags before anything is computed

    @classmethod
    def read(cls, pipeline: TokenClassificationPipeline, files: Sequence[str], config: ReadConfig) -> TagSubject:
        """Read files of tagged sentences."""
        return cls(pipeline, read_tagged(files, config))

    def __len__(self) -> int:
        return len(self.examples)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over the sentences."""
        special_tokens = self.tagger.special_tokens
        texts = [sentence.text for sentence in self.examples.select(indices).sentences]
        encoded = encode_texts(special_tokens, texts, None, self.tagger.max_length)
        yield from EncoderAttention(self.model, special_tokens.tokenizer)(encoded)

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per word, or F1 of entities or accuracy of tags in percent."""
        examples = self.examples.select(indices)
        if metric != "loss":
            predictions = self.pipeline.tag_sentences(examples)
            return SubjectScore(float(self.pipeline.evaluate(examples, predictions)[metric]))
        spans = [word_spans(sentence.words) for sentence in examples.sentences]
        logprobs = self.tagger.predict([sentence.text for sentence in examples.sentences], spans).logprobs
        targets = examples.tag_ids(self.pipeline.tags)
        losses = []
        for sentence_logprobs, tag_ids in zip(logprobs, targets, strict=True):
            losses.append(-sentence_logprobs[np.arange(len(tag_ids)), tag_ids].sum())
        return SubjectScore.from_losses(losses, sum(map(len, targets)))


class QuestionAnsweringSubject:
    """Questions about passages: F1 or exact match with the reference answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"f1": True, "exact_match": True}

    def __init__(self, pipeline: QuestionAnsweringPipeline, examples: SquadExamples) -> None:
        self.pipeline = pipeline
        self.examples = examples
        self.model = pipeline.model

    @classmethod
    def read(
        cls, pipeline: QuestionAnsweringPipeline, files: Sequence[str], config: ReadConfig
    ) -> QuestionAnsweringSubject:
        """Read files in SQuAD format."""
        return cls(pipeline, read_squad(files, config))

    def __len__(self) -> int:
        return len(self.examples)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over questions and passages."""
        pipeline = self.pipeline
        pairs = question_passage_pairs([self.examples.examples[index] for index in indices])
        yield from EncoderAttention(self.model, pipeline.special_tokens.tokenizer)(pipeline.encode(pairs))

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """F1 or exact match in percent."""
        examples = SquadExamples.from_examples([self.examples.examples[index] for index in indices])
        answers = self.pipeline.answer(question_passage_pairs(examples.examples))
        return SubjectScore(float(self.pipeline.evaluate(examples, answers)[metric]))


class EmbeddingSubject:
    """Texts: how far their embeddings move, 1 − cosine, from those of the intact model."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {CHANGE: False}

    def __init__(self, pipeline: EmbeddingPipeline, documents: Documents) -> None:
        self.pipeline = pipeline
        self.documents = documents
        self.model = pipeline.model
        self._intact_indices: list[int] | None = None
        self._intact_vectors = np.zeros((0, 0), dtype=np.float32)

    @classmethod
    def read(cls, pipeline: EmbeddingPipeline, files: Sequence[str], config: ReadConfig) -> EmbeddingSubject:
        """Read files of texts, one per line."""
        return cls(pipeline, read_documents(files, config, "line"))

    def __len__(self) -> int:
        return len(self.documents)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over the texts, truncated as for embedding."""
        special_tokens = self.pipeline.special_tokens
        texts = self.documents.select(indices).texts
        tokens, _ = special_tokens.encode_batch(texts, max_length=self.pipeline.max_length)
        encoded = EncodedTexts()
        for text_index, ids in enumerate(tokens):
            encoded.add(ids, np.zeros(len(ids), dtype=np.int32), text_index)
        yield from EncoderAttention(self.model, special_tokens.tokenizer)(encoded)

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Mean of 1 − cosine between the embeddings under the active ablation and those of the intact model."""
        cosines = (self._embed(indices) * self._embed_intact(indices)).sum(axis=1, dtype=np.float64)
        return SubjectScore.from_losses(np.maximum(1 - cosines, 0), len(indices))

    def _embed(self, indices: Indices) -> NDArray[np.float32]:
        return normalize(self.pipeline.embed(self.documents.select(indices).texts).vectors)

    def _embed_intact(self, indices: Indices) -> NDArray[np.float32]:
        """Embeddings without ablation; those of the last sample are cached."""
        if self._intact_indices != indices.tolist():
            with disable_ablation():
                self._intact_vectors = self._embed(indices)
            self._intact_indices = indices.tolist()
        return self._intact_vectors


class MaskedSubject:
    """Running text: loss of masked tokens."""

    unit: ClassVar[str] = "documents"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, pipeline: FillMaskPipeline, documents: Documents) -> None:
        self.pipeline = pipeline
        self.documents = documents
        self.model = pipeline.model

    @classmethod
    def read(cls, pipeline: FillMaskPipeline, files: Sequence[str], config: ReadConfig) -> MaskedSubject:
        """Read files of running text."""
        return cls(pipeline, read_documents(files, config))

    def __len__(self) -> int:
        return len(self.documents)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over the documents, without masks."""
        special_tokens = self.pipeline.special_tokens
        texts = self.documents.select(indices).texts
        encoded = encode_texts(special_tokens, texts, None, self.pipeline.max_length)
        yield from EncoderAttention(self.model, special_tokens.tokenizer)(encoded)

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per masked token."""
        return SubjectScore(float(self.pipeline.evaluate(self.documents.select(indices))["loss"]))
