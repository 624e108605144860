"""What a translation must or must not say: phrases to force, phrases to forbid, and a glossary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.pairs import read_pairs
from regard.decoding.rules import ForbidText, Rule
from regard.errors import ConfigError
from regard.text.sentences import find_phrase, is_word_character
from regard.text.tokenizer import Tokenizer

MET = 1 << 30  # the progress of a phrase that stands in the text


@dataclass(frozen=True)
class Phrase:
    """A phrase to force, as tokens."""

    inside: tuple[int, ...]  # as it is written inside a sentence
    first: tuple[int, ...]  # as it is written at the start of a text
    open: bool  # ends in a letter: the next token must not go on with the word


@dataclass(frozen=True)
class ForcedPhrases:
    """The phrases that one text must hold, and how far a text being written has come with each.

    Progress is a number for each phrase: how many of its tokens the text ends in (negative: in the form for the start
    of a text), or `MET`. A phrase that ends in a letter is met when the next token does not go on with the word.

    >>> forced = ForcedPhrases((Phrase((7, 8), (7, 8), False),), np.zeros(9, bool))
    >>> steps = [forced.initial_progress()]
    >>> for place, token in enumerate([7, 7, 8]):
    ...     steps.append(forced.advance(steps[-1], token, place))
    >>> [(forced.tokens_matched(step), forced.next_tokens(step, 1), forced.is_satisfied(step)) for step in steps]
    [(0, [7], False), (1, [8], False), (1, [8], False), (2, [], True)]
    """

    phrases: tuple[Phrase, ...]
    continues: NDArray[np.bool_]  # [V], whether a token goes on with the word before it

    @classmethod
    def none(cls) -> ForcedPhrases:
        """Return no phrases at all."""
        return cls((), np.zeros(0, bool))

    @cached_property
    def num_tokens(self) -> int:
        """How many tokens all phrases have together."""
        return sum(len(phrase.inside) for phrase in self.phrases)

    def initial_progress(self) -> tuple[int, ...]:
        """Return the progress of an empty text."""
        return (0,) * len(self.phrases)

    def advance(self, progress: tuple[int, ...], token: int, place: int) -> tuple[int, ...]:
        """Return the progress after one more token at this place of the text; −1: a token of no phrase, a new word."""
        return tuple(self._one(phrase, done, token, place) for phrase, done in zip(self.phrases, progress, strict=True))

    def _one(self, phrase: Phrase, done: int, token: int, place: int) -> int:
        if done == MET:
            return MET
        form, sign = (phrase.first, -1) if done < 0 else (phrase.inside, 1)
        if place == 0 and token != phrase.inside[0] and token == phrase.first[0]:
            form, sign = phrase.first, -1
        reached = abs(done)
        if reached == len(form):  # it waited for a token that leaves the word alone
            if token < 0 or not self.continues[token]:
                return MET
        elif token == form[reached]:
            whole = reached + 1 == len(form) and not phrase.open
            return MET if whole else sign * (reached + 1)
        tail = (*form[:reached], token)  # fall back to the longest beginning of the phrase that the text ends in
        return next((n for n in range(min(reached, len(phrase.inside)), 0, -1) if tail[-n:] == phrase.inside[:n]), 0)

    def _waits(self, phrase: Phrase, done: int) -> bool:
        return done != MET and abs(done) == len(phrase.first if done < 0 else phrase.inside)

    def _stands(self, phrase: Phrase, done: int) -> bool:
        return done == MET or self._waits(phrase, done)

    def must_end_word(self, progress: tuple[int, ...]) -> bool:
        """Whether a phrase was just written whole, so that its last word must end here."""
        return any(self._waits(phrase, done) for phrase, done in zip(self.phrases, progress, strict=True))

    def is_satisfied(self, progress: tuple[int, ...]) -> bool:
        """Whether a text that ended here would hold every phrase."""
        pairs = zip(self.phrases, progress, strict=True)
        return all(self._stands(phrase, done) for phrase, done in pairs)

    def tokens_matched(self, progress: tuple[int, ...]) -> int:
        """Return how many tokens of the phrases the text holds."""
        pairs = zip(self.phrases, progress, strict=True)
        return sum(len(phrase.inside) if done == MET else min(abs(done), len(phrase.inside)) for phrase, done in pairs)

    def tokens_missing(self, progress: tuple[int, ...]) -> int:
        """Return how many tokens are enough to write what is missing: the phrase furthest begun, then the others."""
        pairs = zip(self.phrases, progress, strict=True)
        open_ones = [(len(phrase.inside), abs(done)) for phrase, done in pairs if not self._stands(phrase, done)]
        return sum(size for size, _ in open_ones) - max((done for _, done in open_ones), default=0)

    def feasible_tokens(self, progress: tuple[int, ...], position: int, remaining: int) -> list[int] | None:
        """Return the tokens after which all phrases still fit into `room` tokens, that token counted; None: any.

        >>> forced = ForcedPhrases((Phrase((7, 8), (7, 8), False),), np.zeros(9, bool))
        >>> forced.feasible_tokens((0,), 0, remaining=3), forced.feasible_tokens((0,), 0, remaining=2), forced.feasible_tokens((1,), 1, remaining=2)
        (None, [7], [7, 8])
        """
        if (
            not 0 < remaining <= self.num_tokens
            or self.tokens_missing(self.advance(progress, -1, position)) < remaining
        ):
            return None
        tokens = sorted({token for phrase in self.phrases for token in (*phrase.inside, *phrase.first)})
        return [token for token in tokens if self.tokens_missing(self.advance(progress, token, position)) < remaining]

    def next_tokens(self, progress: tuple[int, ...], position: int) -> list[int]:
        """Return the tokens that bring a phrase further: of those begun, else the first of each that is not."""
        pairs = [
            (phrase.first if done < 0 or (position == 0 and not done) else phrase.inside, abs(done))
            for phrase, done in zip(self.phrases, progress, strict=True)
            if not self._stands(phrase, done)
        ]
        begun = [form[done] for form, done in pairs if done]
        return sorted(set(begun or [form[0] for form, _ in pairs]))


@dataclass(frozen=True)
class Glossary:
    """Which target phrase goes with which source phrase.

    >>> glossary = Glossary((("dog", "Hund"), ("hot dog", "Hotdog")))
    >>> glossary.translations("A hot dog."), glossary.translations("Dogs and a Dog")
    (['Hotdog'], ['Hund'])
    """

    entries: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """Return the glossary of a file with two columns parted by a tab: source phrase, target phrase."""
        pairs = read_pairs([path], ReadConfig(format="tsv"))
        return cls(tuple((s.strip(), t.strip()) for s, t in zip(pairs.source, pairs.target, strict=True)))

    def translations(self, source: str) -> list[str]:
        """Return the target phrases for a source text: longest match first, whole words only.

        A source phrase in small letters is found in capitals too.
        """
        free, found = source, []
        for phrase, target in sorted(self.entries, key=lambda entry: -len(entry[0])):
            text = free.lower() if phrase == phrase.lower() and len(free.lower()) == len(free) else free
            place = find_phrase(text, phrase)
            while place >= 0:
                found.append((place, target))
                blank = "\n" * len(phrase)  # claimed: no shorter phrase may use it
                free = free[:place] + blank + free[place + len(phrase) :]
                text = text[:place] + blank + text[place + len(phrase) :]
                place = find_phrase(text, phrase, place)
        return list(dict.fromkeys(target for _, target in sorted(found, key=lambda pair: pair[0])))


@dataclass(frozen=True)
class Constraints:
    """What translations must or must not say, in words.

    Words to force go into every text, glossary phrases into those texts whose source has them.
    """

    force: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    glossary: Glossary | None = None

    def __post_init__(self) -> None:
        for name, phrases in (("force", self.force), ("forbid", self.forbid)):
            if type(phrases) is not tuple or not all(phrase.strip() for phrase in phrases):
                raise ConfigError(f"{name} must be a tuple of words or phrases, none of them blank, not {phrases!r}")
        targets = [target for _, target in self.glossary.entries] if self.glossary else []
        for phrase in [*self.force, *targets]:
            for other in self.forbid:
                if find_phrase(phrase, other) >= 0:
                    raise ConfigError(f"{other!r} is forbidden but {phrase!r} is forced: drop one of them")

    def phrases_for(self, source: str) -> list[str]:
        """Return the phrases that the translation of one source text must hold."""
        return list(dict.fromkeys([*self.force, *(self.glossary.translations(source) if self.glossary else [])]))


class PhraseTokenizer:
    """The tokens of a target language as words: which text each adds to a sentence, and how phrases are written."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._before = tokenizer.encode("a").ids  # something to stand in front of a token

    @cached_property
    def token_texts(self) -> list[str]:
        """What each token adds to a text that it stands in, special tokens nothing."""
        start = len(self.tokenizer.decode(self._before))
        return [self.tokenizer.decode([*self._before, number])[start:] for number in range(self.tokenizer.vocab_size)]

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """Whether each token goes on with the word before it, [V]; one that writes nothing does not end it."""
        goes_on = np.array([not text or is_word_character(text[0]) for text in self.token_texts])
        goes_on[self.tokenizer.eos_id] = False
        return goes_on

    def normalize(self, phrase: str) -> str:
        """Return a phrase as the tokenizer writes it: its normal form, its case."""
        return self.tokenizer.decode(self.tokenizer.encode(" ".join(phrase.split())).ids)

    def forbid(self, phrases: Sequence[str]) -> list[Rule]:
        """Return the rule that keeps phrases out of a text."""
        normal = [self.normalize(phrase) for phrase in phrases]
        return [ForbidText(normal, self.token_texts, self.tokenizer.decode)] if normal else []

    def force(self, phrases: Sequence[str], vocabulary: int) -> ForcedPhrases:
        """Return the phrases as tokens to force; one that holds another makes the other unnecessary."""
        for phrase in phrases:
            if self.tokenizer.unk_id in self.tokenizer.encode(phrase).ids:
                raise ConfigError(f"the model cannot write {phrase!r}: its tokenizer has no tokens for it")
        normal = list(dict.fromkeys(map(self.normalize, phrases)))
        others = {phrase: [other for other in normal if other != phrase] for phrase in normal}
        needed = [phrase for phrase in normal if all(find_phrase(other, phrase) < 0 for other in others[phrase])]
        if not needed:
            return ForcedPhrases.none()
        continues = np.zeros(vocabulary, bool)
        continues[: len(self.continues_word)] = self.continues_word[:vocabulary]
        return ForcedPhrases(tuple(self._phrase(phrase) for phrase in needed), continues)

    def _phrase(self, phrase: str) -> Phrase:
        first = tuple(self.tokenizer.encode(phrase).ids)
        longer = tuple(self.tokenizer.encode(f"a {phrase}").ids)
        begin = tuple(self._before)
        inside = longer[len(begin) :] if longer[: len(begin)] == begin else first
        return Phrase(inside, first, is_word_character(phrase[-1]))
