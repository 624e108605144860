"""Synthetic pairs without limit: dates and numbers in many languages; copy, reverse, sort and recall of letters.

The kind `spoken` has known word alignments: numbers in English words, and word for word in German order. German
reads units before tens, so forty two becomes zwei vierzig. The links are mostly monotone and sometimes crossed, as
between real languages.

The kind `recall` has a known distance: among letters stands one digit, which is the target, and so many letters follow
it. All sources are equally long, so that nothing but the distance differs between rows.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from types import ModuleType
from typing import NamedTuple

from regard.errors import ConfigError, UsageError, nearest

DATE_LANGUAGES = tuple("cs da de el en es fi fr hu id it ja nl pl pt ro ru sv tr uk".split())
DATE_STYLES = ("medium", "long", "full")  # short ones omit the century
FIRST_DATE = date(1900, 1, 1)
LAST_DATE = date(2099, 12, 31)
NUMBER_LANGUAGES = ("cs", "de", "en", "es", "fi", "fr", "it", "nl", "pl", "pt", "ru", "sv", "tr", "uk")
NUMBER_DIGITS = 6
ALPHABET = "abcdefghijklmnop"
DIGITS = "0123456789"
LENGTHS = (3, 12)  # fewest and most letters of a row
DISTANCES = (0, 40)  # fewest and most letters after the digit to recall
SPLITS = ("train", "valid", "test", "all")


class SyntheticPair(NamedTuple):
    """One generated pair; `group` is its language, length or distance, for scores by group."""

    source: str
    target: str
    group: str
    links: tuple[tuple[int, int], ...] = ()  # (source word, target word), where they are known
    key: str = ""  # text that decides the split; empty: the target


@dataclass(frozen=True)
class RowSettings:
    """What rows of a kind may be asked for; a kind refuses what it does not have."""

    languages: Sequence[str] = ()
    lengths: tuple[int, int] | None = None  # fewest and most letters
    distances: tuple[int, int] | None = None  # fewest and most letters after the digit to recall


def generate_pairs(
    kind: str,
    count: int,
    seed: int = 1,
    *,
    split: str = "train",
    languages: Sequence[str] = (),
    lengths: tuple[int, int] | None = None,
    distances: tuple[int, int] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a kind: dates, numbers, spoken, copy, reverse, sort or recall.

    >>> list(generate_pairs("reverse", 2, seed=5))
    [('k d k d c c', 'c c d k d k'), ('g l p e', 'e p l g')]
    """
    rows = generate_rows(kind, count, seed, split=split, languages=languages, lengths=lengths, distances=distances)
    return ((row.source, row.target) for row in rows)


def generate_rows(
    kind: str,
    count: int,
    seed: int = 1,
    *,
    split: str = "train",
    languages: Sequence[str] = (),
    lengths: tuple[int, int] | None = None,
    distances: tuple[int, int] | None = None,
) -> Iterator[SyntheticPair]:
    """Yield generated pairs, the same for the same arguments.

    `lengths` are the fewest and most letters of a row, `distances` the fewest and most letters after the digit to
    recall. A target belongs to one split, whatever the seed (`split_of_target`): a date of the test split is in the
    training split in no language. Of recall, which has ten targets only, it is the source.

    >>> next(generate_rows("recall", 1, distances=(3, 7)))
    SyntheticPair(source='a h 4 g h n o j', target='4', group='5', links=((2, 0),), key='a h 4 g h n o j')
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of synthetic data {kind!r}{nearest(kind, KINDS)}: there are {', '.join(KINDS)}")
    check_generation(count, split)
    if lengths and not 1 <= lengths[0] <= lengths[1]:
        raise UsageError(f"lengths {lengths[0]}-{lengths[1]}: the first must be at least 1 and not above the second")
    if distances and not (0 <= distances[0] <= distances[1] and distances[1] >= 1):
        raise UsageError(
            f"distances {distances[0]}-{distances[1]}: the first must be at least 0 and not above the second, which "
            "must be at least 1"
        )
    generator = KINDS[kind](RowSettings(languages, lengths, distances=distances))
    return _filter_split(generator, count, Random(f"{kind} {seed} {split}"), split)


def check_generation(count: int, split: str) -> None:
    """Raise `UsageError` for a negative number of rows, or a split that there is not."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}{nearest(split, SPLITS)}: there are {', '.join(SPLITS)}")
    if count < 0:
        raise UsageError(f"count ({count}) must not be negative")


def split_of_target(target: str) -> str:
    """Split that a target, or a source, belongs to: one in twenty is for validation, one in twenty for testing.

    >>> split_of_target("2017-03-03"), split_of_target("2017-03-05")
    ('train', 'test')
    """
    bucket = zlib.crc32(target.encode()) % 20
    return {0: "test", 1: "valid"}.get(bucket, "train")


Generator = Callable[[Random], SyntheticPair]
Kind = Callable[[RowSettings], Generator]


def _filter_split(generator: Generator, count: int, random: Random, split: str) -> Iterator[SyntheticPair]:
    """Yield `count` pairs that belong to the split."""
    while count:
        pair = generator(random)
        if split in ("all", split_of_target(pair.key or pair.target)):
            yield pair
            count -= 1


