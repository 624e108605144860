"""`TaggingPipeline`: texts to words with tags, and to the entities that these mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.config.seeing import SeeingConfig
from regard.data.tagged import Tagged
from regard.models.encoder import Encoder
from regard.models.tagger import Tagger
from regard.pipeline.encoder_seeing import EncoderLooker, read_row
from regard.pipeline.reader_seeing import ReaderLooker
from regard.pipeline.seeable import Seeable, seen_by
from regard.pipeline.steps import steps_of
from regard.tasks.encoding import Account
from regard.tasks.entities import best_tags, entities, entity_scores, followers
from regard.tasks.perception import Perception
from regard.tasks.reader_tagging import WordRows
from regard.tasks.tagging import Spans, read_words, split_words, word_chances, word_spans
from regard.text.framing import Framing
from regard.view.record import Record, Side, Step

TOGETHER = 512  # texts that are read together


@dataclass(frozen=True)
class Told:
    """What a model says of the words of texts, and how much of these it read."""

    chances: list[NDArray[np.float64]]  # of each text, logarithms [words, tags]
    windows: NDArray[np.int64]  # [texts], rows that each was read in
    account: Account


class TagReader(Protocol):
    """A model that reads texts and tells the chances of tags."""

    def told(self, texts: Sequence[str], spans: Sequence[Spans]) -> Told:
        """Return the chances of all tags for the words at these spans."""
        ...

    def record(self, text: str, seeing: SeeingConfig, texts: Mapping[str, Side], steps: Sequence[Step]) -> Record:
        """Return where the model looked while it read one text."""
        ...


@dataclass(frozen=True)
class OwnTagReader:
    """A tagger with words of its own."""

    model: Tagger
    perception: Perception

    def told(self, texts: Sequence[str], spans: Sequence[Spans]) -> Told:
        """Return the chances of all tags for the words at these spans; those beyond what is read are outside."""
        read = WordRows.read(self.perception, texts, spans)
        chances = word_chances(read, read.told(self.model), [len(one) for one in spans], self.model.config.outputs)
        return Told(chances, np.ones(len(texts), dtype=np.int64), self.perception.account(read))

    def record(self, text: str, seeing: SeeingConfig, texts: Mapping[str, Side], steps: Sequence[Step]) -> Record:
        """Return how the model mixed what it read of one text."""
        looker = ReaderLooker(self.model, self.perception)
        return looker.record(text, seeing, task="tag", texts=texts, steps=tuple(steps))


@dataclass(frozen=True)
class EncoderTagReader:
    """An encoder with a head for the tags of words."""

    model: Encoder
    framing: Framing
    longest: int

    def told(self, texts: Sequence[str], spans: Sequence[Spans]) -> Told:
        """Return the chances of all tags for the words at these spans; a long text is read in windows."""
        read = read_words(self.framing, texts, spans, self.longest)
        chances = word_chances(read, read.told(self.model), [len(one) for one in spans], self.model.config.outputs)
        windows = np.bincount(np.asarray(read.owners, dtype=np.int64), minlength=len(texts))
        return Told(chances, windows, read.account)

    def record(self, text: str, seeing: SeeingConfig, texts: Mapping[str, Side], steps: Sequence[Step]) -> Record:
        """Return where the model looked while it read one text; of a long one, its first window."""
        row = read_row(self.framing, text, longest=self.longest)
        looker = EncoderLooker(self.model, self.framing)
        return looker.record(row, seeing, task="tag", more=lambda _: {"texts": texts, "steps": tuple(steps)})


@dataclass(frozen=True)
class Found:
    """A span of a text that is of a kind."""

    text: str
    kind: str
    start: int  # characters of the text
    stop: int
    probability: float  # that of its least sure word

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "probability": round(self.probability, 6)}


@dataclass(frozen=True)
class TaggedText(Seeable):
    """A text with its words, their tags and what they mark."""

    text: str
    words: list[str]
    spans: list[tuple[int, int]]  # characters
    tags: list[str]
    probabilities: list[float]  # of each tag, alone
    windows: int

    @property
    def found(self) -> list[Found]:
        """The entities, exact spans of the text."""
        made = []
        for one in entities(self.tags):
            start, stop = self.spans[one.start][0], self.spans[one.stop - 1][1]
            least = min(self.probabilities[one.start : one.stop])
            made.append(Found(self.text[start:stop], one.kind, start, stop, least))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        facts: dict[str, Any] = {"text": self.text, "words": self.words, "tags": self.tags, "windows": self.windows}
        return {**facts, "entities": [one.to_dict() for one in self.found]}


class TaggingPipeline:
    """Texts in, tagged words out; `account` says how texts so far were read."""

    def __init__(self, reader: TagReader, tags: Sequence[str], task: dict[str, Any]) -> None:
        self.reader, self.tags, self.task = reader, list(tags), task
        self.allowed = followers(self.tags)
        self.account = Account()

    @property
    def entities(self) -> bool:
        """Whether the tags mark entities, rather than each word for itself."""
        return any(name.startswith("B-") for name in self.tags)

    def stream(self, texts: Iterable[str], *, apart: bool = False) -> Iterator[TaggedText]:
        """Yield each text tagged, in order; with `apart`, words are what white space parts."""
        waiting = iter(texts)
        while some := list(islice(waiting, TOGETHER)):
            spans = [_white(text) if apart else split_words(text) for text in some]
            yield from self._tagged(some, spans)

    def _tagged(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[TaggedText]:
        told = self.reader.told(texts, spans)
        self.account.add(told.account)
        for number, (text, where, scores) in enumerate(zip(texts, spans, told.chances, strict=True)):
            best = best_tags(scores, self.allowed) if len(scores) else np.zeros(0, dtype=np.int64)
            words = [text[start:stop] for start, stop in where]
            sure = np.exp(scores[np.arange(len(best)), best]).tolist()
            tags = [self.tags[one] for one in best]
            made = TaggedText(text, words, list(where), tags, sure, int(told.windows[number]))
            yield seen_by(made, partial(self._recorded, made, scores))

    def _recorded(self, tagged: TaggedText, scores: NDArray[np.float64], seeing: SeeingConfig) -> Record:
        """Return the record of a tagged text: a step for each word, whose token is its tag."""
        texts = {"target": Side.of_labels(" ".join(tagged.tags), tagged.tags)}
        chosen = [self.tags.index(tag) for tag in tagged.tags]
        steps = steps_of(scores, chosen, lambda numbers: [self.tags[number] for number in numbers], seeing.top)
        return self.reader.record(tagged.text, seeing, texts, steps)

    def tag(self, texts: Sequence[str], *, apart: bool = False) -> list[TaggedText]:
        """Return each text tagged."""
        return list(self.stream(texts, apart=apart))

    def __call__(self, text: str) -> TaggedText:
        """Return one text tagged."""
        return self.tag([text])[0]

    def sentences(self, rows: Tagged) -> list[list[str]]:
        """Return the tags of sentences whose words are known."""
        made: list[list[str]] = []
        for first in range(0, len(rows), TOGETHER):
            some = rows.sentences[first : first + TOGETHER]
            spans = [word_spans(one.words) for one in some]
            made += [found.tags for found in self._tagged([one.text for one in some], spans)]
        return made

    def scores(self, rows: Tagged, said: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Return strict entity F1, by kind too."""
        rows.numbers(self.tags)  # an unknown tag is refused
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
