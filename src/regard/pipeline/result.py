"""What the results of all pipelines share: their record, their attention maps and their views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import ablate, active_intervention
from regard.attention.sites import check_heads, site_name, unknown_site_message
from regard.attention.trace import suspend_traces
from regard.config.inference import RecordConfig
from regard.errors import UsageError
from regard.tasks.alignment import merge_subwords
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from pathlib import Path

    from regard.view.figure import Figure
    from regard.view.record.parts import DecodingStep


Recorder = Callable[[RecordConfig], "Record"]
Result = TypeVar("Result", bound="PipelineResult")


class PipelineResult:
    """Result of a pipeline; its record is built on demand, by running the model once more under a trace."""

    # attributes that need the model, or are computed with it: not pickled
    transient_attributes: ClassVar[tuple[str, ...]] = (
        "_recorder",
        "_ablated_heads",
        "_cached_record",
        "_cached_attention",
    )
    backend: str = ""  # what computed it, and in which precision: `engine int8`
    _recorder: Recorder | None = None
    _ablated_heads: str = ""  # heads that were ablated when the result was computed

    def record(self, title: str = "", **settings: Any) -> Record:
        """Build the record behind all views of this result; settings are those of `RecordConfig`."""
        if self._recorder is None:
            raise UsageError("this result has come without its model: run the model again to record its attention")
        with self._same_ablation(), suspend_traces():
            record = self._recorder(RecordConfig(**settings))
        if self.backend:
            record = replace(record, provenance={**record.provenance, "backend": self.backend})
        return replace(record, title=title) if title else record

    def _same_ablation(self) -> AbstractContextManager[Any]:
        """The ablation under which the result was computed, unless another one is active."""
        should_ablate = self._ablated_heads and active_intervention() is None
        return ablate(self._ablated_heads) if should_ablate else nullcontext()

    @property
    def attention(self) -> AttentionMaps:
        """Attention maps by site: `encoder.3.self`, `encoder.3.self:2` for a head, `decoder.cross` for a site kind."""
        maps: AttentionMaps | None = self.__dict__.get("_cached_attention")
        if maps is None:
            maps = AttentionMaps(self._record_once())
            self.__dict__["_cached_attention"] = maps
        return maps

    @property
    def steps(self) -> tuple[DecodingStep, ...]:
        """The generated tokens, each with its probability and the most probable candidates."""
        return self._record_once().steps

    def _record_once(self) -> Record:
        record: Record | None = self.__dict__.get("_cached_record")
        if record is None:
            record = self.record()
            self.__dict__["_cached_record"] = record
        return record

    def see(self, path: str | Path | None = None, *, view: str = "", open_browser: bool = True) -> Any:
        """Show the attention: as the output of a notebook cell, in a file (format by its ending), or in the browser."""
        from regard.view.export import show_record

        return show_record(self._record_once(), path, view=view, open_browser=open_browser)

    def figure(self, view: str = "matrix", **options: Any) -> Figure:
        """Draw one view as a figure, which can be saved as SVG, PNG, PDF or TikZ."""
        from regard.view.figure import figure

        return figure(self._record_once(), view, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model behind: a pickled result has no recorder."""
        return {name: value for name, value in self.__dict__.items() if name not in self.transient_attributes}


