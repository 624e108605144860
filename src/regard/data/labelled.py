"""Read labelled texts, or pairs of texts, from TSV, CSV or JSON lines: strictly, every fault with its place.

Where a separator is given, a text may have several labels or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import epoch_rng
from regard.data.columns import Column, DataRow, find_field_fault, read_rows
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.data.pairs import detect_format
from regard.errors import DataError, UsageError, nearest
from regard.formatting import format_names

HELD_OUT_SHARE, HELD_OUT_MOST = 0.1, 2000


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a label each, in the order of the files."""

    texts: list[str]
    labels: list[str]
    locations: list[str]  # file:line of each
    digest: str  # SHA-256 over all rows in their order
    num_read: int = 0  # accepted + rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected rows are
    pairs: list[str] | None = None  # the second text of each, where texts come in pairs
    separator: str = ""  # between the labels of a text that may have several

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], labels: Sequence[str], *, pairs: Sequence[str] | None = None, separator: str = ""
    ) -> LabelledTexts:
        """Return labelled texts that come from no file."""
        places = [f"row {number}" for number in range(1, len(texts) + 1)]
        second = None if pairs is None else list(pairs)
        digest = _digest(texts, second, labels)
        return cls(list(texts), list(labels), places, digest, len(texts), pairs=second, separator=separator)

    @property
    def label_sets(self) -> list[tuple[str, ...]]:
        """The labels of each text.

        >>> LabelledTexts.from_texts(["a", "b"], ["warm; old", ""], separator=";").label_sets
        [('warm', 'old'), ()]
        """
        if not self.separator:
            return [(label,) for label in self.labels]
        parts = ([part.strip() for part in label.split(self.separator)] for label in self.labels)
        return [tuple(dict.fromkeys(filter(None, found))) for found in parts]

    @property
    def label_names(self) -> list[str]:
        """The labels that occur, numbers by size, other names by the alphabet.

        >>> LabelledTexts.from_texts(["a", "b", "c"], ["10", "9", "10"]).label_names
        ['9', '10']
        """
        found = set(chain.from_iterable(self.label_sets))
        numbers = all(label.isascii() and label.isdecimal() and len(label) < 19 for label in found)
        return sorted(found, key=lambda label: (int(label) if numbers else 0, label))

    def label_ids(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """Return each row's place among the classes, or say which row has a label that is none of them."""
        known = {label: place for place, label in enumerate(labels)}
        self._check(known)
        return np.array([known[label] for label in self.labels], dtype=np.int64)

    def label_matrix(self, label_names: Sequence[str]) -> NDArray[np.float32]:
        """Return which of the classes each text has, [texts, classes], 1 or 0; an unknown label is refused.

        >>> LabelledTexts.from_texts(["a", "b"], ["warm;old", "old"], separator=";").label_matrix(["old", "warm"]).tolist()
        [[1.0, 1.0], [1.0, 0.0]]
        """
        known = {label: place for place, label in enumerate(label_names)}
        self._check(known)
        made = np.zeros((len(self), len(label_names)), dtype=np.float32)
        for row, labels in zip(made, self.label_sets, strict=True):
            row[[known[label] for label in labels]] = 1
        return made

    def _check(self, known: Mapping[str, int]) -> None:
        for labels, place in zip(self.label_sets, self.locations, strict=True):
            for label in labels:
                if label not in known:
                    raise DataError(
                        f"the label {label!r:.80} is not one that was learned{nearest(label, known)}",
                        location=place,
                        advice=f"there are {format_names(list(known))}",
                    )

    def select(self, numbers: Sequence[int] | NDArray[np.int64]) -> LabelledTexts:
        """Return some of the rows, with a digest of their own."""
        texts, labels, places = (
            [column[number] for number in numbers] for column in (self.texts, self.labels, self.locations)
        )
        pairs = None if self.pairs is None else [self.pairs[number] for number in numbers]
        digest = _digest(texts, pairs, labels)
        return replace(self, texts=texts, labels=labels, locations=places, digest=digest, pairs=pairs)


def _digest(texts: Sequence[str], pairs: Sequence[str] | None, labels: Sequence[str]) -> str:
    return digest_columns(texts, labels) if pairs is None else digest_columns(texts, pairs, labels)


def read_labelled(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> LabelledTexts:
    """Return the labelled texts of all files, each with a column of texts, maybe one of second texts, one of labels.

    With `config.lenient`, faulty rows go to `<name>.rejected.jsonl`, beside the first file or in the folder `rejects`.
    """
    if not paths:
        raise UsageError("no file of labelled texts given: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    texts, labels, places, pairs = list[str](), list[str](), list[str](), list[str]()
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, rejects))
        for name in names:
            for row in _rows(name, config, stack):
                if ledger.accept(row, [row.raw], name):
                    texts.append(row.fields[0])
                    labels.append(row.fields[1].strip())
                    pairs += row.fields[2:]
                    places.append(f"{name}:{row.line}")
    ledger.finish()
    second, counted = pairs if config.pair else None, (ledger.num_read, ledger.rejected)
    reject_file = str(ledger.path) if ledger.rejected else ""
    return LabelledTexts(
        texts, labels, places, _digest(texts, second, labels), *counted, reject_file, second, config.label_separator
    )


def _rows(name: str, config: ReadConfig, stack: ExitStack) -> Iterator[DataRow]:
    form = detect_format(name, config)
    if form == "lines":
        raise DataError(
            "plain lines have no column of labels",
            location=name,
            advice="say what the file is with --format tsv, csv or jsonl",
        )
    found = iter_checked_lines(stack.enter_context(open_bytes(name)), name, config.encoding)
    first = next(found, None)
    if first is None:
        return
    columns: list[Column] = [("text", config.text), ("label", config.label)]
    if config.pair:
        columns.append(("pair", config.pair))
    elif form == "tsv" and not (config.text or config.label):
        columns = _named(first.text.split("\t")) or columns
    for row in read_rows(chain([first], found), form, columns, config, name):
        yield (
            row if row.fault else row._replace(fault=find_field_fault(row) or _blank(row, bool(config.label_separator)))
        )


def _named(cells: Sequence[str]) -> list[Column]:
    """Return the columns that the first row of a TSV names; nothing where it is data.

    >>> _named(["sentence", "label"]), _named(["good film", "1"])
    ([('text', '1'), ('label', 'label')], [])
    """
    names = [cell.strip() for cell in cells]
    if "label" not in names:
        return []
    other = str(2 - names.index("label")) if len(names) == 2 else ""
    return [("text", "text" if "text" in names else other), ("label", "label")]


def _blank(row: DataRow, unlabelled: bool) -> Fault | None:
    for role, cell in zip(("text", "label", "second text"), row.fields, strict=False):
        if not cell.strip() and not (unlabelled and role == "label"):
            return Fault(row.line, 0, f"blank {role}", f"the {role} is blank", "fill it in or take the row out")
    return None


def check_labels(texts: LabelledTexts, name: str) -> list[str]:
    """Return the classes to learn, or raise `DataError` where there is but one."""
    classes = texts.label_names
    if not classes:
        raise DataError("no text has a label", location=name, advice="is --label the right column?")
    if len(classes) < 2:
        raise DataError(
            f"all {len(texts):,} texts have the label {classes[0]!r:.80}",
            location=name,
            advice="at least two labels are needed; is --label the right column?",
        )
    return classes


def hold_out_texts(rows: LabelledTexts) -> tuple[LabelledTexts, LabelledTexts]:
    """Return the rows without a small share, and that share: as much of each label, chosen by the data alone.

    Equal texts are wholly on one side, and every label keeps at least one of its texts for training.
    """
    by_label: dict[str, list[str]] = {}
    keys = rows.texts if rows.pairs is None else [*map("\x1f".join, zip(rows.texts, rows.pairs, strict=True))]
    for text, label in dict(zip(keys, rows.labels, strict=True)).items():
        by_label.setdefault("" if rows.separator else label, []).append(text)
    distinct = sum(map(len, by_label.values()))
    share = min(HELD_OUT_SHARE, HELD_OUT_MOST / distinct)
    drawn = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=2)
    held: set[str] = set()
    for label in sorted(by_label):
        texts = by_label[label]
        count = min(round(share * len(texts)), len(texts) - 1)
        held.update(texts[place] for place in drawn.permutation(len(texts))[:count])
    kept = [number for number, text in enumerate(keys) if text not in held]
    away = [number for number, text in enumerate(keys) if text in held]
    if not away:
        raise UsageError(f"{len(rows)} texts are too few to hold some out: give validation data with --valid")
    return rows.select(kept), rows.select(away)


def label_counts(texts: LabelledTexts) -> Mapping[str, int]:
    """Return how many texts each label has, in the order of the classes."""
    found = Counter(chain.from_iterable(texts.label_sets))
    return {label: found[label] for label in texts.label_names}
