"""Sentences, words and phrases of running text, by rule; the white space between them is preserved exactly."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Signs that end a sentence if white space follows, and those that end it whatever follows.
_STOPS = ".!?…؟۔։።"
_FULL_STOPS = "。！？｡．।॥။៕។"
_WIDE_SIGNS = "。！？｡．」』】）〉》"  # need no space after them
_CLOSING = "\"'”’“‘»›«‹)]}」』】）〉》"
_OPENING = "\"'“‘„‚«‹»›([{「『【（〈《¿¡—–-"
_BREAK = re.compile(rf"[{_STOPS}]+[{re.escape(_CLOSING)}]*(?=\s)|[{_FULL_STOPS}]+[{re.escape(_CLOSING)}]*")
_COMMA = re.compile(r"[;:,，、；：،؛][" + re.escape(_CLOSING) + r"]*\s|[，、；：]")
_WHITE_SPACE = re.compile(r"\s")
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]")  # J, U.S, z.B, c.-à.-d, without the last stop
_VISIBLE = re.compile(r"\S")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")

# What comes before a full stop without ending a sentence.
_TITLES = re.compile(
    "mr|mrs|ms|dr|prof|rev|hon|sen|gov|capt|cmdr|lt|sgt|messrs|mme|mlle|mgr|hr|frl|dipl|ing|dott|sra|srta|dhr|mevr|drs"
    "|st|hl|vs|vgl|bzw|ggf|inkl|exkl|evtl|sog|cf|dept|approx|ca",
    re.IGNORECASE,
)
_MAX_ABBREVIATION = 5  # letters; a word of at most these before a full stop and a number counts as an abbreviation
_MAX_ORDINAL_DIGITS = 2
_CONTEXT_BEFORE = 32  # characters before a sign that decide whether it ends a sentence
_CONTEXT_AFTER = 8
# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Japanese, Chinese.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Sentences:
    """The sentences of a text and the white space around them: one separator more than sentences.

    >>> Sentences(["One.", "Two."], ["", "  ", "\\n"]).text()
    'One.  Two.\\n'
    """

    sentences: list[str]
    separators: list[str]

    def text(self) -> str:
        """The whole text."""
        return self.separators[0] + "".join(map("".join, zip(self.sentences, self.separators[1:], strict=True)))

    def replace(self, sentences: Sequence[str]) -> Sentences:
        """Other sentences with the same separators.

        An empty separator becomes a space, unless the sentence before it ends with a sign that needs none.

        >>> split_sentences("今天好。明天也好。").replace(["Today.", "Tomorrow."]).text()
        'Today. Tomorrow.'
        """
        first = self.separators[0]
        inner = self.separators[1:-1]
        last = self.separators[1:][-1:]  # none where there is no sentence
        filled = []
        for separator, sentence in zip(inner, sentences[: len(inner)], strict=True):
            needs_space = not separator and sentence[-1:] not in _WIDE_SIGNS
            filled.append(" " if needs_space else separator)
        return Sentences(list(sentences), [first, *filled, *last])

    def split_each(self, split: Callable[[str], Sentences]) -> Sentences:
        """Split every sentence further.

        >>> Sentences(["a b", "c"], ["", " ", "."]).split_each(lambda text: _split_at(text, [0, 1, len(text)]))
        Sentences(sentences=['a', 'b', 'c'], separators=['', ' ', ' ', '.'])
        """
        sentences: list[str] = []
        separators = [self.separators[0]]
        for sentence, separator in zip(self.sentences, self.separators[1:], strict=True):
            inner = split(sentence)
            sentences += inner.sentences
            separators[-1] += inner.separators[0]
            separators += inner.separators[1:]
            separators[-1] += separator
        return Sentences(sentences, separators)


def split_lines(text: str) -> Sentences:
    """Lines of a text that are not blank.

    >>> split_lines("a. b.\\n\\n c")
    Sentences(sentences=['a. b.', 'c'], separators=['', '\\n\\n ', ''])
    """
    return _split_at(text, [0, *(line_break.start() for line_break in _LINE_BREAK.finditer(text)), len(text)])


def split_sentences(text: str) -> Sentences:
    """Sentences of a text; lines are never joined, and a doubtful end of a sentence is none.

    >>> split_sentences("Dr. Who came. „Wer?“ fragte sie.  今天好。明天也好。").sentences
    ['Dr. Who came.', '„Wer?“ fragte sie.', '今天好。', '明天也好。']
    >>> split_sentences(" a.\\n\\nb ").separators
    [' ', '\\n\\n', ' ']
    """
    return split_lines(text).split_each(lambda line: _split_at(line, [0, *_iter_sentence_ends(line), len(line)]))


def _split_at(text: str, boundaries: Sequence[int]) -> Sentences:
    """Split a text at these offsets; white space, also that of blank parts, goes to the separators."""
    sentences = []
    separators = []
    end = 0  # of the last sentence
    for start, stop in pairwise(boundaries):
        sentence = text[start:stop].strip()
        if sentence:
            sentence_start = text.index(sentence, start)
            separators.append(text[end:sentence_start])
            sentences.append(sentence)
            end = sentence_start + len(sentence)
    return Sentences(sentences, [*separators, text[end:]])


def split_long(text: str, spans: Sequence[tuple[int, int]], max_tokens: int) -> Sentences:
    """Split one long sentence into parts of about `max_tokens` tokens or fewer: at commas, else spaces, else anywhere.

    `spans` are the characters of each of its tokens.

    >>> split_long("one two, three four", [(0, 3), (4, 7), (7, 8), (9, 14), (15, 19)], 4).sentences
    ['one two,', 'three four']
    """
    boundaries = [0]
    token = 0  # first of the current part
    while len(spans) - token > max_tokens:
        start = spans[token][0]
        latest = spans[token + max_tokens][0]
        boundary = _best_boundary(text, start, max(latest, start + 1))
        boundaries.append(boundary)
        following = (index for index in range(token + 1, len(spans)) if spans[index][1] > boundary)
        token = next(following, len(spans))
    return _split_at(text, [*boundaries, len(text)])


def _best_boundary(text: str, start: int, latest: int) -> int:
    """Last good offset to split at: after a comma or a space in the second half, else after any space."""
    middle = start + (latest - start) // 2
    for pattern in (_COMMA, _WHITE_SPACE):
        ends = [match.end() for match in pattern.finditer(text[middle:latest])]
        if ends:
            return middle + ends[-1]
    ends = [match.end() for match in _WHITE_SPACE.finditer(text[start:middle])]
    return start + ends[-1] if ends else latest


def _iter_sentence_ends(line: str) -> Iterator[int]:
    """Yield the offsets at which sentences of one line end, except its own end."""
    for sign in _BREAK.finditer(line):
        following = _VISIBLE.search(line, sign.end())
        if following is None:
            return
        before = line[max(0, sign.start() - _CONTEXT_BEFORE) : sign.start()]
        after = line[following.start() : following.start() + _CONTEXT_AFTER]
        if sign[0][0] in _FULL_STOPS or _is_sentence_end(before, sign[0], after):
            yield sign.end()


def _is_sentence_end(before: str, sign: str, after: str) -> bool:
    """Whether a sentence ends at this sign, with white space after it."""
    following = after.lstrip(_OPENING)[:1] or after[:1]
    if following.islower() or following in ",;:":
        return False
    if sign != ".":
        return True
    words = before.split()
    last_word = words[-1].lstrip(_OPENING) if words else ""
    # An ordinal: "am 3. März", "1. First", "2017. 3. 3."
    if last_word.isdigit() and (len(last_word) <= _MAX_ORDINAL_DIGITS or following.isdigit()):
        return False
    is_initial = _INITIALS.fullmatch(last_word) and last_word != "I"
    if is_initial and (len(last_word) > 1 or last_word.isupper()):
        return False
    # Probably an abbreviation: "No. 7", "9 avr. 1924", "30 авг. 1996"
    if following.isdigit() and len(last_word) <= _MAX_ABBREVIATION:
        return False
    return not _TITLES.fullmatch(last_word)


def is_word_character(character: str) -> bool:
    """Whether a character joins others into a word, in a script with spaces between words.

    >>> [is_word_character(letter) for letter in ("a", "é", "7", "-", "", "犬")]
    [True, True, True, False, False, False]
    """
    if not character or _UNSPACED.match(character):
        return False
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def find_phrase(text: str, phrase: str, start: int = 0) -> int:
    """Offset of the first occurrence of a phrase as whole words, from `start` on; −1 if there is none.

    >>> find_phrase("hot dogs, a dog", "dog"), find_phrase("我的狗很大", "狗")
    (12, 2)
    """
    offset = text.find(phrase, start) if phrase else -1
    while offset >= 0:
        end = offset + len(phrase)
        continues_before = offset > 0 and is_word_character(phrase[0]) and is_word_character(text[offset - 1])
        continues_after = is_word_character(phrase[-1]) and is_word_character(text[end : end + 1])
        if not continues_before and not continues_after:
            break
        offset = text.find(phrase, offset + 1)
    return offset