def _import_library(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UsageError(f"this data needs {package}, which is not installed: pip install {package}") from None


def _check_languages(
    languages: Sequence[str], defaults: Sequence[str], is_supported: Callable[[str], bool]
) -> Sequence[str]:
    for language in languages:
        if not is_supported(language):
            raise ConfigError(f"unknown language {language!r}{nearest(language, defaults)}: try {', '.join(defaults)}")
    return languages or defaults


def _refuse_unknown(settings: RowSettings, *known: str) -> None:
    """Refuse the settings that are not known to a kind."""
    kinds = {
        "languages": "languages are for dates and numbers only",
        "lengths": "lengths are for copy, reverse and sort only",
        "distances": "distances are for recall only",
    }
    for name, message in kinds.items():
        if name not in known and getattr(settings, name):
            raise ConfigError(message)


def _dates(settings: RowSettings) -> Generator:
    """A date in a language → ISO: viernes, 3 de marzo de 2017 → 2017-03-03."""
    _refuse_unknown(settings, "languages")
    babel = _import_library("babel.dates", "Babel")
    locales = set(_import_library("babel.localedata", "Babel").locale_identifiers())
    languages = _check_languages(settings.languages, DATE_LANGUAGES, locales.__contains__)
    num_days = (LAST_DATE - FIRST_DATE).days + 1

    def generate(random: Random) -> SyntheticPair:
        day = FIRST_DATE + timedelta(days=random.randrange(num_days))
        language = random.choice(languages)
        style = random.choice(DATE_STYLES)
        text = babel.format_date(day, style, locale=language)
        # Babel puts no-break spaces into some dates; people type plain ones.
        return SyntheticPair(" ".join(text.split()), day.isoformat(), group=language)

    return generate


def _numbers(settings: RowSettings) -> Generator:
    """A number in words → digits: zweiundvierzig → 42."""
    _refuse_unknown(settings, "languages")
    library = _import_library("num2words", "num2words")
    languages = _check_languages(settings.languages, NUMBER_LANGUAGES, library.CONVERTER_CLASSES.__contains__)

    def generate(random: Random) -> SyntheticPair:
        num_digits = random.randint(1, NUMBER_DIGITS)  # as many short numbers as long ones
        smallest = 10 ** (num_digits - 1) if num_digits > 1 else 0
        number = random.randrange(smallest, 10**num_digits)
        language = random.choice(languages)
        return SyntheticPair(library.num2words(number, lang=language), str(number), group=language)

    return generate


def _number_words(settings: RowSettings) -> Generator:
    """A number in English words → word for word in German order: forty two → zwei vierzig."""
    _refuse_unknown(settings)

    def generate(random: Random) -> SyntheticPair:
        number = random.randrange(10 ** random.randint(1, NUMBER_DIGITS))
        words = spell_english(number)
        return SyntheticPair(
            " ".join(words),
            " ".join(german_order(words)),
            group=str(len(words)),
            links=tuple(word_links(words)),
        )

    return generate


def _letters(transform: Callable[[list[str]], list[str]]) -> Kind:
    """Letters → the same letters, transformed."""

    def kind(settings: RowSettings) -> Generator:
        _refuse_unknown(settings, "lengths")
        min_length, max_length = settings.lengths or LENGTHS

        def generate(random: Random) -> SyntheticPair:
            length = random.randint(min_length, max_length)
            letters = random.choices(ALPHABET, k=length)
            return SyntheticPair(" ".join(letters), " ".join(transform(letters)), group=str(length))

        return generate

    return kind


def _recall(settings: RowSettings) -> Generator:
    """Letters with one digit among them → the digit; as many letters follow it as the distance says."""
    _refuse_unknown(settings, "distances")
    nearest_distance, farthest_distance = settings.distances or DISTANCES

    def generate(random: Random) -> SyntheticPair:
        distance = random.randint(nearest_distance, farthest_distance)
        digit = random.choice(DIGITS)
        words = random.choices(ALPHABET, k=farthest_distance)
        words.insert(farthest_distance - distance, digit)
        source = " ".join(words)
        links = ((farthest_distance - distance, 0),)
        return SyntheticPair(source, digit, group=str(distance), links=links, key=source)

    return generate


KINDS: Mapping[str, Kind] = {
    "dates": _dates,
    "numbers": _numbers,
    "spoken": _number_words,
    "copy": _letters(list),
    "reverse": _letters(lambda letters: letters[::-1]),
    "sort": _letters(sorted),
    "recall": _recall,
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
_ENGLISH = [*_SMALL, *_TENS, "hundred", "thousand"]
_GERMAN = [*_SMALL_GERMAN, *_TENS_GERMAN, "hundert", "tausend"]
GLOSSES = dict(zip(_ENGLISH, _GERMAN, strict=True))


def spell_english(number: int) -> list[str]:
    """Words of a number below a million.

    >>> spell_english(412_037)
    ['four', 'hundred', 'twelve', 'thousand', 'thirty', 'seven']
    """
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if number >= unit:
            quotient, remainder = divmod(number, unit)
            return [*spell_english(quotient), name, *(spell_english(remainder) if remainder else [])]
    if number < len(_SMALL):
        return [_SMALL[number]]
    tens, units = divmod(number, 10)
    return [_TENS[tens - 2], *([_SMALL[units]] if units else [])]


def word_links(words: list[str]) -> list[tuple[int, int]]:
    """Links (English word, German word) of a number, in German order: units come before tens.

    >>> word_links(["one", "hundred", "forty", "two"])
    [(0, 0), (1, 1), (3, 2), (2, 3)]
    """
    order = list(range(len(words)))
    for index in range(len(words) - 1):
        if words[index] in _TENS and words[index + 1] in _SMALL:
            order[index] = index + 1
            order[index + 1] = index
    return [(source, target) for target, source in enumerate(order)]


def german_order(words: list[str]) -> list[str]:
    """English words of a number, translated word for word and in German order.

    >>> german_order(["one", "hundred", "forty", "two"])
    ['eins', 'hundert', 'zwei', 'vierzig']
    """
    return [GLOSSES[words[source]] for source, _ in word_links(words)]
