"""Pipelines as those see them who study their heads: where they look on data, and how well they do on some of it.

One probe for each task. A probe does not know that heads are switched off: whoever asks does that around the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.data import ReadConfig
from regard.data.babi import StoryQuestions, read_stories
from regard.data.batching import length_sorted_batches
from regard.data.documents import Documents, read_documents
from regard.data.pairs import ParallelTexts, read_pairs
from regard.errors import UsageError
from regard.interpret.head_statistics import AttentionBatch, pad_ids
from regard.models.base import Model
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks import story_qa as story_task
from regard.tasks.metrics import bleu
from regard.tasks.translation import TokenizedPairs, TokenizerPair
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
ATTENTION_BATCH_TOKENS = 1024  # tokens whose weights exist at a time, padding counted
SCORE_BATCH_TOKENS = 4096
MIN_PROBABILITY = 1e-12
NO_MATCH_OFFSET = 10**9  # what is added to token numbers of another vocabulary: none of them is the same
Seen = list[
    tuple[str, NDArray[np.float32], AttentionBatch]
]  # sites, their weights [B, H, Q, K], and who looked at what


@dataclass(frozen=True)
class ProbeScore:
    """How well a model does, and what each example adds to that where examples can be told apart."""

    value: float
    per_example: Floats | None = None


class Probe(Protocol):
    """A model and data that it can be measured on."""

    unit: ClassVar[str]  # what examples are called
    metrics: ClassVar[Mapping[str, bool]]  # name → whether more is better; the first is the usual one

    @property
    def model(self) -> Model:
        """The model whose heads are studied."""
        ...

    def __len__(self) -> int: ...

    def attention(self, indices: Numbers) -> Iterator[Seen]:
        """Yield where the model looked on these examples, batch by batch."""
        ...

    def score(self, metric: str, indices: Numbers) -> ProbeScore:
        """Return how well the model does on these examples."""
        ...


def _added(values: Sequence[float] | NDArray[np.floating], count: float) -> ProbeScore:
    each = np.asarray(values, dtype=np.float64) / max(count, 1)
    return ProbeScore(float(each.sum()), each)


def _special(ids: Numbers, specials: Collection[int]) -> NDArray[np.bool_]:
    return np.isin(ids, sorted(specials)) & (ids >= 0)


class TranslationProbe:
    """Pairs of texts: the loss of the given translations, or BLEU of greedy ones."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "bleu": True}

    def __init__(self, pipeline: TranslationPipeline, pairs: ParallelTexts) -> None:
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
            if read <= pipeline.max_source_length and written <= pipeline.max_target_length
        ]
        if not fits:
            raise UsageError(f"{files[0]}: all pairs are longer than the model takes")
        return cls(pipeline, made.pairs.select(fits)) if len(fits) < len(made) else made

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def examples(self) -> TokenizedPairs:
        return TokenizerPair(self.pipeline.source, self.pipeline.target).examples(self.pairs)

    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it was made to write the given translations."""
        shared = 0 if self.pipeline.source.digest == self.pipeline.target.digest else NO_MATCH_OFFSET
        specials = self.pipeline.source.special_ids, self.pipeline.target.special_ids
        for some in length_sorted_batches(self.examples.lengths[numbers], max_tokens=ATTENTION_BATCH_TOKENS):
            batch = self.examples.batch(numbers[some])
            with trace() as seen:
                self.model.target_logprobs(batch.source, batch.target)
            given, wanted = self.model.shift_targets(batch.target)
            read, put, made = (pad_ids([*tokens]) for tokens in (batch.source, given, wanted))
            own = AttentionBatch(read, read, _special(read, specials[0]), is_self=True)
            causal = AttentionBatch(put, put, _special(put, specials[1]), is_self=True)
            cross = AttentionBatch(np.where(made < 0, made, made + shared), read, own.special, is_self=False)
            kinds = {"encoder": own, "self": causal}
            yield [
                (site, seen[site].weights, kinds.get(site.split(".")[0], kinds.get(site.split(".")[-1], cross)))
                for site in seen
            ]

    def cross_weights(self, numbers: Numbers) -> dict[str, NDArray[np.float32]]:
        """Return where the heads that look at the source looked, each site's [B, H, Q, K]."""
        batch = self.examples.batch(numbers)
        with trace(",".join(self.model.cross_attention_sites()), full_precision=True) as seen:
            self.model.target_logprobs(batch.source, batch.target)
        return {site: seen[site].weights for site in seen}

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss a target token, or BLEU of greedy translations."""
        if metric == "bleu":
            chosen = self.pairs.select(numbers)
            said = self.pipeline.translate(chosen.source, split=False, beam=1, nbest=1, batch_size=128)
            return ProbeScore(bleu(said, chosen.target))
        lost, count = np.zeros(len(numbers)), 0
        for some in length_sorted_batches(self.examples.lengths[numbers], max_tokens=SCORE_BATCH_TOKENS):
            batch = self.examples.batch(numbers[some])
            lost[some] = [-row.sum(dtype=np.float64) for row in self.model.target_logprobs(batch.source, batch.target)]
            count += batch.num_predictions
        return _added(lost, count)


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
    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the model looked while it read the documents, in rows as long as it takes."""
        places, tokenizer = self.model.config.max_positions, self.pipeline.tokenizer
        rows: list[Ids] = []
        for ids in tokenizer.encode_batch(self.documents.select(numbers).texts):
            read = np.asarray(ids, dtype=np.int32)
            rows += [read[first : first + places] for first in range(0, len(read), places)]
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for some in length_sorted_batches(lengths, max_tokens=ATTENTION_BATCH_TOKENS):
            tokens = Tokens.from_rows([rows[number] for number in some])
            with trace() as seen:
                self.model(tokens)
            read_now = pad_ids([*tokens])
            looking = AttentionBatch(read_now, read_now, _special(read_now, tokenizer.special_ids), is_self=True)
            yield [(site, seen[site].weights, looking) for site in seen]

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss of a token."""
        return ProbeScore(float(self.pipeline.scores(self.documents.select(numbers))["loss"]))


class MemoryNetworkProbe:
    """Questions about stories: loss, or the share of right answers."""

    unit: ClassVar[str] = "questions"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}

    def __init__(self, pipeline: StoryQAPipeline, stories: StoryQuestions) -> None:
        self.pipeline, self.stories, self.model = pipeline, stories, pipeline.model
        self.data = story_task.encode_stories(stories, pipeline.vocabulary, self.model.config, strict=False)

    @classmethod
    def read(cls, pipeline: StoryQAPipeline, files: Sequence[str], reading: ReadConfig) -> MemoryNetworkProbe:
        """Return the probe of a memory network on files of stories."""
        return cls(pipeline, read_stories(files, reading))

    def __len__(self) -> int:
        return len(self.data)

    @torch.no_grad()
    def attention(self, numbers: Numbers) -> Iterator[Seen]:
        """Yield where the hops looked, question by question; columns are sentences, the last one told the nearest."""
        for number in numbers:
            told = self.data.batch(np.array([number]))
            with trace() as seen:
                self.model(told)
            columns = np.arange(int(told.counts[0]))[None]
            looking = AttentionBatch(
                np.full((1, 1), NO_MATCH_OFFSET), columns, np.zeros(columns.shape, dtype=bool), is_self=False
            )
            latest = slice(columns.shape[1] - 1, None, -1) if columns.size else slice(0)
            yield [(site, seen[site].weights[..., latest], looking) for site in seen]

    def score(self, metric: str, numbers: Numbers) -> ProbeScore:
        """Return the loss of a question, or the share of right answers in percent."""
        found = story_task.evaluate_restarts(self.model, self.data, numbers)
        return ProbeScore(float(found.loss[0]) if metric == "loss" else 100 - float(found.error[0]))
