"""Read sentences whose words have a tag each (CoNLL columns): strictly, every fault with its place.

One word a line, columns parted by tabs or white space, a blank line between sentences. Words stand in the first column
and tags in the last; in files named `.iob2` in the second and third. Lines that begin with # and have no columns are
comments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import epoch_rng
from regard.data.columns import DataRow
from regard.data.labelled import HELD_OUT_MOST, HELD_OUT_SHARE
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Fault, Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError, nearest
from regard.formatting import format_names

OUTSIDE, DOCUMENT = "O", "-DOCSTART-"
_ADVICE = "an entity of type x is B-x and then I-x, all else is O"


@dataclass(frozen=True)
class TaggedSentence:
    """Words and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    location: str = ""  # file:line

    @property
    def text(self) -> str:
        """The words with a space between them."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences in the order of the files."""

    sentences: list[TaggedSentence]
    digest: str  # SHA-256 over all sentences in their order
    num_read: int = 0  # accepted + rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected sentences are

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def of(cls, sentences: Sequence[TaggedSentence]) -> TaggedSentences:
        """Return sentences that come from no file."""
        return cls(list(sentences), _digest(sentences), len(sentences))

    @property
    def tags(self) -> list[str]:
        """The tags that occur, O first, then by type with its beginning before its inside.

        >>> TaggedSentences.of([TaggedSentence(("in", "New", "York"), ("O", "B-place", "I-place"))]).tags
        ['O', 'B-place', 'I-place']
        """
        found = {tag for sentence in self.sentences for tag in sentence.tags}
        if any(map(_in_scheme, found)):  # a type that only begins in the data may go on elsewhere
            kinds = {tag[2:] for tag in found if tag != OUTSIDE}
            found = {OUTSIDE} | {f"{part}-{kind}" for kind in kinds for part in "BI"}
        return sorted(found, key=lambda tag: (tag != OUTSIDE, tag[2:] if _in_scheme(tag) else tag, tag))

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark entities by their beginning and inside, rather than each word for itself."""
        return any(_in_scheme(tag) for sentence in self.sentences for tag in sentence.tags)

    def tag_ids(self, tags: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return each word's tag as its place among the tags, or say which sentence has a tag that is none of them."""
        known = {tag: place for place, tag in enumerate(tags)}
        for sentence in self.sentences:
            for tag in sentence.tags:
                if tag not in known:
                    raise DataError(
                        f"the tag {tag!r:.80} is not one that was learned{nearest(tag, known)}",
                        location=sentence.location,
                        advice=f"there are {format_names(tags)}",
                    )
        return [np.array([known[tag] for tag in sentence.tags], dtype=np.int64) for sentence in self.sentences]

    def select(self, numbers: Sequence[int] | NDArray[np.int64]) -> TaggedSentences:
        """Return some of the sentences, with a digest of their own."""
        sentences = [self.sentences[number] for number in numbers]
        return replace(self, sentences=sentences, digest=_digest(sentences))


def _digest(sentences: Sequence[TaggedSentence]) -> str:
    return digest_columns(*([" ".join(getattr(one, side)) for one in sentences] for side in ("words", "tags")))


def _in_scheme(tag: str) -> bool:
    return tag[:2] in ("B-", "I-") and len(tag) > 2


