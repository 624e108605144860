"""Constraints on translations: forced phrases, forbidden phrases and glossaries (Post and Vilar 2018)."""

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

COMPLETE = 1 << 30  # progress of a phrase that the text contains
OTHER_TOKEN = -1  # a token that belongs to no phrase and starts a new word


@dataclass(frozen=True)
class Phrase:
    """Token ids of a phrase to force."""

    inside: tuple[int, ...]  # its tokens inside a sentence
    at_start: tuple[int, ...]  # its tokens at the start of a text
    ends_in_letter: bool  # then the next token must not continue the word

    def form(self, progress: int) -> tuple[int, ...]:
        """Token ids of the form that this progress counts."""
        return self.at_start if progress < 0 else self.inside

    def awaits_word_end(self, progress: int) -> bool:
        """Whether all tokens are generated, but the next one may still continue the last word."""
        return progress != COMPLETE and abs(progress) == len(self.form(progress))

    def is_generated(self, progress: int) -> bool:
        """Whether all tokens are generated."""
        return progress == COMPLETE or self.awaits_word_end(progress)


@dataclass(frozen=True)
class ForcedPhrases:
    """The phrases that one text must contain, and the progress of a hypothesis with each of them.

    Progress is one integer per phrase: how many of its tokens the hypothesis ends in (negative: in the form for the
    start of a text), or `COMPLETE`. A phrase that ends in a letter is complete once the next token does not continue
    the word.

    >>> forced = ForcedPhrases((Phrase((7, 8), (7, 8), False),), np.zeros(9, bool))
    >>> steps = [forced.initial_progress()]
    >>> for position, token in enumerate([7, 7, 8]):
    ...     steps.append(forced.advance(steps[-1], token, position))
    >>> [(forced.tokens_matched(step), forced.next_tokens(step, 1), forced.is_satisfied(step)) for step in steps]
    [(0, [7], False), (1, [8], False), (1, [8], False), (2, [], True)]
    """

    phrases: tuple[Phrase, ...]
    continues_word: NDArray[np.bool_]  # [V], whether a token continues the word before it

    @classmethod
    def none(cls) -> ForcedPhrases:
        """No phrases at all."""
        return cls((), np.zeros(0, bool))

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of all phrases."""
        return sum(len(phrase.inside) for phrase in self.phrases)

    def initial_progress(self) -> tuple[int, ...]:
        """Progress of an empty text."""
        return (0,) * len(self.phrases)

    def advance(self, progress: tuple[int, ...], token: int, position: int) -> tuple[int, ...]:
        """Progress after one more token at this position; `OTHER_TOKEN` (−1) is no phrase's token and a new word."""
        return tuple(
            self._advance_phrase(phrase, matched, token, position)
            for phrase, matched in zip(self.phrases, progress, strict=True)
        )

    def _advance_phrase(self, phrase: Phrase, progress: int, token: int, position: int) -> int:
        if progress == COMPLETE:
            return COMPLETE
        is_start_form = progress < 0
        if position == 0 and token != phrase.inside[0] and token == phrase.at_start[0]:
            is_start_form = True
        form = phrase.at_start if is_start_form else phrase.inside
        num_matched = abs(progress)
        if num_matched == len(form):  # the last word must end before the phrase is complete
            if token == OTHER_TOKEN or not self.continues_word[token]:
                return COMPLETE
        elif token == form[num_matched]:
            is_last = num_matched + 1 == len(form)
            if is_last and not phrase.ends_in_letter:
                return COMPLETE
            return -(num_matched + 1) if is_start_form else num_matched + 1
        tail = (*form[:num_matched], token)
        return _longest_prefix(tail, phrase.inside, min(num_matched, len(phrase.inside)))

    def must_end_word(self, progress: tuple[int, ...]) -> bool:
        """Whether a phrase has just been generated, so that the next token must start a new word."""
        return any(phrase.awaits_word_end(matched) for phrase, matched in zip(self.phrases, progress, strict=True))

    def is_satisfied(self, progress: tuple[int, ...]) -> bool:
        """Whether the text would contain every phrase if it ended now."""
        return all(phrase.is_generated(matched) for phrase, matched in zip(self.phrases, progress, strict=True))

    def tokens_matched(self, progress: tuple[int, ...]) -> int:
        """Number of phrase tokens that the hypothesis contains."""
        # COMPLETE exceeds every length
        return sum(
            min(abs(matched), len(phrase.inside)) for phrase, matched in zip(self.phrases, progress, strict=True)
        )

    def tokens_missing(self, progress: tuple[int, ...]) -> int:
        """Number of tokens that suffice to complete all phrases: first the one with most progress, then the others."""
        missing = [
            (len(phrase.inside), abs(matched))
            for phrase, matched in zip(self.phrases, progress, strict=True)
            if not phrase.is_generated(matched)
        ]
        return sum(length for length, _ in missing) - max((matched for _, matched in missing), default=0)

    def feasible_tokens(self, progress: tuple[int, ...], position: int, remaining: int) -> list[int] | None:
        """Tokens after which all phrases still fit into `remaining` tokens, including that token; None: any.

        >>> forced = ForcedPhrases((Phrase((7, 8), (7, 8), False),), np.zeros(9, bool))
        >>> forced.feasible_tokens((0,), 0, remaining=3), forced.feasible_tokens((0,), 0, remaining=2)
        (None, [7])
        >>> forced.feasible_tokens((1,), 1, remaining=2)
        [7, 8]
        """
        if not 0 < remaining <= self.num_tokens:
            return None
        if self._fits_after(OTHER_TOKEN, progress, position, remaining):
            return None
        tokens = {token for phrase in self.phrases for token in (*phrase.inside, *phrase.at_start)}
        return [token for token in sorted(tokens) if self._fits_after(token, progress, position, remaining)]

    def _fits_after(self, token: int, progress: tuple[int, ...], position: int, remaining: int) -> bool:
        return self.tokens_missing(self.advance(progress, token, position)) < remaining

    def next_tokens(self, progress: tuple[int, ...], position: int) -> list[int]:
        """Tokens that advance a phrase: the next ones of phrases in progress, else the first ones of all others."""
        continuing = set()
        starting = set()
        for phrase, matched in zip(self.phrases, progress, strict=True):
            if phrase.is_generated(matched):
                continue
            if matched:
                continuing.add(phrase.form(matched)[abs(matched)])
            else:
                starting.add(phrase.at_start[0] if position == 0 else phrase.inside[0])
        return sorted(continuing or starting)


