"""Pipelines as those see them who study their heads: where they look on data, and how well they do on some of it.

One probe for each task. A probe does not know that heads are switched off: whoever asks does that around the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.intervention import on
from regard.attention.trace import trace
from regard.config.data import ReadConfig
from regard.data.batching import sorted_batches
from regard.data.documents import Documents, read_documents
from regard.data.labelled import Labelled, read_labelled
from regard.data.passages import Questions, read_questions
from regard.data.sources import Pairs, read_pairs
from regard.data.stories import Stories, read_stories
from regard.data.tagged import Tagged, read_tagged
from regard.errors import UsageError
from regard.models.base import Model
from regard.models.encoder import Encoder
from regard.pipeline.answering import AnsweringPipeline, pairs_of
from regard.pipeline.classification import ClassificationPipeline, EncoderReader, OwnReader
from regard.pipeline.embedding import EmbeddingPipeline, normalized
from regard.pipeline.filling import FillingPipeline
from regard.pipeline.folders import Pipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.stories import StoryPipeline
from regard.pipeline.tagging import EncoderTagReader, TaggingPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks import stories as story_task
from regard.tasks.encoding import Encoded, read_texts
from regard.tasks.head_statistics import Looking, padded
from regard.tasks.metrics import bleu
from regard.tasks.spans import read_asked
from regard.tasks.tagging import word_spans
from regard.tasks.translation import Examples, Languages
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens
from regard.view.head_table import CHANGE

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
LOOKED = 1024  # tokens whose weights exist at a time, padding counted
MEASURED = 4096
SURE = 1e-12
FOREIGN = 10**9  # what is added to token numbers of another vocabulary: none of them is the same
Seen = list[tuple[str, NDArray[np.float32], Looking]]  # sites, their weights [B, H, Q, K], and who looked at what


@dataclass(frozen=True)
class Measure:
    """How well a model does, and what each example adds to that where examples can be told apart."""

    value: float
    each: Floats | None = None


class Probe(Protocol):
    """A model and data that it can be measured on."""

    unit: ClassVar[str]  # what examples are called
    metrics: ClassVar[Mapping[str, bool]]  # name → whether more is better; the first is the usual one

    @property
    def model(self) -> Model:
        """The model whose heads are studied."""
        ...

    def __len__(self) -> int: ...

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked on these examples, batch by batch."""
        ...

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return how well the model does on these examples."""
        ...


def _added(values: Sequence[float] | NDArray[np.floating], count: float) -> Measure:
    each = np.asarray(values, dtype=np.float64) / max(count, 1)
    return Measure(float(each.sum()), each)


class TranslationProbe:
    """Pairs of texts: the loss of the given translations, or BLEU of greedy ones."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "bleu": True}

    def __init__(self, pipeline: TranslationPipeline, pairs: Pairs) -> None:
        self.pipeline, self.pairs = pipeline, pairs
        self.model = pipeline.models[0]
        if len(pipeline.models) > 1:
            raise UsageError("heads are studied in one model at a time: give one folder")

    @classmethod
    def read(cls, pipeline: TranslationPipeline, files: Sequence[str], reading: ReadConfig) -> TranslationProbe:
        """Return the probe of a translator on files of pairs; pairs that are too long for it are left out."""
        made = cls(pipeline, read_pairs(files, reading))
        fits = [
            number
            for number, (read, written) in enumerate(made.examples.lengths)
            if read <= pipeline.longest and written <= pipeline.room
        ]
        if not fits:
            raise UsageError(f"{files[0]}: all pairs are longer than the model takes")
        return cls(pipeline, made.pairs.chosen(fits)) if len(fits) < len(made) else made

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def examples(self) -> Examples:
        return Languages(self.pipeline.source, self.pipeline.target).examples(self.pairs)

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it was made to write the given translations."""
        shared = 0 if self.pipeline.source.digest == self.pipeline.target.digest else FOREIGN
        specials = self.pipeline.source.specials, self.pipeline.target.specials
        for some in sorted_batches(self.examples.lengths[numbers], budget=LOOKED):
            batch = self.examples.batch(numbers[some])
            with trace() as seen:
                self.model.score_tokens(batch.source, batch.target)
            given, wanted = self.model.shifted(batch.target)
            read, put, made = (padded([*tokens]) for tokens in (batch.source, given, wanted))
            own = Looking(read, read, _special(read, specials[0]), own=True)
            causal = Looking(put, put, _special(put, specials[1]), own=True)
            cross = Looking(np.where(made < 0, made, made + shared), read, own.special, own=False)
            kinds = {"encoder": own, "self": causal}
            yield [
                (site, seen[site].weights, kinds.get(site.split(".")[0], kinds.get(site.split(".")[-1], cross)))
                for site in seen
            ]

    def cross_weights(self, numbers: Numbers) -> dict[str, NDArray[np.float32]]:
        """Return where the heads that look at the source looked, each site's [B, H, Q, K]."""
        batch = self.examples.batch(numbers)
        with trace(",".join(self.model.looks()), exact=True) as seen:
            self.model.score_tokens(batch.source, batch.target)
        return {site: seen[site].weights for site in seen}

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss a target token, or BLEU of greedy translations."""
        if metric == "bleu":
            chosen = self.pairs.chosen(numbers)
            said = self.pipeline.translate(chosen.source, split=False, beam=1, nbest=1, batch_size=128)
            return Measure(bleu(said, chosen.target))
        lost, count = np.zeros(len(numbers)), 0
        for some in sorted_batches(self.examples.lengths[numbers], budget=MEASURED):
            batch = self.examples.batch(numbers[some])
            lost[some] = [-row.sum(dtype=np.float64) for row in self.model.score_tokens(batch.source, batch.target)]
            count += batch.count
        return _added(lost, count)


class EncoderLook:
    """Where an encoder looks while it reads rows."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer) -> None:
        self.model, self.specials = model, tokenizer.specials

    def __call__(self, rows: Encoded) -> Iterator[Seen]:
        """Yield where all heads looked, batch by batch."""
        for some in sorted_batches(rows.lengths, budget=LOOKED):
            tokens = rows.batch(some)
            with trace() as seen:
                self.model.encode(tokens)
            read = padded([*tokens])
            looking = Looking(read, read, _special(read, self.specials), own=True)
            yield [(site, seen[site].weights, looking) for site in seen]


