"""Tagged sentences in CoNLL columns; every fault has its location.

One word per line, columns separated by tabs or white space, a blank line between sentences. Words are in the first
column and tags in the last; in files named `.iob2`, in the second and third. Lines that begin with # and have no
columns are comments.

Entities are marked by BIO tags: B-x, then I-x. Files in IOB1 (B-x only between neighbouring entities of a type), IOBES
or BILOU are recognised, one by one, and their tags converted; a note reports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import RngPurpose, epoch_rng
from regard.data.columns import DataRow
from regard.data.labelled import HELD_OUT_FRACTION, MAX_HELD_OUT
from regard.data.ledger import Ledger, RowCounts, digest_columns
from regard.data.lines import Fault, Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError, nearest
from regard.formatting import format_count, format_names

OUTSIDE = "O"
DOCUMENT_START = "-DOCSTART-"
_BIO_OF_PREFIX = {"B": "B", "I": "I", "E": "I", "S": "B", "L": "I", "U": "B"}
_SINGLE_WORD_SCHEMES = {"IOBES": "BIES", "BILOU": "BILU"}  # schemes that mark ends and single words, their prefixes
_BIO_ADVICE = "an entity of type x is B-x and then I-x, all else is O"


@dataclass(frozen=True)
class TaggedSentence:
    """Words and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    location: str = ""  # file:line

    @property
    def text(self) -> str:
        """The words, joined by spaces."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TaggedSentences(RowCounts):
    """Sentences in the order of the files."""

    sentences: list[TaggedSentence]
    digest: str  # SHA-256 over all sentences in their order

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def from_sentences(cls, sentences: Sequence[TaggedSentence]) -> TaggedSentences:
        """Sentences that come from no file."""
        return cls(list(sentences), _digest(sentences), num_read=len(sentences))

    @property
    def tags(self) -> list[str]:
        """The tags that occur: O first, then by entity type, B before I.

        >>> TaggedSentences.from_sentences([TaggedSentence(("in", "New", "York"), ("O", "B-place", "I-place"))]).tags
        ['O', 'B-place', 'I-place']
        """
        tags = {tag for sentence in self.sentences for tag in sentence.tags}
        if any(map(_is_bio_tag, tags)):  # an entity type that occurs only as B- may occur as I- in other data
            entity_types = {tag[2:] for tag in tags if tag != OUTSIDE}
            tags = {OUTSIDE}
            for entity_type in entity_types:
                tags |= {f"B-{entity_type}", f"I-{entity_type}"}
        return sorted(tags, key=lambda tag: (tag != OUTSIDE, tag[2:] if _is_bio_tag(tag) else tag, tag))

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark entities (BIO), rather than each word by itself."""
        return any(_is_bio_tag(tag) for sentence in self.sentences for tag in sentence.tags)

    def tag_ids(self, tags: Sequence[str]) -> list[NDArray[np.int64]]:
        """Index of each word's tag among the tags; raise `DataError` for a tag that is not one of them."""
        id_of = {tag: tag_id for tag_id, tag in enumerate(tags)}
        for sentence in self.sentences:
            for tag in sentence.tags:
                if tag not in id_of:
                    raise DataError(
                        f"the tag {tag!r:.80} is not one that was learned{nearest(tag, id_of)}",
                        location=sentence.location,
                        advice=f"there are {format_names(tags)}",
                    )
        return [np.array([id_of[tag] for tag in sentence.tags], dtype=np.int64) for sentence in self.sentences]

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> TaggedSentences:
        """Sentences at these indices, with their own digest."""
        sentences = [self.sentences[index] for index in indices]
        return replace(self, sentences=sentences, digest=_digest(sentences))


def _digest(sentences: Sequence[TaggedSentence]) -> str:
    words = [" ".join(sentence.words) for sentence in sentences]
    tags = [" ".join(sentence.tags) for sentence in sentences]
    return digest_columns(words, tags)


