"""Where encoders looked while they read a text, a pair, or a window of one.

Where readers with words of their own looked: what pooling took of a text, and the mix of frozen layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.inference import RecordConfig
from regard.models.bert import Bert
from regard.models.layers.pooling import POOLING
from regard.models.rnn_text import RnnClassifier
from regard.pipeline.records.attention import Axes, capture_text, collect_attention, collect_qkv, position_codes
from regard.text.special_tokens import EncodedInput, SpecialTokens, truncate_pair
from regard.tokens import Tokens
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from regard.models.rnn_text import RnnTextModel
    from regard.tasks.rnn_text import RnnPreprocessor, RnnTexts


ENCODER_AXES = {"encoder.self": Axes("source", "source")}


@dataclass(frozen=True)
class EncodedRow:
    """One row that an encoder reads, and the text that it stands for."""

    ids: list[int]
    token_types: list[int]
    text: RecordText
    truncated: tuple[Omission, ...] = ()

    @property
    def tokens(self) -> Tokens:
        """The row as models take it."""
        packed = Tokens.from_rows([self.ids])
        return Tokens(packed.ids, packed.offsets, np.asarray(self.token_types, dtype=np.int32))


@dataclass(frozen=True)
class VisibleWindow:
    """Which tokens of a text, or of the second text of a pair, are shown."""

    start: int
    stop: int
    before: int = 0  # tokens of the first text, where there is a second one


def encode_row(
    special_tokens: SpecialTokens,
    text: str,
    pair: str | None = None,
    *,
    max_length: int,
    window: VisibleWindow | None = None,
    parse_special: bool = False,
) -> EncodedRow:
    """Return what an encoder reads of a text or a pair: the first window, or the one that is to be shown.

    A window is one of the only text, or of the second one. Whatever is left out is said.
    """
    whole = special_tokens.encode(text, pair, parse_special=parse_special)
    room = max_length - special_tokens.num_special(pair is not None)
    counts = [whole.sides.count(side) for side in (0, 1)]
    starts, lengths = [0, 0], counts
    if window is not None and pair is None:
        starts, lengths = [window.start, 0], [window.stop - window.start, 0]
    elif window is not None:
        starts, lengths = [0, window.start], [window.before, window.stop - window.start]
    elif sum(counts) > room:
        lengths = [room, 0] if pair is None else [*truncate_pair(counts[0], counts[1], room)]
    kept = _kept(whole, starts, lengths)
    return _row(special_tokens, whole, kept, text, pair, _cuts(counts, starts, lengths))


def _kept(whole: EncodedInput, starts: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return the places of a reading that stay: special tokens, and those of each text in their window."""
    made, seen = [], [0, 0]
    for place, side in enumerate(whole.sides):
        if side < 0:
            made.append(place)
            continue
        if starts[side] <= seen[side] < starts[side] + lengths[side]:
            made.append(place)
        seen[side] += 1
    return made


def _row(
    framing: SpecialTokens,
    whole: EncodedInput,
    kept: Sequence[int],
    text: str,
    pair: str | None,
    cut: tuple[Omission, ...],
) -> EncodedRow:
    ids, types = [whole.ids[place] for place in kept], [whole.token_types[place] for place in kept]
    shown = text if pair is None else f"{text}\n{pair}"
    words, letters = (0, len(text.split())), (0, len(text) + 1)
    numbers, spans = [], []
    for place in kept:
        side, word, (start, stop) = whole.sides[place], whole.word_ids[place], whole.spans[place]
        numbers.append(word + words[side] if side >= 0 else -1)
        spans.append((start + letters[side], stop + letters[side]) if side >= 0 else (0, 0))
    pieces = framing.tokenizer.subwords(ids)
    return EncodedRow(
        ids, types, RecordText.from_subwords(shown, pieces, numbers, spans, segment=types if pair else ()), cut
    )


