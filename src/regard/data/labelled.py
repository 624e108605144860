"""Labelled texts, or pairs of texts, from TSV, CSV or JSON lines; every fault has its location.

With a label separator, a text may have several labels or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import RngPurpose, epoch_rng
from regard.data.columns import Column, DataRow, find_field_fault, read_rows
from regard.data.ledger import Ledger, RowCounts, digest_columns
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.data.pairs import detect_format
from regard.errors import DataError, UsageError, nearest
from regard.formatting import format_names

HELD_OUT_FRACTION = 0.1
MAX_HELD_OUT = 2000
COLUMN_ROLES = ("text", "label", "pair")  # settings that select columns
_MAX_INT64_DIGITS = 18


@dataclass(frozen=True)
class LabelledTexts(RowCounts):
    """Texts with their labels, in the order of the files."""

    texts: list[str]
    labels: list[str]
    locations: list[str]  # file:line of each
    digest: str  # SHA-256 over all rows in their order
    pairs: list[str] | None = None  # second text of each, where texts come in pairs
    label_separator: str = ""  # between the labels of a text that may have several

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        label_separator: str = "",
    ) -> LabelledTexts:
        """Labelled texts that come from no file."""
        second_texts = None if pairs is None else list(pairs)
        return cls(
            list(texts),
            list(labels),
            locations=[f"row {row_number}" for row_number in range(1, len(texts) + 1)],
            digest=_digest(texts, second_texts, labels),
            num_read=len(texts),
            pairs=second_texts,
            label_separator=label_separator,
        )

    @property
    def label_sets(self) -> list[tuple[str, ...]]:
        """The labels of each text.

        >>> LabelledTexts.from_texts(["a", "b"], ["warm; old", ""], label_separator=";").label_sets
        [('warm', 'old'), ()]
        """
        if not self.label_separator:
            return [(label,) for label in self.labels]
        return [_split_labels(labels, self.label_separator) for labels in self.labels]

    @property
    def label_names(self) -> list[str]:
        """The labels that occur, sorted: by value if all are integers, else alphabetically.

        >>> LabelledTexts.from_texts(["a", "b", "c"], ["10", "9", "10"]).label_names
        ['9', '10']
        """
        names = set(chain.from_iterable(self.label_sets))
        are_integers = all(_is_short_integer(name) for name in names)
        return sorted(names, key=lambda name: (int(name) if are_integers else 0, name))

    def label_ids(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """Index of each text's label among the labels; raise `DataError` for a label that is not one of them."""
        id_of = {label: label_id for label_id, label in enumerate(labels)}
        self._check_known(id_of)
        return np.array([id_of[label] for label in self.labels], dtype=np.int64)

    def label_matrix(self, label_names: Sequence[str]) -> NDArray[np.float32]:
        """Multi-hot labels, [texts, labels]; raise `DataError` for a label that is not one of the names.

        >>> texts = LabelledTexts.from_texts(["a", "b"], ["warm;old", "old"], label_separator=";")
        >>> texts.label_matrix(["old", "warm"]).tolist()
        [[1.0, 1.0], [1.0, 0.0]]
        """
        id_of = {label: label_id for label_id, label in enumerate(label_names)}
        self._check_known(id_of)
        matrix = np.zeros((len(self), len(label_names)), dtype=np.float32)
        for row, labels in zip(matrix, self.label_sets, strict=True):
            row[[id_of[label] for label in labels]] = 1
        return matrix

    def _check_known(self, known: Mapping[str, int]) -> None:
        for labels, location in zip(self.label_sets, self.locations, strict=True):
            for label in labels:
                if label not in known:
                    raise DataError(
                        f"the label {label!r:.80} is not one that was learned{nearest(label, known)}",
                        location=location,
                        advice=f"there are {format_names(list(known))}",
                    )

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> LabelledTexts:
        """Texts at these indices, with their own digest."""
        texts = [self.texts[index] for index in indices]
        labels = [self.labels[index] for index in indices]
        pairs = None if self.pairs is None else [self.pairs[index] for index in indices]
        return replace(
            self,
            texts=texts,
            labels=labels,
            locations=[self.locations[index] for index in indices],
            digest=_digest(texts, pairs, labels),
            pairs=pairs,
        )


def _digest(texts: Sequence[str], pairs: Sequence[str] | None, labels: Sequence[str]) -> str:
    return digest_columns(texts, labels) if pairs is None else digest_columns(texts, pairs, labels)


def _split_labels(labels: str, label_separator: str) -> tuple[str, ...]:
    """Distinct labels of one text, in their order."""
    names = [name.strip() for name in labels.split(label_separator)]
    return tuple(dict.fromkeys(name for name in names if name))


def _is_short_integer(label: str) -> bool:
    return label.isascii() and label.isdecimal() and len(label) <= _MAX_INT64_DIGITS


