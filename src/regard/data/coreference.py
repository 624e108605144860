"""Sentences with a pronoun and two nouns, of which one is its antecedent, in columns; every fault has its location.

The columns are `sentence`, `pronoun`, `right` and `wrong`: the index of the pronoun among the words, from 0, its
antecedent, and the noun that it could be mistaken to mean. Words are separated by white space. A file may name the
columns in its first row, and may then have others, too. Of these, `scenario` is read: it names what sentences with the
same templates or nouns have in common. Two successive sentences that differ in one word, and whose nouns change places,
are a pair (Levesque et al. 2012).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.config.data import ReadConfig
from regard.data.columns import Column, DataRow, find_field_fault, read_rows
from regard.data.ledger import Ledger
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.data.pairs import detect_format
from regard.errors import DataError, UsageError

COLUMNS: Sequence[Column] = (("sentence", ""), ("pronoun", ""), ("right", ""), ("wrong", ""))
OPTIONAL_COLUMNS = ("scenario",)
HEADER = (*(role for role, _ in COLUMNS), *OPTIONAL_COLUMNS)
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")  # within a word that punctuation may surround
Span = tuple[int, int]  # characters


class CoreferenceRow(NamedTuple):
    """One row of a file."""

    sentence: str
    pronoun: int  # index among the words, from 0
    right: str  # the antecedent
    wrong: str  # the other noun
    scenario: str = ""  # that it shares with other sentences


@dataclass(frozen=True)
class CoreferenceSentence:
    """A sentence with the character spans of its pronoun, of the antecedent and of the other noun.

    >>> row = CoreferenceRow("The animal did not cross the street because it was too tired.", 8, "animal", "street")
    >>> sentence = CoreferenceSentence.from_row(row)
    >>> sentence.pronoun, sentence.right, sentence.wrong, sentence.nearest_score
    ((44, 46), (4, 10), (29, 35), 0.0)
    """

    row: CoreferenceRow
    pronoun: Span
    right: Span
    wrong: Span
    location: str = ""  # file:line

    @classmethod
    def from_row(cls, row: CoreferenceRow, location: str = "") -> CoreferenceSentence:
        """Find the spans; raise `ValueError` with the reason where a noun or the pronoun is not in the sentence."""
        spans = word_spans(row.sentence)
        if not 0 <= row.pronoun < len(spans):
            raise ValueError(f"no word {row.pronoun}: the words of the sentence are 0 to {len(spans) - 1}")
        right, wrong = (_find_noun(row.sentence, spans, noun) for noun in (row.right, row.wrong))
        if len({spans[row.pronoun], right, wrong}) < 3:
            raise ValueError("pronoun, right and wrong noun must be three words")
        return cls(row, spans[row.pronoun], right, wrong, location=location)

    @property
    def text(self) -> str:
        """The sentence."""
        return self.row.sentence

    @property
    def nearest_score(self) -> float:
        """Score of the baseline that takes the noun nearest to the pronoun: 1 if it is right, 0.5 on a tie, else 0."""
        right = _gap(self.right, self.pronoun)
        wrong = _gap(self.wrong, self.pronoun)
        return 0.5 if right == wrong else float(right < wrong)

    @property
    def pronoun_is_last(self) -> bool:
        """Whether the pronoun follows both nouns."""
        return self.pronoun[0] >= max(self.right[1], self.wrong[1])

    def is_paired_with(self, other: CoreferenceSentence) -> bool:
        """Whether the sentences differ in one word, and their nouns change places."""
        words = self.text.split()
        other_words = other.text.split()
        num_changes = sum(word != other_word for word, other_word in zip(words, other_words, strict=False))
        nouns_are_swapped = (self.row.right, self.row.wrong) == (other.row.wrong, other.row.right)
        return nouns_are_swapped and len(words) == len(other_words) and num_changes == 1


def word_spans(text: str) -> list[Span]:
    """Character spans of the words, without the punctuation around them.

    >>> word_spans("It stopped, but…")
    [(0, 2), (3, 10), (12, 15)]
    """
    spans = []
    for match in re.finditer(r"\S+", text):
        word = _WORD.search(match[0])
        spans.append((match.start() + word.start(), match.start() + word.end()) if word else match.span())
    return spans


def _find_noun(text: str, spans: Sequence[Span], noun: str) -> Span:
    matching = [span for span in spans if text[slice(*span)].lower() == noun.lower()]
    if len(matching) != 1:
        raise ValueError(f"the noun {noun!r} occurs {len(matching)} times in the sentence: it must occur once")
    return matching[0]


def _gap(first: Span, second: Span) -> int:
    """Number of characters between two spans."""
    return max(first[0], second[0]) - min(first[1], second[1])


def group_pairs(sentences: Sequence[CoreferenceSentence]) -> list[list[int]]:
    """Indices of the sentences of each pair, and of each sentence that has no partner."""
    groups: list[list[int]] = []
    for index, sentence in enumerate(sentences):
        last = groups[-1] if groups else []
        if len(last) == 1 and sentence.is_paired_with(sentences[last[0]]):
            last.append(index)
        else:
            groups.append([index])
    return groups


def read_coreference(paths: Sequence[str | Path], config: ReadConfig | None = None) -> list[CoreferenceSentence]:
    """Read the sentences of all files. With `config.lenient`, faulty rows go to `<name>.rejected.jsonl`."""
    if not paths:
        raise UsageError("no file of sentences with pronouns: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    sentences: list[CoreferenceSentence] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config))
        for name in names:
            for row in _read_rows(name, config, stack):
                sentence = None if row.fault else _parse(row, name)
                if isinstance(sentence, Fault):
                    row = row._replace(fault=sentence)
                if ledger.accept(row, [row.raw], name) and isinstance(sentence, CoreferenceSentence):
                    sentences.append(sentence)
    ledger.finish()
    return sentences


def _read_rows(name: str, config: ReadConfig, stack: ExitStack) -> Iterator[DataRow]:
    format = detect_format(name, config)
    if format == "lines":
        raise DataError(
            f"plain lines have no columns {', '.join(role for role, _ in COLUMNS)}",
            location=name,
            advice="`regard data make coreference --out FILE.tsv` writes such a table; --format names its format",
        )
    lines = iter_checked_lines(stack.enter_context(open_bytes(name)), name, config.encoding)
    for row in read_rows(lines, format, COLUMNS, config, name, optional=OPTIONAL_COLUMNS):
        yield row if row.fault else row._replace(fault=find_field_fault(row))


def _parse(row: DataRow, name: str) -> CoreferenceSentence | Fault:
    sentence, pronoun, right, wrong, scenario = (field.strip() for field in row.fields)
    if not pronoun.isdecimal():
        what = f"the pronoun {pronoun!r:.40} is not an index: a word's number, from 0, is needed"
        return Fault(row.line, 0, kind="wrong pronoun", what=what, advice="correct the row")
    try:
        return CoreferenceSentence.from_row(
            CoreferenceRow(sentence, int(pronoun), right=right, wrong=wrong, scenario=scenario),
            location=f"{name}:{row.line}",
        )
    except ValueError as error:
        return Fault(row.line, 0, kind="wrong noun or pronoun", what=str(error), advice="correct the row")
