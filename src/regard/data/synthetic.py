"""Data made exactly and without end: dates and numbers in many languages; copy, reverse and sort of letters.

Numbers spoken word for word have known word links, too.

Numbers spoken in English and, word for word, in German order: a corpus whose word links are known.

German says units before tens: forty two is zwei vierzig here, every word a word. So the links are exact, mostly
straight, and crossed now and then, as between real languages.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from types import ModuleType
from typing import NamedTuple

from regard.data import synthetic
from regard.errors import ConfigError, UsageError, nearest

DATE_LANGUAGES = tuple("cs da de el en es fi fr hu id it ja nl pl pt ro ru sv tr uk".split())
DATE_STYLES = ("medium", "long", "full")  # short ones leave out the century
FIRST_DATE, LAST_DATE = date(1900, 1, 1), date(2099, 12, 31)
NUMBER_LANGUAGES = ("cs", "de", "en", "es", "fi", "fr", "it", "nl", "pl", "pt", "ru", "sv", "tr", "uk")
NUMBER_DIGITS = 6
ALPHABET = "abcdefghijklmnop"
LENGTHS = (3, 12)
SPLITS = ("train", "valid", "test", "all")


class SyntheticPair(NamedTuple):
    """One made pair; `group` is its language, or its length, for results by group."""

    source: str
    target: str
    group: str
    links: tuple[tuple[int, int], ...] = ()  # (source word, target word), where they are known


def generate_pairs(
    kind: str,
    count: int,
    seed: int = 1,
    *,
    split: str = "train",
    languages: Sequence[str] = (),
    lengths: tuple[int, int] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a kind: dates, numbers, spoken, copy, reverse or sort.

    >>> list(generate_pairs("reverse", 2, seed=5))
    [('k d k d c c', 'c c d k d k'), ('g l p e', 'e p l g')]
    """
    rows = generate_rows(kind, count, seed, split=split, languages=languages, lengths=lengths)
    return ((row.source, row.target) for row in rows)


