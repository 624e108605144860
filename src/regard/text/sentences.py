"""Sentences, words and phrases in running text, by rule; what stands between them is kept to the last character."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Signs that end a sentence where white space follows, and those that end it whatever follows.
_STOPS = ".!?…؟۔։።"
_FULL_STOPS = "。！？｡．।॥။៕។"
_DENSE = "。！？｡．」』】）〉》"  # needs no space after it
_CLOSING = "\"'”’“‘»›«‹)]}」』】）〉》"
_OPENING = "\"'“‘„‚«‹»›([{「『【（〈《¿¡—–-"
_BREAK = re.compile(rf"[{_STOPS}]+[{re.escape(_CLOSING)}]*(?=\s)|[{_FULL_STOPS}]+[{re.escape(_CLOSING)}]*")
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]")  # J, U.S, z.B, c.-à.-d, without the last stop
_VISIBLE = re.compile(r"\S")
_LINE = re.compile(r"\r\n|\n|\r")

# What comes before a full stop without ending a sentence.
_TITLES = re.compile(
    "mr|mrs|ms|dr|prof|rev|hon|sen|gov|capt|cmdr|lt|sgt|messrs|mme|mlle|mgr|hr|frl|dipl|ing|dott|sra|srta|dhr|mevr|drs"
    "|st|hl|vs|vgl|bzw|ggf|inkl|exkl|evtl|sog|cf|dept|approx|ca",
    re.IGNORECASE,
)
_SHORT = 5  # letters; a shorter word before a full stop and a number is taken for an abbreviation
# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, Japanese, Chinese.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Sentences:
    """The sentences of a text and the white space around them: one gap more than sentences.

    >>> Sentences(["One.", "Two."], ["", "  ", "\\n"]).text()
    'One.  Two.\\n'
    """

    sentences: list[str]
    separators: list[str]

    def text(self) -> str:
        """Return the text that they were."""
        return self.separators[0] + "".join(map("".join, zip(self.sentences, self.separators[1:], strict=True)))

    def replace(self, sentences: Sequence[str]) -> Sentences:
        """Return other sentences in these ones' places.

        Where no gap was, a space comes between them, unless the sign at the end needs none.

        >>> split_sentences("今天好。明天也好。").replace(["Today.", "Tomorrow."]).text()
        'Today. Tomorrow.'
        """
        bare = [
            not gap and answer[-1:] not in _DENSE for gap, answer in zip(self.separators[1:-1], sentences, strict=False)
        ]
        gaps = [" " if space else gap for space, gap in zip(bare, self.separators[1:-1], strict=True)]
        return Sentences(list(sentences), [self.separators[0], *gaps, *self.separators[1:][-1:]])

    def split_each(self, split: Callable[[str], Sentences]) -> Sentences:
        """Return the text with each sentence split further.

        >>> Sentences(["a b", "c"], ["", " ", "."]).split_each(lambda one: _cut(one, [0, 1, len(one)]))
        Sentences(sentences=['a', 'b', 'c'], separators=['', ' ', ' ', '.'])
        """
        sentences, gaps = [], [self.separators[0]]
        for one, gap in zip(map(split, self.sentences), self.separators[1:], strict=True):
            sentences += one.sentences
            gaps[-1] += one.separators[0]
            gaps += one.separators[1:]
            gaps[-1] += gap
        return Sentences(sentences, gaps)


def split_lines(text: str) -> Sentences:
    """Return the lines of a text that are not blank.

    >>> split_lines("a. b.\\n\\n c")
    Sentences(sentences=['a. b.', 'c'], separators=['', '\\n\\n ', ''])
    """
    return _cut(text, [0, *(line.start() for line in _LINE.finditer(text)), len(text)])


def split_sentences(text: str) -> Sentences:
    """Return the sentences of a text; lines are never joined, and what is not surely an end is not cut.

    >>> split_sentences("Dr. Who came. „Wer?“ fragte sie.  今天好。明天也好。").sentences
    ['Dr. Who came.', '„Wer?“ fragte sie.', '今天好。', '明天也好。']
    >>> split_sentences(" a.\\n\\nb ").separators
    [' ', '\\n\\n', ' ']
    """
    return split_lines(text).split_each(lambda line: _cut(line, [0, *_ends(line), len(line)]))


def _cut(text: str, cuts: Sequence[int]) -> Sentences:
    """Return the text cut at these places, white space moved to the gaps and blank parts into them."""
    parts, gaps, done = [], [], 0
    for first, last in pairwise(cuts):
        bare = text[first:last].strip()
        if bare:
            begin = text.index(bare, first)
            gaps.append(text[done:begin])
            parts.append(bare)
            done = begin + len(bare)
    return Sentences(parts, [*gaps, text[done:]])


def split_long(text: str, spans: Sequence[tuple[int, int]], max_tokens: int) -> Sentences:
    """Return one long sentence in parts of about `most` tokens or fewer, cut at commas, else spaces, else anywhere.

    `spans` are the characters of each of its tokens.

    >>> split_long("one two, three four", [(0, 3), (4, 7), (7, 8), (9, 14), (15, 19)], 4).sentences
    ['one two,', 'three four']
    """
    cuts, first = [0], 0
    while len(spans) - first > max_tokens:
        begin, latest = spans[first][0], spans[first + max_tokens][0]
        cut = _best_cut(text, begin, max(latest, begin + 1))
        cuts.append(cut)
        first = next((number for number in range(first + 1, len(spans)) if spans[number][1] > cut), len(spans))
    return _cut(text, [*cuts, len(text)])


def _best_cut(text: str, begin: int, latest: int) -> int:
    """Return the place of the last good cut before `latest`: after a comma, or at a space, in the later half."""
    middle = begin + (latest - begin) // 2
    for pattern in (r"[;:,，、；：،؛][" + re.escape(_CLOSING) + r"]*\s|[，、；：]", r"\s"):
        found = [match.end() for match in re.finditer(pattern, text[middle:latest])]
        if found:
            return middle + found[-1]
    spaces = [match.end() for match in re.finditer(r"\s", text[begin:middle])]
    return begin + spaces[-1] if spaces else latest


def _ends(line: str) -> Iterator[int]:
    """Return where sentences of one line end, its own end left out."""
    for found in _BREAK.finditer(line):
        more = _VISIBLE.search(line, found.end())
        if more is None:
            return
        before, rest = line[max(0, found.start() - 32) : found.start()], line[more.start() : more.start() + 8]
        if found[0][0] in _FULL_STOPS or _is_end(before, found[0], rest):
            yield found.end()


def _is_end(before: str, sign: str, rest: str) -> bool:
    """Whether a sentence ends at this sign with white space after it."""
    following = rest.lstrip(_OPENING)[:1] or rest[:1]
    if following.islower() or following in ",;:":
        return False
    if sign != ".":
        return True
    last = before.split()[-1].lstrip(_OPENING) if before.split() else ""
    if last.isdigit() and (len(last) <= 2 or following.isdigit()):  # "am 3. März", "1. First", "2017. 3. 3."
        return False
    if _INITIALS.fullmatch(last) and last != "I" and (len(last) > 1 or last.isupper()):
        return False
    if following.isdigit() and len(last) <= _SHORT:  # "No. 7", "9 avr. 1924", "30 авг. 1996": an abbreviation, likely
        return False
    return not _TITLES.fullmatch(last)


def is_word_character(character: str) -> bool:
    """Whether a character joins others to a word, in a script that puts spaces between words.

    >>> [is_word_character(letter) for letter in ("a", "é", "7", "-", "", "犬")]
    [True, True, True, False, False, False]
    """
    if not character or _UNSPACED.match(character):
        return False
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def find_phrase(text: str, phrase: str, start: int = 0) -> int:
    """Return where a phrase stands in a text as whole words, from a place on; −1: nowhere.

    >>> find_phrase("hot dogs, a dog", "dog"), find_phrase("我的狗很大", "狗")
    (12, 2)
    """
    place = text.find(phrase, start) if phrase else -1
    while place >= 0:
        stop = place + len(phrase)
        inside = place > 0 and is_word_character(phrase[0]) and is_word_character(text[place - 1])
        if not inside and not (is_word_character(phrase[-1]) and is_word_character(text[stop : stop + 1])):
            break
        place = text.find(phrase, place + 1)
    return place