def _cuts(counts: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> tuple[Omission, ...]:
    """Say what is not shown."""
    made = []
    for name, count, start, length in zip(("text", "second text"), counts, starts, lengths, strict=True):
        if length < count:
            why = f"the {name} has {count:,} tokens, more than the model reads at a time"
            made.append(Omission(why, f"all but its tokens {start + 1:,} to {start + length:,}"))
    return tuple(made)


Scored = Callable[[Tokens], NDArray[np.float32]]


@dataclass(frozen=True)
class EncoderRecorder:
    """Shows where an encoder looks while it reads a row."""

    model: Bert
    framing: SpecialTokens

    def record(
        self,
        row: EncodedRow,
        config: RecordConfig,
        *,
        task: str,
        title: str = "",
        read: Scored | None = None,
        more: Callable[[NDArray[np.float32]], Mapping[str, Any]] | None = None,
    ) -> Record:
        """Return the record of one row; `more` makes what else it holds of what `read` gives for the row."""
        sites = self.model.attention_sites()
        if config.store_qkv == "best":
            config = config.override({"store_qkv": f"{[*sites][-1]}:0" if sites else ""})
        count = len(row.ids)
        with capture_text(config, sites, count, count) as seen:
            found = (read or self.model.encode)(row.tokens)
        extra = dict(more(found)) if more is not None else {}
        texts = {"source": row.text, **extra.pop("texts", {})}
        places = position_codes(
            *self.model.position_scheme, count=max(count, 32), offset=self.model.config.position_offset
        )
        return Record(
            title or row.text.text,
            texts,
            collect_attention([seen.trace], ENCODER_AXES),
            task=task,
            places=places,
            inside=collect_qkv(seen),
            cut=(*row.truncated, *extra.pop("cut", ())),
            **extra,
        )


POOLING_AXES = {POOLING: Axes("label", "source", produced=True)}


class RnnTextRecorder:
    """Shows what a reader took of a text."""

    def __init__(self, model: RnnTextModel, perception: RnnPreprocessor) -> None:
        self.model, self.perception = model, perception

    def record(self, text: str, config: RecordConfig, *, task: str, label: str = "", **more: Any) -> Record:
        """Return the record of one text: where pooling looked, if it does, and how much of each frozen layer counts."""
        read = self.perception.encode([text])
        texts: dict[str, RecordText] = {"source": self._side(text, read), **more.pop("texts", {})}
        seen: tuple[AttentionRecord, ...] = ()
        if isinstance(self.model, RnnClassifier):
            with trace(store=config.storage(0)) as looked:
                self.model.probabilities(read.batch(np.arange(1)))
            seen = collect_attention([looked], POOLING_AXES)
            if seen:
                texts["label"] = RecordText.from_labels(label, [label])
        shares, _ = self.model.encoder.mix_weights()
        if shares:
            mix, sides = layer_mix_attention(shares)
            seen, texts = (*seen, mix), {**texts, **sides}
        return Record(text, texts, seen, task=task, cut=self._cut(read), **more)

    def _side(self, text: str, read: RnnTexts) -> RecordText:
        encoding = self.perception.tokenizer.encode(text)
        count = len(read.rows[0])
        pieces = self.perception.tokenizer.subwords(read.rows[0].tolist())
        words = encoding.word_ids[:count] or [-1] * count
        return RecordText.from_subwords(text, pieces, words, read.spans[0])

    def _cut(self, read: RnnTexts) -> tuple[Omission, ...]:
        if not read.truncated[0]:
            return ()
        why = f"the text has {len(read.rows[0]) + read.truncated[0]:,} tokens, more than the model reads"
        return (Omission(why, f"its last {read.truncated[0]:,} tokens"),)


def layer_mix_attention(layer_weights: list[float]) -> tuple[AttentionRecord, dict[str, RecordText]]:
    """Return how much of each layer is in a mix, as attention of one row over the layers."""
    names = ["words", *(f"layer {number}" for number in range(1, len(layer_weights)))]
    sides = {"mix": RecordText.from_labels("mix", ["mix"]), "layers": RecordText.from_labels("layers", names)}
    weights = np.asarray(layer_weights, dtype=np.float32)[None, None, None]
    return AttentionRecord("mix", "mix", "layers", weights, (0,)), sides
