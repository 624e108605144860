"""`TaggingPipeline`: texts to words with tags, and to the entities that these mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.conll import TaggedSentences
from regard.models.bert import Bert
from regard.models.rnn_text import RnnTagger
from regard.pipeline.records.attention import decoding_steps
from regard.pipeline.records.encoder import EncoderRecorder, RnnTextRecorder, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.entities import entity_scores, tag_spans, tag_transitions, viterbi
from regard.tasks.rnn_text import RnnPreprocessor
from regard.tasks.tagging import RnnSentences, Spans, encode_words, split_words, tag_logprobs, word_spans
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import DecodingStep
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

TOGETHER = 512  # texts that are read together


@dataclass(frozen=True)
class TagPredictions:
    """What a model says of the words of texts, and how much of these it read."""

    probabilities: list[NDArray[np.float64]]  # of each text, logarithms [words, tags]
    windows: NDArray[np.int64]  # [texts], rows that each was read in
    account: TruncationReport


class TokenClassifier(Protocol):
    """A model that reads texts and tells the chances of tags."""

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Return the chances of all tags for the words at these spans."""
        ...

    def record(
        self, text: str, seeing: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Return where the model looked while it read one text."""
        ...


@dataclass(frozen=True)
class RecurrentTagger:
    """A tagger with words of its own."""

    model: RnnTagger
    perception: RnnPreprocessor

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Return the chances of all tags for the words at these spans; those beyond what is read are outside."""
        read = RnnSentences.read(self.perception, texts, spans)
        chances = tag_logprobs(
            read, read.iter_token_logits(self.model), [len(one) for one in spans], self.model.config.num_outputs
        )
        return TagPredictions(chances, np.ones(len(texts), dtype=np.int64), self.perception.account(read))

    def record(
        self, text: str, seeing: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Return how the model mixed what it read of one text."""
        looker = RnnTextRecorder(self.model, self.perception)
        return looker.record(text, seeing, task="tag", texts=texts, steps=tuple(steps))


@dataclass(frozen=True)
class EncoderTagger:
    """An encoder with a head for the tags of words."""

    model: Bert
    framing: SpecialTokens
    max_length: int

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Return the chances of all tags for the words at these spans; a long text is read in windows."""
        read = encode_words(self.framing, texts, spans, self.max_length)
        chances = tag_logprobs(
            read, read.iter_token_logits(self.model), [len(one) for one in spans], self.model.config.num_outputs
        )
        windows = np.bincount(np.asarray(read.text_indices, dtype=np.int64), minlength=len(texts))
        return TagPredictions(chances, windows, read.account)

    def record(
        self, text: str, seeing: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Return where the model looked while it read one text; of a long one, its first window."""
        row = encode_row(self.framing, text, max_length=self.max_length)
        looker = EncoderRecorder(self.model, self.framing)
        return looker.record(row, seeing, task="tag", more=lambda _: {"texts": texts, "steps": tuple(steps)})


@dataclass(frozen=True)
class Entity:
    """A span of a text that is of a kind."""

    text: str
    label: str
    start: int  # characters of the text
    end: int
    probability: float  # that of its least sure word

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "probability": round(self.probability, 6)}


@dataclass(frozen=True)
class TaggedText(PipelineResult):
    """A text with its words, their tags and what they mark."""

    text: str
    words: list[str]
    spans: list[tuple[int, int]]  # characters
    tags: list[str]
    probabilities: list[float]  # of each tag, alone
    windows: int

    @property
    def entities(self) -> list[Entity]:
        """The entities, exact spans of the text."""
        made = []
        for one in tag_spans(self.tags):
            start, stop = self.spans[one.start][0], self.spans[one.stop - 1][1]
            least = min(self.probabilities[one.start : one.stop])
            made.append(Entity(self.text[start:stop], one.label, start, stop, least))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        facts: dict[str, Any] = {"text": self.text, "words": self.words, "tags": self.tags, "windows": self.windows}
        return {**facts, "entities": [one.to_dict() for one in self.entities]}


class TokenClassificationPipeline:
    """Texts in, tagged words out; `account` says how texts so far were read."""

    def __init__(self, reader: TokenClassifier, tags: Sequence[str], task: dict[str, Any]) -> None:
        self.reader, self.tags, self.task = reader, list(tags), task
        self.allowed = tag_transitions(self.tags)
        self.account = TruncationReport()

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark entities, rather than each word for itself."""
        return any(name.startswith("B-") for name in self.tags)

    def stream(self, texts: Iterable[str], *, is_pretokenized: bool = False) -> Iterator[TaggedText]:
        """Yield each text tagged, in order; with `apart`, words are what white space parts."""
        waiting = iter(texts)
        while some := list(islice(waiting, TOGETHER)):
            spans = [_white(text) if is_pretokenized else split_words(text) for text in some]
            yield from self._tagged(some, spans)

    def _tagged(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[TaggedText]:
        told = self.reader.predict(texts, spans)
        self.account.add(told.account)
        for number, (text, where, scores) in enumerate(zip(texts, spans, told.probabilities, strict=True)):
            best = viterbi(scores, self.allowed) if len(scores) else np.zeros(0, dtype=np.int64)
            words = [text[start:stop] for start, stop in where]
            sure = np.exp(scores[np.arange(len(best)), best]).tolist()
            tags = [self.tags[one] for one in best]
            made = TaggedText(text, words, list(where), tags, sure, int(told.windows[number]))
            yield attach_recorder(made, partial(self._recorded, made, scores))

    def _recorded(self, tagged: TaggedText, scores: NDArray[np.float64], seeing: RecordConfig) -> Record:
        """Return the record of a tagged text: a step for each word, whose token is its tag."""
        texts = {"target": RecordText.from_labels(" ".join(tagged.tags), tagged.tags)}
        chosen = [self.tags.index(tag) for tag in tagged.tags]
        steps = decoding_steps(scores, chosen, lambda numbers: [self.tags[number] for number in numbers], seeing.top_k)
        return self.reader.record(tagged.text, seeing, texts, steps)

    def tag(self, texts: Sequence[str], *, apart: bool = False) -> list[TaggedText]:
        """Return each text tagged."""
        return list(self.stream(texts, is_pretokenized=apart))

    def __call__(self, text: str) -> TaggedText:
        """Return one text tagged."""
        return self.tag([text])[0]

    def tag_sentences(self, sentences: TaggedSentences) -> list[list[str]]:
        """Return the tags of sentences whose words are known."""
        made: list[list[str]] = []
        for first in range(0, len(sentences), TOGETHER):
            some = sentences.sentences[first : first + TOGETHER]
            spans = [word_spans(one.words) for one in some]
            made += [found.tags for found in self._tagged([one.text for one in some], spans)]
        return made

    def scores(self, rows: TaggedSentences, said: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Return strict entity F1, by kind too."""
        rows.tag_ids(self.tags)  # an unknown tag is refused
        wanted = [list(one.tags) for one in rows.sentences]
        kinds = sorted({tag[2:] for tag in self.tags if tag.startswith("B-")})
        each = {kind: entity_scores(*(_only(side, kind) for side in (said, wanted)))["f1"] for kind in kinds}
        return {"sentences": len(rows), **entity_scores(said, wanted), "f1_by_kind": each}


def _only(rows: Sequence[Sequence[str]], kind: str) -> list[list[str]]:
    return [[tag if tag[2:] == kind else "O" for tag in tags] for tags in rows]


def _white(text: str) -> list[tuple[int, int]]:
    made, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        made.append((start, at))
    return made