def selected_columns(config: ReadConfig) -> dict[str, str]:
    """Columns that settings select, by role; the others are detected.

    >>> selected_columns(ReadConfig(text="review", label="2"))
    {'text': 'review', 'label': '2'}
    """
    return {role: getattr(config, role) for role in COLUMN_ROLES if getattr(config, role)}


def training_columns(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Columns that were selected in training, by role, from the task.json of a model."""
    columns = metadata.get("columns")
    if not isinstance(columns, Mapping):
        return {}
    return {role: columns[role] for role in COLUMN_ROLES if isinstance(columns.get(role), str)}


def read_labelled(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, reject_folder: str | Path | None = None
) -> LabelledTexts:
    """Read labelled texts from files with a column of texts, one of labels and, optionally, one of second texts.

    With `config.lenient`, faulty rows go to `<name>.rejected.jsonl`, beside the first file or in `reject_folder`.
    """
    if not paths:
        raise UsageError("no file of labelled texts: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    texts: list[str] = []
    labels: list[str] = []
    locations: list[str] = []
    second_texts: list[str] = []
    notes: list[str] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, reject_folder))
        for name in names:
            for row in _read_rows(name, config, stack, notes):
                if ledger.accept(row, [row.raw], name):
                    texts.append(row.fields[0])
                    labels.append(row.fields[1].strip())
                    second_texts += row.fields[2:]
                    locations.append(f"{name}:{row.line}")
    ledger.finish()
    pairs = second_texts if config.pair else None
    return LabelledTexts(
        texts,
        labels,
        locations=locations,
        digest=_digest(texts, pairs, labels),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        reject_file=ledger.reject_file,
        pairs=pairs,
        label_separator=config.label_separator,
        notes=tuple(notes),
    )


def _read_rows(name: str, config: ReadConfig, stack: ExitStack, notes: list[str]) -> Iterator[DataRow]:
    """Yield rows of text, label and, with `config.pair`, second text."""
    format = detect_format(name, config)
    if format == "lines":
        raise DataError(
            "plain lines have no column of labels",
            location=name,
            advice="set --format tsv, csv or jsonl",
        )
    lines = iter_checked_lines(stack.enter_context(open_bytes(name)), name, config.encoding)
    columns: list[Column] = [("text", config.text), ("label", config.label)]
    if config.pair:
        columns.append(("pair", config.pair))
    for row in read_rows(lines, format, columns, config, name, notes=notes):
        if not row.fault:
            row = row._replace(fault=find_field_fault(row) or _find_blank_field(row, bool(config.label_separator)))
        yield row


def _find_blank_field(row: DataRow, may_lack_labels: bool) -> Fault | None:
    for role, text in zip(("text", "label", "second text"), row.fields, strict=False):
        if text.strip() or (may_lack_labels and role == "label"):
            continue
        what = f"the {role} is blank"
        return Fault(row.line, 0, kind=f"blank {role}", what=what, advice="fill it in or remove the row")
    return None


def check_labels(texts: LabelledTexts, name: str) -> list[str]:
    """Labels to learn; raise `DataError` if there are fewer than two."""
    labels = texts.label_names
    if not labels:
        raise DataError("no text has a label", location=name, advice="is --label the right column?")
    if len(labels) < 2:
        raise DataError(
            f"all {len(texts):,} texts have the label {labels[0]!r:.80}",
            location=name,
            advice="at least two labels are needed; is --label the right column?",
        )
    return labels


def hold_out_texts(rows: LabelledTexts) -> tuple[LabelledTexts, LabelledTexts]:
    """Split off a small validation split, stratified by label; it depends on nothing but the data.

    Equal texts are in the same split, and every label keeps at least one of its texts for training.
    """
    keys = rows.texts
    if rows.pairs is not None:
        keys = ["\x1f".join(pair) for pair in zip(rows.texts, rows.pairs, strict=True)]
    keys_by_label: dict[str, list[str]] = {}
    for key, label in dict(zip(keys, rows.labels, strict=True)).items():
        stratum = "" if rows.label_separator else label
        keys_by_label.setdefault(stratum, []).append(key)
    num_distinct = sum(map(len, keys_by_label.values()))
    fraction = min(HELD_OUT_FRACTION, MAX_HELD_OUT / num_distinct)
    rng = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=RngPurpose.HOLD_OUT)
    held_out: set[str] = set()
    for label in sorted(keys_by_label):
        candidates = keys_by_label[label]
        count = min(round(fraction * len(candidates)), len(candidates) - 1)
        held_out.update(candidates[index] for index in rng.permutation(len(candidates))[:count])
    train = [index for index, key in enumerate(keys) if key not in held_out]
    valid = [index for index, key in enumerate(keys) if key in held_out]
    if not valid:
        raise UsageError(f"{len(rows)} texts are too few to hold some out: set validation data with --valid")
    return rows.select(train), rows.select(valid)


def label_counts(texts: LabelledTexts) -> Mapping[str, int]:
    """Number of texts of each label, in the order of the labels."""
    counts = Counter(chain.from_iterable(texts.label_sets))
    return {label: counts[label] for label in texts.label_names}
