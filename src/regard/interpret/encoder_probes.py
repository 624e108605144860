"""Pipelines as those see them who study their heads: where they look on data, and how well they do on some of it.

One probe for each task. A probe does not know that heads are switched off: whoever asks does that around the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import disable_ablation
from regard.attention.trace import trace
from regard.config.data import ReadConfig
from regard.data.batching import length_sorted_batches
from regard.data.conll import TaggedSentences, read_tagged
from regard.data.documents import Documents, read_documents
from regard.data.labelled import LabelledTexts, read_labelled
from regard.data.squad import SquadExamples, read_squad
from regard.errors import UsageError
from regard.interpret.head_statistics import AttentionBatch, pad_ids
from regard.interpret.probes import (
    ATTENTION_BATCH_TOKENS,
    MIN_PROBABILITY,
    NO_MATCH_OFFSET,
    Numbers,
    ProbeScore,
    Seen,
    _added,
    _special,
)
from regard.models.bert import Bert
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.embedding import EmbeddingPipeline, normalize
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline, question_passage_pairs
from regard.pipeline.tagging import EncoderTagger, TokenClassificationPipeline
from regard.tasks.question_answering import encode_questions
from regard.tasks.tagging import word_spans
from regard.tasks.windows import EncodedTexts, encode_texts
from regard.text.tokenizer import Tokenizer
from regard.view.head_report import CHANGE


class EncoderAttention:
    """Where an encoder looks while it reads rows."""

    def __init__(self, model: Bert, tokenizer: Tokenizer) -> None:
        self.model, self.specials = model, tokenizer.special_ids

    def __call__(self, rows: EncodedTexts) -> Iterator[Seen]:
        """Yield where all heads looked, batch by batch."""
        for some in length_sorted_batches(rows.lengths, max_tokens=ATTENTION_BATCH_TOKENS):
            tokens = rows.batch(some)
            with trace() as seen:
                self.model.encode(tokens)
            read = pad_ids([*tokens])
            looking = AttentionBatch(read, read, _special(read, self.specials), is_self=True)
            yield [(site, seen[site].weights, looking) for site in seen]


class LabelProbe:
    """Texts with labels: loss, accuracy or macro-F1."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True, "f1": True}

    def __init__(self, pipeline: ClassificationPipeline, rows: LabelledTexts) -> None:
        self.pipeline, self.rows = pipeline, rows
        assert isinstance(pipeline.reader, RecurrentClassifier | EncoderClassifier)
        self.reader, self.model = pipeline.reader, pipeline.reader.model
        rows.label_matrix(pipeline.labels)  # an unknown label is refused before anything is computed

    @classmethod
    def read(cls, pipeline: ClassificationPipeline, files: Sequence[str], reading: ReadConfig) -> LabelProbe:
        """Return the probe of a classifier on files of labelled texts."""
        separator = pipeline.task.get("separator")
        if pipeline.thresholds is not None and separator and not reading.label_separator:
            reading = reading.override({"label_separator": separator})
        return cls(pipeline, read_labelled(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the texts."""
        chosen = self.rows.select(numbers)
        if isinstance(self.reader, EncoderClassifier):
            framing = self.reader.framing
            read = encode_texts(framing, chosen.texts, chosen.pairs, self.reader.max_length)
            yield from EncoderAttention(self.reader.model, framing.tokenizer)(read)
            return
        for _, texts in self.reader.perception.encode(chosen.texts).batches():
            with trace() as seen:
                self.reader.model.probabilities(texts)
            columns = pad_ids([*texts.tokens])
            special = _special(columns, self.reader.perception.tokenizer.special_ids)
            looking = AttentionBatch(np.full((len(columns), 1), NO_MATCH_OFFSET), columns, special, is_self=False)
            yield [(site, seen[site].weights, looking) for site in seen]

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss of a text, accuracy or macro-F1 in percent."""
        chosen, labels = self.rows.select(numbers), self.pipeline.labels
        if metric == "loss":
            chances = self.reader.predict(chosen.texts, chosen.pairs).probabilities
            marks = chosen.label_matrix(labels)
            if self.pipeline.thresholds is None:
                return _added(-np.log(np.maximum((chances * marks).sum(axis=1), MIN_PROBABILITY)), len(chosen))
            right = np.where(marks > 0, chances, 1 - chances)
            return _added(-np.log(np.maximum(right, MIN_PROBABILITY)).mean(axis=1), len(chosen))
        scores = self.pipeline.evaluate(chosen, list(self.pipeline.stream(chosen.texts, chosen.pairs)))
        names = {"f1": ("macro_f1",), "accuracy": ("accuracy", "exact")}[metric]
        return ProbeScore(float(next(scores[name] for name in names if name in scores)))


class TagProbe:
    """Sentences with tagged words: loss of the right tags, strict F1, or the share of words with the right tag."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "f1": True, "accuracy": True}

    def __init__(self, pipeline: TokenClassificationPipeline, rows: TaggedSentences) -> None:
        self.pipeline, self.rows = pipeline, rows
        if not isinstance(pipeline.reader, EncoderTagger):
            raise UsageError("this tagger has no attention: it reads word by word, and there is no head to study")
        self.reader, self.model = pipeline.reader, pipeline.reader.model
        rows.tag_ids(pipeline.tags)

    @classmethod
    def read(cls, pipeline: TokenClassificationPipeline, files: Sequence[str], reading: ReadConfig) -> TagProbe:
        """Return the probe of a tagger on files of tagged sentences."""
        return cls(pipeline, read_tagged(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the sentences."""
        framing = self.reader.framing
        texts = [one.text for one in self.rows.select(numbers).sentences]
        yield from EncoderAttention(self.model, framing.tokenizer)(
            encode_texts(framing, texts, None, self.reader.max_length)
        )

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss of a word, F1 of entities or the share of right tags in percent."""
        chosen = self.rows.select(numbers)
        if metric != "loss":
            return ProbeScore(float(self.pipeline.scores(chosen, self.pipeline.tag_sentences(chosen))[metric]))
        spans = [word_spans(one.words) for one in chosen.sentences]
        told = self.reader.predict([one.text for one in chosen.sentences], spans).probabilities
        wanted = chosen.tag_ids(self.pipeline.tags)
        lost = [-logs[np.arange(len(tags)), tags].sum() for logs, tags in zip(told, wanted, strict=True)]
        return _added(lost, sum(map(len, wanted)))


class QuestionAnsweringProbe:
    """Questions about passages: F1 or exact match with people's answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"f1": True, "exact": True}

    def __init__(self, pipeline: QuestionAnsweringPipeline, rows: SquadExamples) -> None:
        self.pipeline, self.rows, self.model = pipeline, rows, pipeline.model

    @classmethod
    def read(
        cls, pipeline: QuestionAnsweringPipeline, files: Sequence[str], reading: ReadConfig
    ) -> QuestionAnsweringProbe:
        """Return the probe of what answers questions on files in the form of SQuAD."""
        return cls(pipeline, read_squad(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read questions and passages."""
        one = self.pipeline
        asked = question_passage_pairs([self.rows.examples[number] for number in numbers])
        yield from EncoderAttention(self.model, one.framing.tokenizer)(
            encode_questions(one.framing, asked, one.max_length, one.overlap)
        )

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return F1 or exact match in percent."""
        chosen = SquadExamples.of([self.rows.examples[number] for number in numbers])
        said = self.pipeline.answer(question_passage_pairs(chosen.examples))
        return ProbeScore(float(self.pipeline.scores(chosen, said)[metric]))


class EmbeddingProbe:
    """Texts alone: how much their vectors turn, 1 − cosine, from what they are with all heads."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {CHANGE: False}

    def __init__(self, pipeline: EmbeddingPipeline, documents: Documents) -> None:
        self.pipeline, self.documents, self.model = pipeline, documents, pipeline.model

    @classmethod
    def read(cls, pipeline: EmbeddingPipeline, files: Sequence[str], reading: ReadConfig) -> EmbeddingProbe:
        """Return the probe of an encoder on files of texts, one a line."""
        return cls(pipeline, read_documents(files, reading, "line"))

    def __len__(self) -> int:
        return len(self.documents)

    def _texts(self, numbers: Numbers) -> list[str]:
        return self.documents.select(numbers).texts

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the texts, cut where it cuts them."""
        tokens, _ = self.pipeline.framing.encode_batch(self._texts(numbers), max_length=self.pipeline.max_length)
        rows = EncodedTexts()
        for number, row in enumerate(tokens):
            rows.add(row, np.zeros(len(row), dtype=np.int32), number)
        yield from EncoderAttention(self.model, self.pipeline.framing.tokenizer)(rows)

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the mean of 1 − cosine between vectors as they come now and those with all heads."""
        turned = 1 - (self._vectors(numbers) * self._whole(tuple(numbers.tolist()))).sum(axis=1, dtype=np.float64)
        return _added(np.maximum(turned, 0), len(numbers))

    def _vectors(self, numbers: Numbers) -> NDArray[np.float32]:
        return normalize(self.pipeline.embed(self._texts(numbers)).vectors)

    def _whole(self, numbers: tuple[int, ...]) -> NDArray[np.float32]:
        if getattr(self, "_kept", ((), None))[0] != numbers:
            with disable_ablation():
                self._kept = numbers, self._vectors(np.asarray(numbers))
        return self._kept[1]


class MaskedProbe:
    """Running text: the loss of hidden tokens."""

    unit: ClassVar[str] = "documents"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, pipeline: FillMaskPipeline, documents: Documents) -> None:
        self.pipeline, self.documents, self.model = pipeline, documents, pipeline.model

    @classmethod
    def read(cls, pipeline: FillMaskPipeline, files: Sequence[str], reading: ReadConfig) -> MaskedProbe:
        """Return the probe of a masked-word model on files of running text."""
        return cls(pipeline, read_documents(files, reading))

    def __len__(self) -> int:
        return len(self.documents)

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the documents, nothing hidden."""
        framing, longest = self.pipeline.framing, self.pipeline.max_length
        read = encode_texts(framing, self.documents.select(numbers).texts, None, longest)
        yield from EncoderAttention(self.model, framing.tokenizer)(read)

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss of a hidden token."""
        return ProbeScore(float(self.pipeline.scores(self.documents.select(numbers))["loss"]))
