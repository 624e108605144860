"""Numbers spoken in English and, word for word, in German order: a corpus whose word links are known.

German says units before tens: forty two is zwei vierzig here, every word a word. So the links are exact, mostly
straight, and crossed now and then, as between real languages.
"""

from __future__ import annotations

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


def english(number: int) -> list[str]:
    """Return a number below a million in words.

    >>> english(412_037)
    ['four', 'hundred', 'twelve', 'thousand', 'thirty', 'seven']
    """
    if number >= 1000:
        rest = number % 1000
        return [*english(number // 1000), "thousand", *(english(rest) if rest else [])]
    if number >= 100:
        rest = number % 100
        return [_SMALL[number // 100], "hundred", *(english(rest) if rest else [])]
    if number < len(_SMALL):
        return [_SMALL[number]]
    return [_TENS[number // 10 - 2], *([_SMALL[number % 10]] if number % 10 else [])]


def links(words: list[str]) -> list[tuple[int, int]]:
    """Return which English word stands where in German: units go before tens.

    >>> links(["one", "hundred", "forty", "two"])
    [(0, 0), (1, 1), (3, 2), (2, 3)]
    """
    order = list(range(len(words)))
    for place in range(len(words) - 1):
        if words[place] in _TENS and words[place + 1] in _SMALL:
            order[place], order[place + 1] = place + 1, place
    return [(source, target) for target, source in enumerate(order)]


def german(words: list[str]) -> list[str]:
    """Return English words of a number word for word in German order.

    >>> german(["one", "hundred", "forty", "two"])
    ['eins', 'hundert', 'zwei', 'vierzig']
    """
    return [GLOSSES[words[source]] for source, _ in links(words)]