def _longest_prefix(tail: tuple[int, ...], phrase: tuple[int, ...], max_length: int) -> int:
    """Length of the longest prefix of the phrase that the tail ends in; 0 without any."""
    for length in range(max_length, 0, -1):
        if tail[-length:] == phrase[:length]:
            return length
    return 0


@dataclass(frozen=True)
class Glossary:
    """Target phrases by source phrase.

    >>> glossary = Glossary((("dog", "Hund"), ("hot dog", "Hotdog")))
    >>> glossary.translations("A hot dog."), glossary.translations("Dogs and a Dog")
    (['Hotdog'], ['Hund'])
    """

    entries: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """Read a file with two tab-separated columns: source phrase, target phrase."""
        pairs = read_pairs([path], ReadConfig(format="tsv"))
        return cls(
            tuple((source.strip(), target.strip()) for source, target in zip(pairs.source, pairs.target, strict=True))
        )

    def translations(self, source: str) -> list[str]:
        """Target phrases for a source text, in the order of the source: longest match first, whole words only.

        A source phrase in lower case also matches upper case.
        """
        unmatched = source
        matches: list[tuple[int, str]] = []  # offset in the source, target phrase
        for phrase, target in sorted(self.entries, key=lambda entry: -len(entry[0])):
            ignores_case = phrase == phrase.lower() and len(unmatched.lower()) == len(unmatched)
            text = unmatched.lower() if ignores_case else unmatched
            offset = find_phrase(text, phrase)
            while offset >= 0:
                matches.append((offset, target))
                unmatched = _blank_out(unmatched, offset, len(phrase))  # no shorter phrase may match here
                text = _blank_out(text, offset, len(phrase))
                offset = find_phrase(text, phrase, offset)
        matches.sort(key=lambda match: match[0])
        return list(dict.fromkeys(target for _, target in matches))


