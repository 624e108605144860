"""Records that a server shows, the newest first; new ones may be added while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import Any

from regard.errors import UsageError
from regard.view.record.record import Record

MAX_RECORDS = 200  # beyond, the oldest are dropped
_SUMMARY_CHARACTERS = 300  # of a text in a list


class RecordStore:
    """Records by id, safe for threads.

    >>> from regard.view.record.texts import RecordText
    >>> store = RecordStore([Record("one", {"source": RecordText("a", ("a",), (0,))}, ())])
    >>> store.replace(Record("two", {"source": RecordText("b", ("b",), (0,))}, ()))
    >>> [summary["title"] for summary in store.summaries()]
    ['two', 'one']
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._lock = Lock()
        self._records: dict[str, Record] = {}  # the oldest first
        self._json: dict[str, bytes] = {}  # cache of `json_bytes`
        for record in reversed(list(records)):
            self.add(record)

    def replace(self, record: Record) -> None:
        """Add a record as the newest; it replaces one with the same id."""
        with self._lock:
            self._records.pop(record.id, None)
            self._json.pop(record.id, None)
            self._records[record.id] = record
            while len(self._records) > MAX_RECORDS:
                oldest = next(iter(self._records))
                del self._records[oldest]
                self._json.pop(oldest, None)

    def add(self, record: Record) -> Record:
        """Add a record as the newest and return it; if its id exists, as for the same text, it gets another one."""
        with self._lock:
            record_id = record.id
            suffix = 2
            while record_id in self._records:
                record_id = f"{record.id}-{suffix}"
                suffix += 1
        if record_id != record.id:
            record = replace(record, id=record_id)
        self.replace(record)
        return record

    def get(self, record_id: str) -> Record:
        """Record with this id; raise `UsageError` if there is none."""
        with self._lock:
            if record_id not in self._records:
                raise UsageError("there is no such record: it may be from an earlier start of the server")
            return self._records[record_id]

    def newest(self) -> str:
        """Id of the newest record; empty if there is none."""
        with self._lock:
            return next(reversed(self._records), "")

    def json_bytes(self, record_id: str) -> bytes:
        """JSON of a record without its matrices, which are requested one by one."""
        record = self.get(record_id)
        with self._lock:
            cached = self._json.get(record_id)
        if cached is not None:
            return cached
        encoded = json.dumps(record.to_dict(href=f"/r/{record_id}/a"), separators=(",", ":")).encode()
        with self._lock:
            self._json[record_id] = encoded
        return encoded

    def summaries(self) -> list[dict[str, Any]]:
        """Summary of each record for a list, the newest first."""
        with self._lock:
            records = list(reversed(self._records.values()))
        return [_summarize(record) for record in records]


def _summarize(record: Record) -> dict[str, Any]:
    texts = {
        name: text.text[:_SUMMARY_CHARACTERS] for name, text in record.texts.items() if name in ("source", "target")
    }
    title = record.title[:_SUMMARY_CHARACTERS]
    return {"id": record.id, "title": title, "task": record.task, "provenance": dict(record.provenance), **texts}
