"""`FillingPipeline`: texts with gaps in, the likeliest words for each gap out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.seeing import SeeingConfig
from regard.data.batching import sorted_batches
from regard.data.documents import Documents
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.pipeline.encoder_seeing import EncoderLooker, Window, read_row
from regard.pipeline.seeable import Seeable, seen_by
from regard.pipeline.steps import steps_of
from regard.tasks.filling import Word, best_words
from regard.tasks.language import Stream
from regard.tasks.masking import Layout, masked_scores, unigram_loss
from regard.tasks.metrics import perplexity
from regard.text.framing import Framing
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record import Record, Side

TOGETHER = 256  # texts that are read together
BUDGET = 4096  # tokens that are computed together


@dataclass(frozen=True)
class Fill:
    """A word for a gap."""

    word: str
    probability: float
    text: str  # with the word in this gap; others stay as they are
    token: int


@dataclass(frozen=True)
class Filled(Seeable):
    """A text and what goes into its gaps."""

    text: str
    gaps: list[list[Fill]]  # in the text's order, each with the likeliest first
    best: str  # the text with the likeliest word in every gap
    cut: int  # tokens far from the gaps that were not read

    def __str__(self) -> str:
        return self.best


@dataclass(frozen=True)
class _Row:
    ids: list[int]
    types: list[int]
    places: list[int]
    cut: int
    first: int = 0  # which token of the text is the first that is read


class FillingPipeline:
    """Texts with gaps in, words out."""

    def __init__(
        self,
        model: Encoder,
        tokenizer: Tokenizer,
        task: dict[str, Any],
        longest: int,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.task, self.longest, self.counts = model, tokenizer, task, longest, counts
        self.framing = Framing(tokenizer)
        self.mask = str(tokenizer.backend.id_to_token(self.framing.mask))

    def stream(self, texts: Iterable[str], *, k: int = 5) -> Iterator[Filled]:
        """Yield what goes into the gaps of each text, in order."""
        if k < 1:
            raise UsageError(f"k ({k}) words for a gap: at least 1 is needed")
        waiting = iter(texts)
        before = 0
        while some := list(islice(waiting, TOGETHER)):
            yield from self._some(some, k, before)
            before += len(some)

    def fill(self, texts: Sequence[str], *, k: int = 5) -> list[Filled]:
        """Return what goes into the gaps of each text."""
        if isinstance(texts, str):
            raise UsageError("fill takes a list of texts: call the pipeline itself with one")
        return list(self.stream(texts, k=k))

    def __call__(self, text: str, *, k: int = 5) -> Filled:
        """Return what goes into the gaps of one text."""
        return self.fill([text], k=k)[0]

    def _some(self, texts: Sequence[str], k: int, before: int) -> list[Filled]:
        rows = [self._row(text, before + number + 1) for number, text in enumerate(texts)]
        made: dict[int, Filled] = {}
        lengths = np.array([[len(row.ids)] for row in rows], dtype=np.int64)
        for numbers in sorted_batches(lengths, budget=BUDGET):
            chosen = [rows[number] for number in numbers]
            packed = Tokens.from_rows([row.ids for row in chosen])
            types = np.array([kind for row in chosen for kind in row.types], dtype=np.int32)
            places = [
                int(first) + place for first, row in zip(packed.offsets, chosen, strict=False) for place in row.places
            ]
            tokens = Tokens(packed.ids, packed.offsets, types)
            found = iter(zip(*best_words(self.model, tokens, np.array(places), k), strict=True))
            for number, row in zip(numbers, chosen, strict=True):
                filled = self._filled(texts[number], list(islice(found, len(row.places))), row.cut)
                made[int(number)] = seen_by(filled, partial(self._recorded, filled, row))
        return [made[number] for number in range(len(texts))]

    def _row(self, text: str, number: int) -> _Row:
        """Return what the model reads of a text: all of it, or what is around its gaps."""
        reading = self.framing.read(text, marks=True)
        content = [one for one, side in zip(reading.ids, reading.sides, strict=True) if side >= 0]
        places = [place for place, one in enumerate(content) if one == self.framing.mask]
        if not places or len(places) != text.count(self.mask):
            shown = text if len(text) <= 60 else f"{text[:57]}…"
            raise UsageError(f"text {number} has no gap ({shown!r}): write {self.mask} where a word is to be found")
        room = self.longest - self.framing.room()
        first = 0
        if len(content) > room:
            if places[-1] - places[0] >= room:
                apart = places[-1] - places[0] + 1
                raise UsageError(f"text {number}: its gaps span {apart:,} tokens, the model reads {room:,}: split it")
            first = min(max(0, (places[0] + places[-1] + 1 - room) // 2), len(content) - room)
        ids, types = self.framing.frame(content[first : first + room])
        opening = len(self.framing.alone.before)
        return _Row(ids, types, [opening + place - first for place in places], max(0, len(content) - room), first)

    def _filled(self, text: str, found: list[tuple[NDArray[np.int32], NDArray[np.float32]]], cut: int) -> Filled:
        parts = text.split(self.mask)
        gaps = []
        for number, (ids, chances) in enumerate(found):
            left, right = self.mask.join(parts[: number + 1]), self.mask.join(parts[number + 1 :])
            words = [
                (Word.of(self.tokenizer, int(one)), float(chance), int(one))
                for one, chance in zip(ids, chances, strict=True)
            ]
            gaps.append([Fill(word.text, chance, word.into(left, right), one) for word, chance, one in words])
        best = parts[0]
        for (ids, _), after in zip(found, parts[1:], strict=True):
            best = Word.of(self.tokenizer, int(ids[0])).into(best, after)
        return Filled(text, gaps, best, cut)

    def _recorded(self, filled: Filled, row: _Row, seeing: SeeingConfig) -> Record:
        """Return where the model looked: a step for each gap, whose token is the likeliest word."""
        content = len(row.ids) - self.framing.room()
        shown = read_row(
            self.framing, filled.text, longest=self.longest, shown=Window(row.first, row.first + content), marks=True
        )
        chosen = [gap[0].token for gap in filled.gaps]

        def more(scores: NDArray[np.float32]) -> dict[str, Any]:
            raised = scores[row.places].astype(np.float64)
            logp = raised - np.logaddexp.reduce(raised, axis=1, keepdims=True)
            steps = steps_of(logp, chosen, self.tokenizer.pieces, seeing.top)
            return {"texts": {"target": Side.of_labels(filled.best, [step.token for step in steps])}, "steps": steps}

        looker = EncoderLooker(self.model, self.framing)
        return looker.record(shown, seeing, task="fill", read=self.model.scores, more=more)

    def scores(self, documents: Documents, row: int = 0) -> dict[str, Any]:
        """Return how well the model tells hidden tokens of running text, beside what their counts alone would give.

        Three in twenty tokens are hidden, the same ones every time; `row` is the length of rows, as in training.
        """
        from regard.config.data import MaskingConfig

        pairs = self.model.config.head == "pretraining"
        layout = Layout.of(self.tokenizer, MaskingConfig(next_sentence=pairs))
        length = min(row or int(self.task.get("row", 128)), self.longest) - layout.room
        text = Stream.of(documents, self.tokenizer, max(1, length))
        found = masked_scores(self.model, text, layout)
        facts: dict[str, Any] = {"documents": len(documents), "tokens": len(text.ids), "hidden": found.count}
        facts |= {"loss": found.loss, "perplexity": perplexity(found.loss, 1)}
        if self.counts is not None:
            facts["perplexity_unigram"] = perplexity(unigram_loss(self.counts, text, layout), 1)
            facts["times_better"] = facts["perplexity_unigram"] / facts["perplexity"]
        if found.together is not None:
            facts["next_accuracy"] = found.together
        return facts