def generate_rows(
    kind: str,
    count: int,
    seed: int = 1,
    *,
    split: str = "train",
    languages: Sequence[str] = (),
    lengths: tuple[int, int] | None = None,
) -> Iterator[SyntheticPair]:
    """Yield made rows; the same arguments give the same rows. `lengths`: fewest and most letters of a row.

    A target belongs to one split for good: a date of the test split is in no language in the training split,
    whatever the seed (`split_of`).
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of made data {kind!r}{nearest(kind, KINDS)}: there are {', '.join(KINDS)}")
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}{nearest(split, SPLITS)}: there are {', '.join(SPLITS)}")
    if count < 0:
        raise UsageError(f"count ({count}) must not be negative")
    if lengths and not 1 <= lengths[0] <= lengths[1]:
        raise UsageError(f"lengths {lengths[0]}-{lengths[1]}: the first must be at least 1 and not above the second")
    draw = KINDS[kind](languages, lengths)
    return _rows(draw, count, Random(f"{kind} {seed} {split}"), split)


def split_of_target(target: str) -> str:
    """Return which split a target belongs to: one in twenty is for validation, one in twenty for testing.

    >>> split_of_target("2017-03-03"), split_of_target("2017-03-05")
    ('train', 'test')
    """
    place = zlib.crc32(target.encode()) % 20
    return {0: "test", 1: "valid"}.get(place, "train")


Draw = Callable[[Random], SyntheticPair]
Lengths = tuple[int, int] | None  # fewest and most letters
Kind = Callable[[Sequence[str], Lengths], Draw]


def _rows(draw: Draw, count: int, random: Random, split: str) -> Iterator[SyntheticPair]:
    while count:
        row = draw(random)
        if split in ("all", split_of_target(row.target)):
            yield row
            count -= 1


def _library(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UsageError(f"this data is made with {package}, which is not installed: pip install {package}") from None


def _languages(given: Sequence[str], known: Sequence[str], allowed: Callable[[str], bool]) -> Sequence[str]:
    for language in given:
        if not allowed(language):
            raise ConfigError(f"unknown language {language!r}{nearest(language, known)}: try {', '.join(known)}")
    return given or known


def _dates(given: Sequence[str], lengths: Lengths) -> Draw:
    """A day as people write it → ISO: viernes, 3 de marzo de 2017 → 2017-03-03."""
    _no_lengths(lengths)
    babel = _library("babel.dates", "Babel")
    locales = set(_library("babel.localedata", "Babel").locale_identifiers())
    languages = _languages(given, DATE_LANGUAGES, locales.__contains__)
    days = (LAST_DATE - FIRST_DATE).days + 1

    def draw(random: Random) -> SyntheticPair:
        day = FIRST_DATE + timedelta(days=random.randrange(days))
        language, style = random.choice(languages), random.choice(DATE_STYLES)
        written = babel.format_date(day, style, locale=language)
        return SyntheticPair(" ".join(written.split()), day.isoformat(), language)  # spaces as they are typed

    return draw


def _numbers(given: Sequence[str], lengths: Lengths) -> Draw:
    """A number in words → digits: zweiundvierzig → 42."""
    _no_lengths(lengths)
    library = _library("num2words", "num2words")
    languages = _languages(given, NUMBER_LANGUAGES, library.CONVERTER_CLASSES.__contains__)

    def draw(random: Random) -> SyntheticPair:
        digits = random.randint(1, NUMBER_DIGITS)  # as many short numbers as long ones
        number = random.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        language = random.choice(languages)
        return SyntheticPair(library.num2words(number, lang=language), str(number), language)

    return draw


def _spoken(given: Sequence[str], lengths: Lengths) -> Draw:
    """A number in English words → word for word in German order: forty two → zwei vierzig."""
    _no_lengths(lengths)
    if given:
        raise ConfigError("languages are for dates and numbers only")

    def draw(random: Random) -> SyntheticPair:
        number = random.randrange(10 ** random.randint(1, NUMBER_DIGITS))
        words = synthetic.spell_english(number)
        return SyntheticPair(
            " ".join(words),
            " ".join(synthetic.german_order(words)),
            str(len(words)),
            tuple(synthetic.word_links(words)),
        )

    return draw


def _no_lengths(lengths: Lengths) -> None:
    if lengths:
        raise ConfigError("lengths are for copy, reverse and sort only")


def _letters(change: Callable[[list[str]], list[str]]) -> Kind:
    def ready(given: Sequence[str], lengths: Lengths) -> Draw:
        if given:
            raise ConfigError("languages are for dates and numbers only")

        def draw(random: Random) -> SyntheticPair:
            letters = random.choices(ALPHABET, k=random.randint(*(lengths or LENGTHS)))
            return SyntheticPair(" ".join(letters), " ".join(change(letters)), str(len(letters)))

        return draw

    return ready


KINDS: Mapping[str, Kind] = {
    "dates": _dates,
    "numbers": _numbers,
    "spoken": _spoken,
    "copy": _letters(list),
    "reverse": _letters(lambda letters: letters[::-1]),
    "sort": _letters(sorted),
}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_SMALL_GERMAN = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_TENS_GERMAN = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
GLOSSES = dict(
    zip(
        [*_SMALL, *_TENS, "hundred", "thousand"],
        [*_SMALL_GERMAN, *_TENS_GERMAN, "hundert", "tausend"],
        strict=True,
    )
)


def spell_english(number: int) -> list[str]:
    """Return a number below a million in words.

    >>> spell_english(412_037)
    ['four', 'hundred', 'twelve', 'thousand', 'thirty', 'seven']
    """
    if number >= 1000:
        rest = number % 1000
        return [*spell_english(number // 1000), "thousand", *(spell_english(rest) if rest else [])]
    if number >= 100:
        rest = number % 100
        return [_SMALL[number // 100], "hundred", *(spell_english(rest) if rest else [])]
    if number < len(_SMALL):
        return [_SMALL[number]]
    return [_TENS[number // 10 - 2], *([_SMALL[number % 10]] if number % 10 else [])]


def word_links(words: list[str]) -> list[tuple[int, int]]:
    """Return which English word stands where in German: units go before tens.

    >>> word_links(["one", "hundred", "forty", "two"])
    [(0, 0), (1, 1), (3, 2), (2, 3)]
    """
    order = list(range(len(words)))
    for place in range(len(words) - 1):
        if words[place] in _TENS and words[place + 1] in _SMALL:
            order[place], order[place + 1] = place + 1, place
    return [(source, target) for target, source in enumerate(order)]


def german_order(words: list[str]) -> list[str]:
    """Return English words of a number word for word in German order.

    >>> german_order(["one", "hundred", "forty", "two"])
    ['eins', 'hundert', 'zwei', 'vierzig']
    """
    return [GLOSSES[words[source]] for source, _ in word_links(words)]
