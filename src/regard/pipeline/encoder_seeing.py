"""Where encoders looked while they read a text, a pair, or a window of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.seeing import SeeingConfig
from regard.models.encoder import Encoder
from regard.pipeline.gathering import Axes, gathered, insides, places_of, seeing
from regard.text.framing import Framing, Reading, fitting
from regard.tokens import Tokens
from regard.view.record import Cut, Record, Side

AXES = {"encoder.self": Axes("source", "source")}


@dataclass(frozen=True)
class ReadRow:
    """One row that an encoder reads, and the text that it stands for."""

    ids: list[int]
    types: list[int]
    side: Side
    cut: tuple[Cut, ...] = ()

    @property
    def tokens(self) -> Tokens:
        """The row as models take it."""
        packed = Tokens.from_rows([self.ids])
        return Tokens(packed.ids, packed.offsets, np.asarray(self.types, dtype=np.int32))


@dataclass(frozen=True)
class Window:
    """Which tokens of a text, or of the second text of a pair, are shown."""

    first: int
    last: int
    before: int = 0  # tokens of the first text, where there is a second one


def read_row(
    framing: Framing,
    text: str,
    pair: str | None = None,
    *,
    longest: int,
    shown: Window | None = None,
    marks: bool = False,
) -> ReadRow:
    """Return what an encoder reads of a text or a pair: the first window, or the one that is to be shown.

    A window is one of the only text, or of the second one. Whatever is left out is said.
    """
    whole = framing.read(text, pair, marks=marks)
    room = longest - framing.room(pair is not None)
    counts = [whole.sides.count(side) for side in (0, 1)]
    starts, lengths = [0, 0], counts
    if shown is not None and pair is None:
        starts, lengths = [shown.first, 0], [shown.last - shown.first, 0]
    elif shown is not None:
        starts, lengths = [0, shown.first], [shown.before, shown.last - shown.first]
    elif sum(counts) > room:
        lengths = [room, 0] if pair is None else [*fitting(counts[0], counts[1], room)]
    kept = _kept(whole, starts, lengths)
    return _row(framing, whole, kept, text, pair, _cuts(counts, starts, lengths))


def _kept(whole: Reading, starts: Sequence[int], lengths: Sequence[int]) -> list[int]:
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
    framing: Framing, whole: Reading, kept: Sequence[int], text: str, pair: str | None, cut: tuple[Cut, ...]
) -> ReadRow:
    ids, types = [whole.ids[place] for place in kept], [whole.types[place] for place in kept]
    shown = text if pair is None else f"{text}\n{pair}"
    words, letters = (0, len(text.split())), (0, len(text) + 1)
    numbers, spans = [], []
    for place in kept:
        side, word, (start, stop) = whole.sides[place], whole.words[place], whole.spans[place]
        numbers.append(word + words[side] if side >= 0 else -1)
        spans.append((start + letters[side], stop + letters[side]) if side >= 0 else (0, 0))
    pieces = framing.tokenizer.pieces(ids)
    return ReadRow(ids, types, Side.of_pieces(shown, pieces, numbers, spans, segment=types if pair else ()), cut)


def _cuts(counts: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> tuple[Cut, ...]:
    """Say what is not shown."""
    made = []
    for name, count, start, length in zip(("text", "second text"), counts, starts, lengths, strict=True):
        if length < count:
            why = f"the {name} has {count:,} tokens, more than the model reads at a time"
            made.append(Cut(why, f"all but its tokens {start + 1:,} to {start + length:,}"))
    return tuple(made)


Scored = Callable[[Tokens], NDArray[np.float32]]


@dataclass(frozen=True)
class EncoderLooker:
    """Shows where an encoder looks while it reads a row."""

    model: Encoder
    framing: Framing

    def record(
        self,
        row: ReadRow,
        config: SeeingConfig,
        *,
        task: str,
        title: str = "",
        read: Scored | None = None,
        more: Callable[[NDArray[np.float32]], Mapping[str, Any]] | None = None,
    ) -> Record:
        """Return the record of one row; `more` makes what else it holds of what `read` gives for the row."""
        sites = self.model.sites()
        if config.inside == "best":
            config = config.override({"inside": f"{[*sites][-1]}:0" if sites else ""})
        count = len(row.ids)
        with seeing(config, sites, count, count) as seen:
            found = (read or self.model.encode)(row.tokens)
        extra = dict(more(found)) if more is not None else {}
        texts = {"source": row.side, **extra.pop("texts", {})}
        places = places_of(*self.model.scheme, count=max(count, 32), first=self.model.config.first_place)
        return Record(
            title or row.side.text,
            texts,
            gathered([seen.trace], AXES),
            task=task,
            places=places,
            inside=insides(seen),
            cut=(*row.cut, *extra.pop("cut", ())),
            **extra,
        )