def _is_bio_tag(tag: str) -> bool:
    return tag[:2] in ("B-", "I-") and len(tag) > 2


def conll_lines(sentences: Iterable[tuple[Sequence[str], Sequence[object]]]) -> Iterator[str]:
    r"""Yield the lines of CoNLL columns: each word with its tag, and a blank line after each sentence.

    >>> list(conll_lines([(("a", "("), (0, 1))]))
    ['a\t0', '(\t1', '']
    """
    for words, tags in sentences:
        yield from (f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True))
        yield ""


def read_tagged(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, reject_folder: str | Path | None = None
) -> TaggedSentences:
    """Read the sentences of all files.

    With `config.lenient`, faulty sentences go to `<name>.rejected.jsonl`.
    """
    if not paths:
        raise UsageError("no file of tagged sentences: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    entries: list[tuple[str, DataRow, TaggedSentence, TaggedSentence]] = []  # as converted, and as written
    notes: list[str] = []
    accepted: list[TaggedSentence] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, reject_folder))
        for name in names:
            stream = stack.enter_context(open_bytes(name))
            rows = list(_iter_sentences(name, config, stream))
            converted, file_notes = _convert_tags([sentence for _, sentence in rows], name)
            notes += file_notes
            entries += [
                (name, row, sentence, written) for (row, written), sentence in zip(rows, converted, strict=True)
            ]
        # All files are read before any tag is checked: one BIO tag anywhere decides the scheme of all.
        has_entities = any(_is_bio_tag(tag) for _, _, sentence, _ in entries for tag in sentence.tags)
        for name, row, sentence, written in entries:
            if has_entities and not row.fault:
                row = row._replace(fault=find_bio_fault(sentence.tags, row.line, written=written.tags))
            if ledger.accept(row, [row.raw], name):
                accepted.append(sentence)
    ledger.finish()
    return TaggedSentences(
        accepted,
        _digest(accepted),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        reject_file=ledger.reject_file,
        notes=tuple(notes),
    )


def _convert_tags(sentences: Sequence[TaggedSentence], name: str) -> tuple[Sequence[TaggedSentence], list[str]]:
    """Convert the tags of a file to BIO, with a note, if they are in another scheme that is known."""
    scheme = detect_scheme([sentence.tags for sentence in sentences])
    if scheme is None:
        return sentences, []
    convert = iob1_to_bio if scheme == "IOB1" else _replace_prefixes
    converted = [replace(sentence, tags=convert(sentence.tags)) for sentence in sentences]
    return converted, [f"{name}: the tags are {scheme}; they are converted to BIO (B-x, then I-x)"]


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str | None:
    """Name of the scheme of entity tags, where it is known and not BIO.

    IOB1 has entities that begin with I-, and B- only where an entity of the same type precedes.

    >>> detect_scheme([["I-x", "O", "I-x", "B-x"]]), detect_scheme([["S-x", "O"]]), detect_scheme([["B-x", "I-x"]])
    ('IOB1', 'IOBES', None)
    """
    tags = {tag for sentence in sentences for tag in sentence} - {OUTSIDE}
    if not tags or not all(tag[1:2] == "-" and len(tag) > 2 for tag in tags):
        return None
    prefixes = {tag[0] for tag in tags}
    for scheme, scheme_prefixes in _SINGLE_WORD_SCHEMES.items():
        if prefixes <= {*scheme_prefixes} and not prefixes <= {"B", "I"}:
            return scheme
    return "IOB1" if prefixes <= {"B", "I"} and _is_iob1(sentences) else None


