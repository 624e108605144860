"""`FillingPipeline`: texts with gaps in, the likeliest words for each gap out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.batching import length_sorted_batches
from regard.data.documents import Documents
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.pipeline.records.attention import decoding_steps
from regard.pipeline.records.encoder import EncoderRecorder, VisibleWindow, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.masked_lm import FilledToken, MaskedRowLayout, masked_scores, top_tokens_at, unigram_loss
from regard.tasks.metrics import perplexity
from regard.tasks.token_stream import TokenStream
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

TOGETHER = 256  # texts that are read together
BUDGET = 4096  # tokens that are computed together


@dataclass(frozen=True)
class Prediction:
    """A word for a gap."""

    token: str
    probability: float
    text: str  # with the word in this gap; others stay as they are
    token_id: int


@dataclass(frozen=True)
class FilledText(PipelineResult):
    """A text and what goes into its gaps."""

    text: str
    masks: list[list[Prediction]]  # in the text's order, each with the likeliest first
    best_text: str  # the text with the likeliest word in every gap
    truncated: int  # tokens far from the gaps that were not read

    def __str__(self) -> str:
        return self.best_text


@dataclass(frozen=True)
class _MaskedRow:
    ids: list[int]
    token_types: list[int]
    positions: list[int]
    truncated: int
    first: int = 0  # which token of the text is the first that is read


class FillMaskPipeline:
    """Texts with gaps in, words out."""

    def __init__(
        self,
        model: Bert,
        tokenizer: Tokenizer,
        task: dict[str, Any],
        max_length: int,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.task, self.max_length, self.counts = model, tokenizer, task, max_length, counts
        self.framing = SpecialTokens(tokenizer)
        self.mask = str(tokenizer.backend.id_to_token(self.framing.mask))

    def stream(self, texts: Iterable[str], *, k: int = 5) -> Iterator[FilledText]:
        """Yield what goes into the gaps of each text, in order."""
        if k < 1:
            raise UsageError(f"k ({k}) words for a gap: at least 1 is needed")
        waiting = iter(texts)
        before = 0
        while some := list(islice(waiting, TOGETHER)):
            yield from self._some(some, k, before)
            before += len(some)

    def fill(self, texts: Sequence[str], *, top_k: int = 5) -> list[FilledText]:
        """Return what goes into the gaps of each text."""
        if isinstance(texts, str):
            raise UsageError("fill takes a list of texts: call the pipeline itself with one")
        return list(self.stream(texts, k=top_k))

    def __call__(self, text: str, *, k: int = 5) -> FilledText:
        """Return what goes into the gaps of one text."""
        return self.fill([text], top_k=k)[0]

    def _some(self, texts: Sequence[str], k: int, before: int) -> list[FilledText]:
        rows = [self._row(text, before + number + 1) for number, text in enumerate(texts)]
        made: dict[int, FilledText] = {}
        lengths = np.array([[len(row.ids)] for row in rows], dtype=np.int64)
        for numbers in length_sorted_batches(lengths, max_tokens=BUDGET):
            chosen = [rows[number] for number in numbers]
            packed = Tokens.from_rows([row.ids for row in chosen])
            types = np.array([kind for row in chosen for kind in row.token_types], dtype=np.int32)
            places = [
                int(first) + place
                for first, row in zip(packed.offsets, chosen, strict=False)
                for place in row.positions
            ]
            tokens = Tokens(packed.ids, packed.offsets, types)
            found = iter(zip(*top_tokens_at(self.model, tokens, np.array(places), k), strict=True))
            for number, row in zip(numbers, chosen, strict=True):
                filled = self._filled(texts[number], list(islice(found, len(row.positions))), row.truncated)
                made[int(number)] = attach_recorder(filled, partial(self._recorded, filled, row))
        return [made[number] for number in range(len(texts))]

    def _row(self, text: str, number: int) -> _MaskedRow:
        """Return what the model reads of a text: all of it, or what is around its gaps."""
        reading = self.framing.encode(text, parse_special=True)
        content = [one for one, side in zip(reading.ids, reading.sides, strict=True) if side >= 0]
        places = [place for place, one in enumerate(content) if one == self.framing.mask]
        if not places or len(places) != text.count(self.mask):
            shown = text if len(text) <= 60 else f"{text[:57]}…"
            raise UsageError(f"text {number} has no gap ({shown!r}): write {self.mask} where a word is to be found")
        room = self.max_length - self.framing.num_special()
        first = 0
        if len(content) > room:
            if places[-1] - places[0] >= room:
                apart = places[-1] - places[0] + 1
                raise UsageError(f"text {number}: its gaps span {apart:,} tokens, the model reads {room:,}: split it")
            first = min(max(0, (places[0] + places[-1] + 1 - room) // 2), len(content) - room)
        ids, types = self.framing.add(content[first : first + room])
        opening = len(self.framing.alone.before)
        return _MaskedRow(ids, types, [opening + place - first for place in places], max(0, len(content) - room), first)

    def _filled(self, text: str, found: list[tuple[NDArray[np.int32], NDArray[np.float32]]], cut: int) -> FilledText:
        parts = text.split(self.mask)
        gaps = []
        for number, (ids, chances) in enumerate(found):
            left, right = self.mask.join(parts[: number + 1]), self.mask.join(parts[number + 1 :])
            words = [
                (FilledToken.of(self.tokenizer, int(one)), float(chance), int(one))
                for one, chance in zip(ids, chances, strict=True)
            ]
            gaps.append([Prediction(word.text, chance, word.insert(left, right), one) for word, chance, one in words])
        best = parts[0]
        for (ids, _), after in zip(found, parts[1:], strict=True):
            best = FilledToken.of(self.tokenizer, int(ids[0])).insert(best, after)
        return FilledText(text, gaps, best, cut)

    def _recorded(self, filled: FilledText, row: _MaskedRow, seeing: RecordConfig) -> Record:
        """Return where the model looked: a step for each gap, whose token is the likeliest word."""
        content = len(row.ids) - self.framing.num_special()
        shown = encode_row(
            self.framing,
            filled.text,
            max_length=self.max_length,
            window=VisibleWindow(row.first, row.first + content),
            parse_special=True,
        )
        chosen = [gap[0].token_id for gap in filled.masks]

        def more(scores: NDArray[np.float32]) -> dict[str, Any]:
            raised = scores[row.positions].astype(np.float64)
            logp = raised - np.logaddexp.reduce(raised, axis=1, keepdims=True)
            steps = decoding_steps(logp, chosen, self.tokenizer.subwords, seeing.top_k)
            return {
                "texts": {"target": RecordText.from_labels(filled.best_text, [step.token for step in steps])},
                "steps": steps,
            }

        looker = EncoderRecorder(self.model, self.framing)
        return looker.record(shown, seeing, task="fill", read=self.model.logits, more=more)

    def scores(self, documents: Documents, row: int = 0) -> dict[str, Any]:
        """Return how well the model tells hidden tokens of running text, beside what their counts alone would give.

        Three in twenty tokens are hidden, the same ones every time; `row` is the length of rows, as in training.
        """
        from regard.config.data import MaskingConfig

        pairs = self.model.config.head == "pretraining"
        layout = MaskedRowLayout.of(self.tokenizer, MaskingConfig(next_sentence=pairs))
        length = min(row or int(self.task.get("row", 128)), self.max_length) - layout.num_special
        text = TokenStream.of(documents, self.tokenizer, max(1, length))
        found = masked_scores(self.model, text, layout)
        facts: dict[str, Any] = {"documents": len(documents), "tokens": len(text.ids), "hidden": found.count}
        facts |= {"loss": found.loss, "perplexity": perplexity(found.loss, 1)}
        if self.counts is not None:
            facts["perplexity_unigram"] = perplexity(unigram_loss(self.counts, text, layout), 1)
            facts["times_better"] = facts["perplexity_unigram"] / facts["perplexity"]
        if found.together is not None:
            facts["next_accuracy"] = found.together
        return facts