def attach_recorder(result: Result, recorder: Recorder, backend: str = "") -> Result:
    """Let a result build its record later, under the ablation that is active now; `backend` names what computed it."""
    intervention = active_intervention()
    if backend:
        result.__dict__["backend"] = backend
    result.__dict__["_recorder"] = recorder
    result.__dict__["_ablated_heads"] = "" if intervention is None else str(intervention)
    return result


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one site with their tokens; `head` is set where a single head was requested or measured."""

    site: str
    weights: NDArray[np.float32]  # [heads, queries, keys]
    rows: list[str]  # tokens of the queries; in a decoder the tokens being generated
    columns: list[str]  # tokens of the keys
    head: int | None = None
    texts: tuple[RecordText, RecordText] | None = None  # of rows and columns

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Weights of the selected head, or the mean over all heads."""
        weights = self.weights.mean(axis=0) if self.head is None else self.weights[self.head]
        return np.asarray(weights)  # [queries, keys]

    def to_words(self) -> AttentionMap:
        """Merge subwords into words: sum over the subwords of a key, mean over those of a query.

        >>> text = RecordText("two dogs", ("two", " dog", "s"), (0, 1, 1))
        >>> tokens, weights = [*text.tokens], np.eye(3, dtype=np.float32)[None]
        >>> attention_map = AttentionMap("encoder.0.self", weights, tokens, tokens, 0, (text, text))
        >>> attention_map.to_words().rows, attention_map.to_words().matrix.tolist()
        (['two', 'dogs'], [[1.0, 0.0], [0.0, 1.0]])
        """
        if self.texts is None:
            return self
        row_text, column_text = self.texts
        rows = row_text.units(words=True)
        columns = column_text.units(words=True)
        row_groups = [token_indices for _, token_indices in rows]
        column_groups = [token_indices for _, token_indices in columns]
        word_weights = [merge_subwords(head, row_groups, column_groups) for head in self.weights]
        return AttentionMap(
            self.site,
            np.stack(word_weights),
            rows=[word for word, _ in rows],
            columns=[word for word, _ in columns],
            head=self.head,
        )

    def top(self) -> list[tuple[str, str, float]]:
        """List (row, column, weight) for the largest weight of each row."""
        matrix = self.matrix
        if not matrix.size:
            return []
        top_columns = matrix.argmax(axis=1).tolist()
        return [
            (row, self.columns[column], float(weights[column]))
            for row, column, weights in zip(self.rows, top_columns, matrix, strict=True)
        ]

    def __array__(self, dtype: type | None = None, copy: bool | None = None) -> NDArray[np.float32]:
        return np.asarray(self.matrix, dtype=dtype)


class AttentionMaps(Mapping[str, AttentionMap]):
    """Attention maps by site: `decoder.2.cross`, `decoder.2.cross:3` for a head, `decoder.cross` for a site kind.

    A site kind stands for the alignment head that training measured, or else for the mean of the last layer's heads.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        pairs = [(attention, layer) for attention in record.attention for layer in attention.layers]
        self._sites = {site_name(attention.name, layer): (attention, layer) for attention, layer in pairs}

    def __getitem__(self, name: str) -> AttentionMap:
        site, colon, digits = name.partition(":")
        head = int(digits) if digits.isdecimal() else None
        if colon and head is None:
            raise UsageError(f"{name!r} names no head: write the site and the head's index, as in encoder.3.self:2")
        if site not in self._sites:
            site, measured_head = self._resolve_kind(site)
            head = measured_head if head is None else head
        attention, layer = self._sites[site]
        if head is not None:
            check_heads(site, [head], attention.num_heads)
        rows = self.record.texts[attention.rows]
        columns = self.record.texts[attention.columns]
        return AttentionMap(
            site,
            np.stack([attention.matrix(layer, index) for index in range(attention.num_heads)]),
            rows=[*rows.tokens],
            columns=[*columns.tokens],
            head=head,
            texts=(rows, columns),
        )

    def _resolve_kind(self, kind: str) -> tuple[str, int | None]:
        """Find the site that stands for a site kind, and its head where training measured one."""
        sites = [site for site, (attention, _) in self._sites.items() if attention.name == kind]
        if not sites:
            raise UsageError(unknown_site_message(kind, self._sites))
        best = self.record.best
        if best is None:
            return sites[-1], None
        best_kind, best_layer, best_head = best
        if best_kind != kind:
            return sites[-1], None
        best_site = next(site for site in sites if self._sites[site][1] == best_layer)
        return best_site, best_head

    def __contains__(self, name: object) -> bool:
        return name in self._sites

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)
