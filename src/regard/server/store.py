"""The records that a server shows, the newest first; new ones may be put there while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import Any

from regard.errors import UsageError
from regard.view.record.record import Record

KEPT = 200  # records; beyond them the oldest go
_TEXT = 300  # characters of a text in a list


class RecordStore:
    """Records by their id.

    >>> from regard.view.record.texts import RecordText
    >>> shelf = RecordStore([Record("one", {"source": RecordText("a", ("a",), (0,))}, ())])
    >>> shelf.replace(Record("two", {"source": RecordText("b", ("b",), (0,))}, ()))
    >>> [one["title"] for one in shelf.summaries()]
    ['two', 'one']
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._lock = Lock()
        self._records: dict[str, Record] = {}  # the oldest first
        self._texts: dict[str, bytes] = {}
        for record in reversed(list(records)):
            self.add(record)

    def replace(self, record: Record) -> None:
        """Add a record as the newest; one of the same id makes place for it."""
        with self._lock:
            self._records.pop(record.id, None)
            self._texts.pop(record.id, None)
            self._records[record.id] = record
            while len(self._records) > KEPT:
                oldest = next(iter(self._records))
                del self._records[oldest]
                self._texts.pop(oldest, None)

    def add(self, record: Record) -> Record:
        """Add a record beside all others, and return it: one of the same id, as the same text gives, keeps its own."""
        with self._lock:
            number = 2
            name = record.id
            while name in self._records:
                name, number = f"{record.id}-{number}", number + 1
        named = record if name == record.id else replace(record, id=name)
        self.replace(named)
        return named

    def get(self, name: str) -> Record:
        """Return the record of an id."""
        with self._lock:
            if name not in self._records:
                raise UsageError("there is no such record here: it may be of an earlier start")
            return self._records[name]

    def newest(self) -> str:
        """Return the id of the newest record, or nothing."""
        with self._lock:
            return next(reversed(self._records), "")

    def json_bytes(self, record_id: str) -> bytes:
        """Return a record's JSON form without its matrices, which are asked for one by one."""
        record = self.get(record_id)
        with self._lock:
            known = self._texts.get(record_id)
        if known is None:
            known = json.dumps(record.to_dict(href=f"/r/{record_id}/a"), separators=(",", ":")).encode()
            with self._lock:
                self._texts[record_id] = known
        return known

    def summaries(self) -> list[dict[str, Any]]:
        """Return what a list of the records says of each, the newest first."""
        with self._lock:
            records = list(reversed(self._records.values()))
        return [_summary(record) for record in records]


def _summary(record: Record) -> dict[str, Any]:
    texts = {name: side.text[:_TEXT] for name, side in record.texts.items() if name in ("source", "target")}
    return {"id": record.id, "title": record.title[:_TEXT], "task": record.task, "made": dict(record.made), **texts}
