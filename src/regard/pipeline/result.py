"""Answers that can be looked at: what every pipeline's results share.

Where heads looked, as numbers with labels: by site, by kind, by head; in tokens or in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import ablate, active_intervention
from regard.attention.sites import check_heads, site_name, unknown_site_message
from regard.config.inference import RecordConfig
from regard.errors import UsageError
from regard.tasks.alignment import merge_subwords
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from pathlib import Path

    from regard.view.figure import Figure
    from regard.view.record.parts import DecodingStep


_WITH_MODEL = ("_recorder", "_record", "_sights", "_off")
Recorder = Callable[[RecordConfig], "Record"]
Result = TypeVar("Result", bound="PipelineResult")


class PipelineResult:
    """A result that knows where the model looked; the model looks once more when that is asked for."""

    _recorder: Recorder | None = None
    _off: str = ""  # heads that were switched off when it was given

    def record(self, title: str = "", **asked: Any) -> Record:
        """Return what pictures of this answer are drawn from; settings are those of `SeeingConfig`."""
        if self._recorder is None:
            raise UsageError("this answer has come without its model: ask the model again to see where it looked")
        with ablate(self._off) if self._off and active_intervention() is None else nullcontext():
            made = self._recorder(RecordConfig(**asked))
        return replace(made, title=title) if title else made

    @property
    def attention(self) -> AttentionMaps:
        """Where each site looked: by site, `encoder.3.self:2` for a head, `decoder.cross` for the best of a kind."""
        kept: AttentionMaps | None = self.__dict__.get("_sights")
        if kept is None:
            kept = self.__dict__["_sights"] = AttentionMaps(self._record_once())
        return kept

    @property
    def steps(self) -> tuple[DecodingStep, ...]:
        """The tokens that were produced, each with its probability and what else was thought of."""
        return self._record_once().steps

    def _record_once(self) -> Record:
        kept: Record | None = self.__dict__.get("_record")
        if kept is None:
            kept = self.record()
            self.__dict__["_record"] = kept
        return kept

    def see(self, path: str | Path | None = None, *, view: str = "", open_browser: bool = True) -> Any:
        """Show where the model looked: in a notebook as a cell's output, in a file by its ending, or in the browser."""
        from regard.view.export import show_record

        return show_record(self._record_once(), path, view=view, open_browser=open_browser)

    def figure(self, view: str = "align", **options: Any) -> Figure:
        """Return a figure of one view; it can be saved as SVG, PNG, PDF or TikZ."""
        from regard.view.figure import figure

        return figure(self._record_once(), view, **options)

    def __getstate__(self) -> dict[str, Any]:
        """What is stored or sent elsewhere has no model."""
        return {name: value for name, value in self.__dict__.items() if name not in _WITH_MODEL}


def attach_recorder(result: Result, recorder: Recorder) -> Result:
    """Return the result, which can now be looked at."""
    chosen = active_intervention()
    result.__dict__["_recorder"], result.__dict__["_off"] = recorder, str(chosen) if chosen is not None else ""
    return result


@dataclass(frozen=True)
class AttentionMap:
    """Where the heads of one site looked; one of them, where it was asked for or measured as best."""

    site: str
    weights: NDArray[np.float32]  # [H, Q, K]
    rows: list[str]  # who looked; in the decoder the tokens that were being produced
    columns: list[str]  # what was looked at
    head: int | None = None
    sides: tuple[RecordText, RecordText] | None = None

    @property
    def matrix(self) -> NDArray[np.float32]:
        """The weights of the head [Q, K]; where none is chosen, the mean of all."""
        return np.asarray(self.weights.mean(axis=0) if self.head is None else self.weights[self.head])

    def to_words(self) -> AttentionMap:
        """Return the same for words: what a word looks at is added up over its tokens, who looks is averaged.

        >>> side = RecordText("two dogs", ("two", " dog", "s"), (0, 1, 1))
        >>> names, weights = [*side.tokens], np.eye(3, dtype=np.float32)[None]
        >>> sight = AttentionMap("encoder.0.self", weights, names, names, 0, (side, side))
        >>> sight.to_words().rows, sight.to_words().matrix.tolist()
        (['two', 'dogs'], [[1.0, 0.0], [0.0, 1.0]])
        """
        if self.sides is None:
            return self
        rows, columns = (side.units(words=True) for side in self.sides)
        groups = [members for _, members in rows], [members for _, members in columns]
        weights = np.stack([merge_subwords(one, *groups) for one in self.weights])
        return AttentionMap(self.site, weights, [name for name, _ in rows], [name for name, _ in columns], self.head)

    def top(self) -> list[tuple[str, str, float]]:
        """Return for each row the column most looked at, and how much."""
        looked = self.matrix
        if not looked.size:
            return []
        most = looked.argmax(axis=1)
        return [
            (row, self.columns[column], float(looked[at, column]))
            for at, (row, column) in enumerate(zip(self.rows, most.tolist(), strict=True))
        ]

    def __array__(self, dtype: type | None = None, copy: bool | None = None) -> NDArray[np.float32]:
        return np.asarray(self.matrix, dtype=dtype)


class AttentionMaps(Mapping[str, AttentionMap]):
    """Sights by their sites: `decoder.2.cross`, `decoder.2.cross:3` for a head, `decoder.cross` for the best of a kind.

    The best of a kind is the head that training measured, or else the mean of the last layer's heads.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        pairs = [(seen, layer) for seen in record.attention for layer in seen.layers]
        self._places = {site_name(seen.name, layer): (seen, layer) for seen, layer in pairs}

    def __getitem__(self, name: str) -> AttentionMap:
        site, colon, number = name.partition(":")
        head = int(number) if number.isdecimal() else None
        if colon and head is None:
            raise UsageError(f"{name!r} names no head: write site and number, as in encoder.3.self:2")
        if site not in self._places:
            site, measured = self._of_kind(site)
            head = measured if head is None else head
        seen, layer = self._places[site]
        if head is not None:
            check_heads(site, [head], seen.heads)
        rows, columns = self.record.texts[seen.rows], self.record.texts[seen.columns]
        weights = np.stack([seen.matrix(layer, number) for number in range(seen.heads)])
        return AttentionMap(site, weights, [*rows.tokens], [*columns.tokens], head, (rows, columns))

    def _of_kind(self, name: str) -> tuple[str, int | None]:
        """Return the site, and the head where one was measured, that stand for all sites of a kind."""
        found = [site for site in self._places if self._places[site][0].name == name]
        if not found:
            raise UsageError(unknown_site_message(name, self._places))
        best = self.record.best
        if best is not None and best[0] == name:
            return next(site for site in found if self._places[site][1] == best[1]), best[2]
        return found[-1], None

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
