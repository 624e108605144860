"""Answers that can be looked at: what every pipeline's results share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from regard.attention.intervention import intervention, off
from regard.config.seeing import SeeingConfig
from regard.errors import UsageError
from regard.pipeline.sights import Sights

if TYPE_CHECKING:
    from pathlib import Path

    from regard.view.figure import Figure
    from regard.view.record import Record, Step

_WITH_MODEL = ("_recorder", "_record", "_sights", "_off")
Recorder = Callable[[SeeingConfig], "Record"]
Result = TypeVar("Result", bound="Seeable")


class Seeable:
    """A result that knows where the model looked; the model looks once more when that is asked for."""

    _recorder: Recorder | None = None
    _off: str = ""  # heads that were switched off when it was given

    def record(self, title: str = "", **asked: Any) -> Record:
        """Return what pictures of this answer are drawn from; settings are those of `SeeingConfig`."""
        if self._recorder is None:
            raise UsageError("this answer has come without its model: ask the model again to see where it looked")
        with off(self._off) if self._off and intervention() is None else nullcontext():
            made = self._recorder(SeeingConfig(**asked))
        return replace(made, title=title) if title else made

    @property
    def attention(self) -> Sights:
        """Where each site looked: by site, `encoder.3.self:2` for a head, `decoder.cross` for the best of a kind."""
        kept: Sights | None = self.__dict__.get("_sights")
        if kept is None:
            kept = self.__dict__["_sights"] = Sights(self._record_once())
        return kept

    @property
    def steps(self) -> tuple[Step, ...]:
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
        from regard.pipeline.showing import show

        return show(self._record_once(), path, view=view, open_browser=open_browser)

    def figure(self, view: str = "align", **options: Any) -> Figure:
        """Return a figure of one view; it can be saved as SVG, PNG, PDF or TikZ."""
        from regard.view.figure import figure

        return figure(self._record_once(), view, **options)

    def __getstate__(self) -> dict[str, Any]:
        """What is stored or sent elsewhere has no model."""
        return {name: value for name, value in self.__dict__.items() if name not in _WITH_MODEL}


def seen_by(result: Result, recorder: Recorder) -> Result:
    """Return the result, which can now be looked at."""
    chosen = intervention()
    result.__dict__["_recorder"], result.__dict__["_off"] = recorder, str(chosen) if chosen is not None else ""
    return result