def read_tagged(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> TaggedSentences:
    """Return the sentences of all files.

    With `config.lenient`, faulty sentences go to `<name>.rejected.jsonl`.
    """
    if not paths:
        raise UsageError("no file of tagged sentences given: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    found: list[TaggedSentence] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, rejects))
        everything = [
            (name, *item) for name in names for item in _sentences(name, config, stack.enter_context(open_bytes(name)))
        ]
        scheme = any(_in_scheme(tag) for _, _, sentence in everything for tag in sentence.tags)
        for name, row, sentence in everything:
            if scheme and not row.fault:
                row = row._replace(fault=find_bio_fault(sentence.tags, row.line))
            if ledger.accept(row, [row.raw], name):
                found.append(sentence)
    ledger.finish()
    reject_file = str(ledger.path) if ledger.rejected else ""
    return TaggedSentences(found, _digest(found), ledger.num_read, ledger.rejected, reject_file)


def find_bio_fault(tags: Sequence[str], line: int = 1) -> Fault | None:
    """Return what is wrong with tags as beginnings and insides of entities, if anything is; words are lines.

    >>> find_bio_fault(["B-person", "I-place"]).what
    'I-place follows B-person: what is inside an entity follows its beginning'
    """
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if tag != OUTSIDE and not _in_scheme(tag):
            return Fault(line + place, 0, "unknown tag", f"{tag!r:.80} is no tag of this kind", _ADVICE)
        if tag.startswith("I-") and (before == OUTSIDE or before[2:] != tag[2:]):
            what = f"{tag} follows {before}: what is inside an entity follows its beginning"
            return Fault(line + place, 0, "inside without beginning", what, _ADVICE)
        before = tag
    return None


def _sentences(name: str, config: ReadConfig, stream: object) -> Iterator[tuple[DataRow, TaggedSentence]]:
    """Yield each sentence as a row for the ledger and as words with tags."""
    columns = _ConllColumns(name, config)
    waiting: list[Line] = []
    for line in iter_checked_lines(stream, name, config.encoding):  # type: ignore[arg-type]
        if not line.fault and (not line.text.strip() or line.text.startswith(DOCUMENT)):
            if waiting:
                yield columns.sentence(waiting)
            waiting = []
        elif line.fault or not columns.comment(line):
            waiting.append(line)
    if waiting:
        yield columns.sentence(waiting)


class _ConllColumns:
    """Where words and tags stand in the lines of a file; its first line of data says how many columns there are."""

    def __init__(self, name: str, config: ReadConfig) -> None:
        self.name, self.separator = name, None  # type: str, str | None
        self.given = [config.text, config.label]
        self.width = 0
        self.places = (0, -1)

    def comment(self, line: Line) -> bool:
        """Whether a line is a comment."""
        if not line.text.startswith("#"):
            return False
        cells = self._cells(line.text)
        return len(cells) != self.width if self.width else "\t" not in line.text

    def _cells(self, text: str) -> list[str]:
        return text.split("\t") if self.separator else text.split()

    def _begin(self, line: Line) -> None:
        self.separator = "\t" if "\t" in line.text else None
        self.width = len(self._cells(line.text))
        usual = ("2", "3") if ".iob2" in Path(self.name).suffixes else ("1", str(self.width))
        places = []
        for role, given, other in zip(("text", "label"), self.given, usual, strict=True):
            chosen = given or other
            if not chosen.isdecimal() or not 1 <= int(chosen) <= self.width:
                raise DataError(
                    f"no column {chosen!r:.40} for --{role}",
                    location=f"{self.name}:{line.line_number}",
                    advice=f"columns are named by number, and there are {self.width}",
                )
            places.append(int(chosen) - 1)
        if self.width < 2:
            raise DataError(
                "one column where a word and its tag are expected",
                location=f"{self.name}:{line.line_number}",
                advice="put a tab or a space between them",
            )
        self.places = (places[0], places[1])

    def sentence(self, found: Sequence[Line]) -> tuple[DataRow, TaggedSentence]:
        """Return the words and tags of some lines, or what is wrong with them."""
        words, tags = list[str](), list[str]()
        first = found[0].line_number
        raw = b"\n".join(line.raw for line in found)
        for line in found:
            fault = line.fault
            if not fault:
                if not self.width:
                    self._begin(line)
                cells = self._cells(line.text)
                word, tag = ("", "") if len(cells) != self.width else (cells[place].strip() for place in self.places)
                fault = None if word and tag else self._fault(line, cells)
            if fault:
                return DataRow(first, raw, (), fault), TaggedSentence((), (), f"{self.name}:{first}")
            words.append(word)
            tags.append(tag)
        return DataRow(first, raw, (), None), TaggedSentence(tuple(words), tuple(tags), f"{self.name}:{first}")

    def _fault(self, line: Line, cells: Sequence[str]) -> Fault:
        if len(cells) != self.width:
            parted = "tabs" if self.separator else "white space"
            what = f"{len(cells)} column{'s' * (len(cells) != 1)} where {self.width} are expected (parted by {parted})"
            return Fault(line.line_number, 0, "wrong number of columns", what, "mend the line")
        return Fault(line.line_number, 0, "blank cell", "the word or its tag is blank", "fill it in")


def check_tags(rows: TaggedSentences, name: str) -> list[str]:
    """Return the tags to learn, or raise `DataError` where there is but one."""
    tags = rows.tags
    if len(tags) < 2:
        raise DataError(
            f"all words have the tag {tags[0]!r:.80}",
            location=name,
            advice="at least two are needed; is --label the right column?",
        )
    return tags


def hold_out_sentences(rows: TaggedSentences) -> tuple[TaggedSentences, TaggedSentences]:
    """Return the sentences without a small share, and that share, chosen by the data alone; equal ones on one side."""
    keys = [sentence.words for sentence in rows.sentences]
    distinct = sorted(set(keys))
    count = round(min(HELD_OUT_SHARE * len(distinct), HELD_OUT_MOST))
    if not count or len(distinct) < 2:
        raise UsageError(f"{len(rows)} sentences are too few to hold some out: give validation data with --valid")
    drawn = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=2).permutation(len(distinct))[:count]
    held = {distinct[place] for place in drawn}
    sides = [[number for number, key in enumerate(keys) if (key in held) is away] for away in (False, True)]
    return rows.select(sides[0]), rows.select(sides[1])


def tag_counts(sentences: TaggedSentences) -> Mapping[str, int]:
    """Return how many entities of each type there are, or words of each tag where tags mark no entities."""
    mark = "B-" if sentences.has_entities else ""
    found = Counter(
        tag.removeprefix(mark)
        for one in sentences.sentences
        for tag in one.tags
        if tag.startswith(mark) and tag != OUTSIDE
    )
    return dict(sorted(found.items()))