def _special(ids: Numbers, specials: Collection[int]) -> NDArray[np.bool_]:
    return np.isin(ids, sorted(specials)) & (ids >= 0)


class LabelProbe:
    """Texts with labels: loss, accuracy or macro-F1."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True, "f1": True}

    def __init__(self, pipeline: ClassificationPipeline, rows: Labelled) -> None:
        self.pipeline, self.rows = pipeline, rows
        assert isinstance(pipeline.reader, OwnReader | EncoderReader)
        self.reader, self.model = pipeline.reader, pipeline.reader.model
        rows.marks(pipeline.labels)  # an unknown label is refused before anything is computed

    @classmethod
    def read(cls, pipeline: ClassificationPipeline, files: Sequence[str], reading: ReadConfig) -> LabelProbe:
        """Return the probe of a classifier on files of labelled texts."""
        separator = pipeline.task.get("separator")
        if pipeline.thresholds is not None and separator and not reading.separator:
            reading = reading.override({"separator": separator})
        return cls(pipeline, read_labelled(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the texts."""
        chosen = self.rows.chosen(numbers)
        if isinstance(self.reader, EncoderReader):
            framing = self.reader.framing
            read = read_texts(framing, chosen.texts, chosen.pairs, self.reader.longest)
            yield from EncoderLook(self.reader.model, framing.tokenizer)(read)
            return
        for _, texts in self.reader.perception.read(chosen.texts).batches():
            with trace() as seen:
                self.reader.model.chances(texts)
            columns = padded([*texts.tokens])
            special = _special(columns, self.reader.perception.tokenizer.specials)
            looking = Looking(np.full((len(columns), 1), FOREIGN), columns, special, own=False)
            yield [(site, seen[site].weights, looking) for site in seen]

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss of a text, accuracy or macro-F1 in percent."""
        chosen, labels = self.rows.chosen(numbers), self.pipeline.labels
        if metric == "loss":
            chances = self.reader.told(chosen.texts, chosen.pairs).chances
            marks = chosen.marks(labels)
            if self.pipeline.thresholds is None:
                return _added(-np.log(np.maximum((chances * marks).sum(axis=1), SURE)), len(chosen))
            right = np.where(marks > 0, chances, 1 - chances)
            return _added(-np.log(np.maximum(right, SURE)).mean(axis=1), len(chosen))
        scores = self.pipeline.scores(chosen, list(self.pipeline.stream(chosen.texts, chosen.pairs)))
        names = {"f1": ("macro_f1",), "accuracy": ("accuracy", "exact")}[metric]
        return Measure(float(next(scores[name] for name in names if name in scores)))


class TagProbe:
    """Sentences with tagged words: loss of the right tags, strict F1, or the share of words with the right tag."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "f1": True, "accuracy": True}

    def __init__(self, pipeline: TaggingPipeline, rows: Tagged) -> None:
        self.pipeline, self.rows = pipeline, rows
        if not isinstance(pipeline.reader, EncoderTagReader):
            raise UsageError("this tagger has no attention: it reads word by word, and there is no head to study")
        self.reader, self.model = pipeline.reader, pipeline.reader.model
        rows.numbers(pipeline.tags)

    @classmethod
    def read(cls, pipeline: TaggingPipeline, files: Sequence[str], reading: ReadConfig) -> TagProbe:
        """Return the probe of a tagger on files of tagged sentences."""
        return cls(pipeline, read_tagged(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the sentences."""
        framing = self.reader.framing
        texts = [one.text for one in self.rows.chosen(numbers).sentences]
        yield from EncoderLook(self.model, framing.tokenizer)(read_texts(framing, texts, None, self.reader.longest))

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss of a word, F1 of entities or the share of right tags in percent."""
        chosen = self.rows.chosen(numbers)
        if metric != "loss":
            return Measure(float(self.pipeline.scores(chosen, self.pipeline.sentences(chosen))[metric]))
        spans = [word_spans(one.words) for one in chosen.sentences]
        told = self.reader.told([one.text for one in chosen.sentences], spans).chances
        wanted = chosen.numbers(self.pipeline.tags)
        lost = [-logs[np.arange(len(tags)), tags].sum() for logs, tags in zip(told, wanted, strict=True)]
        return _added(lost, sum(map(len, wanted)))


class AnswerProbe:
    """Questions about passages: F1 or exact match with people's answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"f1": True, "exact": True}

    def __init__(self, pipeline: AnsweringPipeline, rows: Questions) -> None:
        self.pipeline, self.rows, self.model = pipeline, rows, pipeline.model

    @classmethod
    def read(cls, pipeline: AnsweringPipeline, files: Sequence[str], reading: ReadConfig) -> AnswerProbe:
        """Return the probe of what answers questions on files in the form of SQuAD."""
        return cls(pipeline, read_questions(files, reading))

    def __len__(self) -> int:
        return len(self.rows)

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read questions and passages."""
        one = self.pipeline
        asked = pairs_of([self.rows.asked[number] for number in numbers])
        yield from EncoderLook(self.model, one.framing.tokenizer)(
            read_asked(one.framing, asked, one.longest, one.overlap)
        )

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return F1 or exact match in percent."""
        chosen = Questions.of([self.rows.asked[number] for number in numbers])
        said = self.pipeline.answers(pairs_of(chosen.asked))
        return Measure(float(self.pipeline.scores(chosen, said)[metric]))


class VectorProbe:
    """Texts alone: how much their vectors turn, 1 − cosine, from what they are with all heads."""

    unit: ClassVar[str] = "texts"
    metrics: ClassVar[Mapping[str, bool]] = {CHANGE: False}

    def __init__(self, pipeline: EmbeddingPipeline, documents: Documents) -> None:
        self.pipeline, self.documents, self.model = pipeline, documents, pipeline.model

    @classmethod
    def read(cls, pipeline: EmbeddingPipeline, files: Sequence[str], reading: ReadConfig) -> VectorProbe:
        """Return the probe of an encoder on files of texts, one a line."""
        return cls(pipeline, read_documents(files, reading, "line"))

    def __len__(self) -> int:
        return len(self.documents)

    def _texts(self, numbers: Numbers) -> list[str]:
        return self.documents.chosen(numbers).texts

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the texts, cut where it cuts them."""
        tokens, _ = self.pipeline.framing.rows(self._texts(numbers), longest=self.pipeline.longest)
        rows = Encoded()
        for number, row in enumerate(tokens):
            rows.add(row, np.zeros(len(row), dtype=np.int32), number)
        yield from EncoderLook(self.model, self.pipeline.framing.tokenizer)(rows)

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the mean of 1 − cosine between vectors as they come now and those with all heads."""
        turned = 1 - (self._vectors(numbers) * self._whole(tuple(numbers.tolist()))).sum(axis=1, dtype=np.float64)
        return _added(np.maximum(turned, 0), len(numbers))

    def _vectors(self, numbers: Numbers) -> NDArray[np.float32]:
        return normalized(self.pipeline.embed(self._texts(numbers)).vectors)

    def _whole(self, numbers: tuple[int, ...]) -> NDArray[np.float32]:
        if getattr(self, "_kept", ((), None))[0] != numbers:
            with on():
                self._kept = numbers, self._vectors(np.asarray(numbers))
        return self._kept[1]


class MaskedProbe:
    """Running text: the loss of hidden tokens."""

    unit: ClassVar[str] = "documents"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, pipeline: FillingPipeline, documents: Documents) -> None:
        self.pipeline, self.documents, self.model = pipeline, documents, pipeline.model

    @classmethod
    def read(cls, pipeline: FillingPipeline, files: Sequence[str], reading: ReadConfig) -> MaskedProbe:
        """Return the probe of a masked-word model on files of running text."""
        return cls(pipeline, read_documents(files, reading))

    def __len__(self) -> int:
        return len(self.documents)

    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the documents, nothing hidden."""
        framing, longest = self.pipeline.framing, self.pipeline.longest
        read = read_texts(framing, self.documents.chosen(numbers).texts, None, longest)
        yield from EncoderLook(self.model, framing.tokenizer)(read)

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss of a hidden token."""
        return Measure(float(self.pipeline.scores(self.documents.chosen(numbers))["loss"]))


class CausalProbe:
    """Running text: the loss of each token from those before it."""

    unit: ClassVar[str] = "documents"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, pipeline: GenerationPipeline, documents: Documents) -> None:
        self.pipeline, self.documents, self.model = pipeline, documents, pipeline.model

    @classmethod
    def read(cls, pipeline: GenerationPipeline, files: Sequence[str], reading: ReadConfig) -> CausalProbe:
        """Return the probe of a causal model on files of running text."""
        document = pipeline.task.get("document", "file")
        return cls(pipeline, read_documents(files, reading, "auto" if document == "file" else document))

    def __len__(self) -> int:
        return len(self.documents)

    @torch.no_grad()
    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the documents, in rows as long as it takes."""
        places, tokenizer = self.model.config.places, self.pipeline.tokenizer
        rows: list[Ids] = []
        for ids in tokenizer.encode_all(self.documents.chosen(numbers).texts):
            read = np.asarray(ids, dtype=np.int32)
            rows += [read[first : first + places] for first in range(0, len(read), places)]
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for some in sorted_batches(lengths, budget=LOOKED):
            tokens = Tokens.from_rows([rows[number] for number in some])
            with trace() as seen:
                self.model(tokens)
            read_now = padded([*tokens])
            looking = Looking(read_now, read_now, _special(read_now, tokenizer.specials), own=True)
            yield [(site, seen[site].weights, looking) for site in seen]

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss of a token."""
        return Measure(float(self.pipeline.scores(self.documents.chosen(numbers))["loss"]))


class StoryProbe:
    """Questions about stories: loss, or the share of right answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}

    def __init__(self, pipeline: StoryPipeline, stories: Stories) -> None:
        self.pipeline, self.stories, self.model = pipeline, stories, pipeline.model
        self.data = story_task.examples(stories, pipeline.vocabulary, self.model.config, refuse=False)

    @classmethod
    def read(cls, pipeline: StoryPipeline, files: Sequence[str], reading: ReadConfig) -> StoryProbe:
        """Return the probe of a memory network on files of stories."""
        return cls(pipeline, read_stories(files, reading))

    def __len__(self) -> int:
        return len(self.data)

    @torch.no_grad()
    def look(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the hops looked, question by question; columns are sentences, the last one told the nearest."""
        for number in numbers:
            told = self.data.batch(np.array([number]))
            with trace() as seen:
                self.model(told)
            columns = np.arange(int(told.counts[0]))[None]
            looking = Looking(np.full((1, 1), FOREIGN), columns, np.zeros(columns.shape, dtype=bool), own=False)
            latest = slice(columns.shape[1] - 1, None, -1) if columns.size else slice(0)
            yield [(site, seen[site].weights[..., latest], looking) for site in seen]

    def measure(self, metric: str, numbers: Numbers) -> Measure:
        """Return the loss of a question, or the share of right answers in percent."""
        found = story_task.score(self.model, self.data, numbers)
        return Measure(float(found.loss[0]) if metric == "loss" else 100 - float(found.error[0]))


PROBES: dict[type[Any], Callable[[Any, Sequence[str], ReadConfig], Probe]] = {
    TranslationPipeline: TranslationProbe.read,
    ClassificationPipeline: LabelProbe.read,
    TaggingPipeline: TagProbe.read,
    AnsweringPipeline: AnswerProbe.read,
    EmbeddingPipeline: VectorProbe.read,
    FillingPipeline: MaskedProbe.read,
    GenerationPipeline: CausalProbe.read,
    StoryPipeline: StoryProbe.read,
}


def probe(pipeline: Pipeline, files: Sequence[str], reading: ReadConfig | None = None) -> Probe:
    """Return the probe of a pipeline on files of its task; a model without attention is refused."""
    make = PROBES.get(type(pipeline))
    if make is None:
        raise UsageError("this model has no attention: there is no head to study")
    made = make(pipeline, files, reading or ReadConfig())
    if not made.model.sites():
        raise UsageError("this model has no attention: there is no head to study")
    return made