def _is_iob1(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether some entity begins with I-, and B- occurs only after an entity of the same type."""
    begins_inside = False
    for sentence in sentences:
        for previous, tag in pairwise((OUTSIDE, *sentence)):
            follows_type = previous != OUTSIDE and previous[2:] == tag[2:]
            if tag.startswith("B-") and not follows_type:
                return False
            begins_inside |= tag.startswith("I-") and not follows_type
    return begins_inside


def iob1_to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert IOB1 tags to BIO.

    >>> iob1_to_bio(["I-x", "I-x", "B-x", "I-y", "O"])
    ('B-x', 'I-x', 'B-x', 'B-y', 'O')
    """
    converted = []
    for previous, tag in pairwise((OUTSIDE, *tags)):
        begins = tag != OUTSIDE and (previous == OUTSIDE or previous[2:] != tag[2:])
        converted.append(f"B-{tag[2:]}" if begins else tag)
    return tuple(converted)


def _replace_prefixes(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert IOBES or BILOU tags to BIO."""
    return tuple(tag if tag == OUTSIDE else _BIO_OF_PREFIX[tag[0]] + tag[1:] for tag in tags)


def find_bio_fault(tags: Sequence[str], line: int = 1, *, written: Sequence[str] | None = None) -> Fault | None:
    """Fault of the first tag that breaks the BIO scheme, if there is one; each word has its own line.

    `written` are the tags as the file has them, for the message.

    >>> find_bio_fault(["B-person", "I-place"]).what
    'I-place follows B-person: I-place needs B-place or I-place before it'
    """
    previous = OUTSIDE
    written_tags = tags if written is None else written
    for index, tag in enumerate(tags):
        line_number = line + index
        if tag != OUTSIDE and not _is_bio_tag(tag):
            what = f"{tag!r:.80} is not a BIO tag"
            return Fault(line_number, 0, kind="unknown tag", what=what, advice=_BIO_ADVICE)
        is_inside = tag.startswith("I-")
        if is_inside and (previous == OUTSIDE or previous[2:] != tag[2:]):
            name = written_tags[index]
            before = written_tags[index - 1] if index else OUTSIDE
            what = f"{name} follows {before}: {name} needs B-{tag[2:]} or I-{tag[2:]} before it"
            return Fault(line_number, 0, kind="inside without beginning", what=what, advice=_BIO_ADVICE)
        previous = tag
    return None


def _iter_sentences(name: str, config: ReadConfig, stream: BinaryIO) -> Iterator[tuple[DataRow, TaggedSentence]]:
    """Yield each sentence as a row for the ledger and as words with tags."""
    columns = _ConllColumns(name, config)
    sentence_lines: list[Line] = []
    for line in iter_checked_lines(stream, name, config.encoding):
        is_boundary = not line.fault and (not line.text.strip() or line.text.startswith(DOCUMENT_START))
        if is_boundary:
            if sentence_lines:
                yield columns.parse_sentence(sentence_lines)
            sentence_lines = []
        elif line.fault or not columns.is_comment(line):
            sentence_lines.append(line)
    if sentence_lines:
        yield columns.parse_sentence(sentence_lines)


class _ConllColumns:
    """Columns of words and tags in a file; its first line of data decides how many columns there are."""

    def __init__(self, name: str, config: ReadConfig) -> None:
        self.name = name
        self.config = config
        self.is_tab_separated = False
        self.num_columns = 0  # 0: not known yet
        self.word_column = 0
        self.tag_column = -1

    def is_comment(self, line: Line) -> bool:
        """Whether a line is a comment."""
        if not line.text.startswith("#"):
            return False
        if not self.num_columns:
            return "\t" not in line.text
        return len(self._split(line.text)) != self.num_columns

    def _split(self, text: str) -> list[str]:
        return text.split("\t") if self.is_tab_separated else text.split()

    def _detect(self, line: Line) -> None:
        """Set separator and columns from the first line of data."""
        self.is_tab_separated = "\t" in line.text
        self.num_columns = len(self._split(line.text))
        is_iob2 = ".iob2" in Path(self.name).suffixes
        location = f"{self.name}:{line.line_number}"
        default_word, default_tag = ("2", "3") if is_iob2 else ("1", str(self.num_columns))
        self.word_column = self._column_index("text", self.config.text or default_word, location)
        self.tag_column = self._column_index("label", self.config.label or default_tag, location)
        if self.num_columns < 2:
            raise DataError(
                "one column where a word and its tag are expected",
                location=location,
                advice="put a tab or a space between them",
            )

    def _column_index(self, role: str, column: str, location: str) -> int:
        if not column.isdecimal() or not 1 <= int(column) <= self.num_columns:
            raise DataError(
                f"no column {column!r:.40} for --{role}",
                location=location,
                advice=f"columns are named by number, and there are {self.num_columns}",
            )
        return int(column) - 1

    def parse_sentence(self, lines: Sequence[Line]) -> tuple[DataRow, TaggedSentence]:
        """Row for the ledger, and words with tags; these are empty if the row has a fault."""
        words: list[str] = []
        tags: list[str] = []
        first_line = lines[0].line_number
        location = f"{self.name}:{first_line}"
        raw = b"\n".join(line.raw for line in lines)
        for line in lines:
            cells = self._parse_cells(line)
            if isinstance(cells, Fault):
                return DataRow(first_line, raw, (), cells), TaggedSentence((), (), location)
            word, tag = cells
            words.append(word)
            tags.append(tag)
        return DataRow(first_line, raw, (), None), TaggedSentence(tuple(words), tuple(tags), location)

    def _parse_cells(self, line: Line) -> tuple[str, str] | Fault:
        """Word and tag of a line, or its fault."""
        if line.fault:
            return line.fault
        if not self.num_columns:
            self._detect(line)
        cells = self._split(line.text)
        if len(cells) != self.num_columns:
            separator = "tabs" if self.is_tab_separated else "white space"
            what = (
                f"{format_count(len(cells), 'column')} where {self.num_columns} are expected (separated by {separator})"
            )
            return Fault(line.line_number, 0, kind="wrong number of columns", what=what, advice="correct the line")
        word = cells[self.word_column].strip()
        tag = cells[self.tag_column].strip()
        if not word or not tag:
            what = "the word or its tag is blank"
            return Fault(line.line_number, 0, kind="blank cell", what=what, advice="fill it in")
        return word, tag


def check_tags(rows: TaggedSentences, name: str) -> list[str]:
    """Tags to learn; raise `DataError` if there are fewer than two."""
    tags = rows.tags
    if len(tags) < 2:
        raise DataError(
            f"all words have the tag {tags[0]!r:.80}",
            location=name,
            advice="at least two are needed; is --label the right column?",
        )
    return tags


def hold_out_sentences(rows: TaggedSentences) -> tuple[TaggedSentences, TaggedSentences]:
    """Split off a small validation split; it depends on nothing but the data. Equal sentences are in one split."""
    distinct = sorted({sentence.words for sentence in rows.sentences})
    count = round(min(HELD_OUT_FRACTION * len(distinct), MAX_HELD_OUT))
    if not count or len(distinct) < 2:
        raise UsageError(f"{len(rows)} sentences are too few to hold some out: set validation data with --valid")
    rng = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=RngPurpose.HOLD_OUT)
    held_out = {distinct[index] for index in rng.permutation(len(distinct))[:count]}
    train = [index for index, sentence in enumerate(rows.sentences) if sentence.words not in held_out]
    valid = [index for index, sentence in enumerate(rows.sentences) if sentence.words in held_out]
    return rows.select(train), rows.select(valid)


def tag_counts(sentences: TaggedSentences) -> Mapping[str, int]:
    """Number of entities of each type, or of words of each tag where tags do not mark entities."""
    prefix = "B-" if sentences.has_entities else ""
    counts: Counter[str] = Counter()
    for sentence in sentences.sentences:
        counted_tags = [tag for tag in sentence.tags if tag.startswith(prefix) and tag != OUTSIDE]
        counts.update(tag.removeprefix(prefix) for tag in counted_tags)
    return dict(sorted(counts.items()))