def _blank_out(text: str, offset: int, length: int) -> str:
    return text[:offset] + "\n" * length + text[offset + length :]


@dataclass(frozen=True)
class Constraints:
    """Phrases that translations must, or must not, contain.

    Phrases of `force` go into every translation; those of the glossary into translations whose source has the entry.
    """

    force: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    glossary: Glossary | None = None

    def __post_init__(self) -> None:
        for name, phrases in (("force", self.force), ("forbid", self.forbid)):
            if type(phrases) is not tuple or not all(phrase.strip() for phrase in phrases):
                raise ConfigError(f"{name} must be a tuple of words or phrases, none of them blank, not {phrases!r}")
        glossary_phrases = [target for _, target in self.glossary.entries] if self.glossary else []
        for phrase in [*self.force, *glossary_phrases]:
            for forbidden in self.forbid:
                if find_phrase(phrase, forbidden) >= 0:
                    raise ConfigError(f"{forbidden!r} is forbidden but {phrase!r} is forced: drop one of them")

    def phrases_for(self, source: str) -> list[str]:
        """Phrases that the translation of a source text must contain."""
        glossary_phrases = self.glossary.translations(source) if self.glossary else []
        return list(dict.fromkeys([*self.force, *glossary_phrases]))


class PhraseTokenizer:
    """Phrases as tokens of the target vocabulary, and the text that each token adds to a sentence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._preceding_ids = tokenizer.encode("a").ids  # a word in front, so that a token is inside a sentence

    @cached_property
    def token_texts(self) -> list[str]:
        """Text that each token adds inside a sentence; empty for special tokens."""
        start = len(self.tokenizer.decode(self._preceding_ids))
        return [
            self.tokenizer.decode([*self._preceding_ids, token_id])[start:]
            for token_id in range(self.tokenizer.vocab_size)
        ]

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """Whether each token continues the word before it, [V]; a token without text does not end the word."""
        continues = np.array([not text or is_word_character(text[0]) for text in self.token_texts])
        continues[self.tokenizer.eos_id] = False
        return continues

    def normalize(self, phrase: str) -> str:
        """The phrase as the tokenizer decodes it: normalised, possibly in another case."""
        return self.tokenizer.decode(self.tokenizer.encode(" ".join(phrase.split())).ids)

    def forbid(self, phrases: Sequence[str]) -> list[Rule]:
        """Rule that forbids the phrases; no rule without phrases."""
        normalized = [self.normalize(phrase) for phrase in phrases]
        if not normalized:
            return []
        return [ForbidText(normalized, self.token_texts, self.tokenizer.decode)]

    def tokenize_forced(self, phrases: Sequence[str], vocab_size: int) -> ForcedPhrases:
        """Tokenize the phrases to force; a phrase inside another one is redundant and dropped."""
        for phrase in phrases:
            if self.tokenizer.unk_id in self.tokenizer.encode(phrase).ids:
                raise ConfigError(f"the model cannot generate {phrase!r}: its tokenizer has no tokens for it")
        normalized = list(dict.fromkeys(self.normalize(phrase) for phrase in phrases))
        required = [phrase for phrase in normalized if not _is_inside_another(phrase, normalized)]
        if not required:
            return ForcedPhrases.none()
        continues_word = np.zeros(vocab_size, bool)
        continues_word[: len(self.continues_word)] = self.continues_word[:vocab_size]
        return ForcedPhrases(tuple(self._tokenize(phrase) for phrase in required), continues_word)

    def _tokenize(self, phrase: str) -> Phrase:
        at_start = tuple(self.tokenizer.encode(phrase).ids)
        preceded = tuple(self.tokenizer.encode(f"a {phrase}").ids)
        preceding = tuple(self._preceding_ids)
        inside = preceded[len(preceding) :] if preceded[: len(preceding)] == preceding else at_start
        return Phrase(inside, at_start, ends_in_letter=is_word_character(phrase[-1]))


def _is_inside_another(phrase: str, phrases: Sequence[str]) -> bool:
    return any(find_phrase(other, phrase) >= 0 for other in phrases if other != phrase)
