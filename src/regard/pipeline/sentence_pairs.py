"""A text as the parts that a model reads, each of them with what was written for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from regard.errors import UsageError
from regard.text.sentences import Sentences, split_lines, split_long, split_sentences
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslatedSentence:
    """One sentence of a translation, as the model read and wrote it."""

    source: str
    text: str
    ids: list[int]  # of the text, without start and end
    source_word: int  # the number of its first word in the whole source text
    target_word: int


def encode_source(tokenizer: Tokenizer, sentence: TranslatedSentence) -> list[int]:
    """Return a part's source as a model reads it."""
    return [*tokenizer.encode_batch([sentence.source])[0], tokenizer.eos_id]


def split_into_sentences(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, *, split: bool, keep_whole: Sequence[bool]
) -> tuple[list[Sentences], list[list[int]]]:
    """Return texts in sentences of fewer than `longest` tokens and the tokens of all their sentences, or refuse them.

    Without `split` a line is a sentence; a `whole` text is a single one.
    """
    found = []
    for number, (text, alone) in enumerate(zip(texts, keep_whole, strict=True), 1):
        lines = split_lines(text)
        if alone and len(lines.sentences) > 1:
            raise UsageError(
                f"text {number} has {len(lines.sentences)} lines: a prefix and words to force are for texts of one line"
            )
        found.append(split_sentences(text) if split and not alone else lines)
    every = iter(tokenizer.encode_batch([sentence for one in found for sentence in one.sentences]))
    made, tokens = [], []
    for number, (one, alone) in enumerate(zip(found, keep_whole, strict=True), 1):
        rows = list(itertools.islice(every, len(one.sentences)))
        if max(map(len, rows), default=0) >= max_length:
            most = max_length - 1 if split and not alone else 0
            one = one.split_each(
                partial(_fitting, tokenizer=tokenizer, max_length=max_length, most=most, name=f"text {number}")
            )
            rows = tokenizer.encode_batch(one.sentences)
        made.append(one)
        tokens += rows
    return made, tokens


def _fitting(sentence: str, tokenizer: Tokenizer, max_length: int, most: int, name: str) -> Sentences:
    """Return a sentence in parts of fewer than `longest` tokens, cut after about `most`; 0: it must not be cut."""
    count = len(tokenizer.encode_batch([sentence])[0])
    if count < max_length:
        return Sentences([sentence], ["", ""])
    if not most:
        raise UsageError(
            f"{name} has a sentence of {count + 1:,} tokens, but the model was trained on {max_length:,} at "
            "most: let it be split, or shorten it"
        )
    parts = split_long(sentence, tokenizer.encode(sentence).spans, most)
    return parts.split_each(lambda part: _fitting(part, tokenizer, max_length, most // 2, name))


def pair_sentences(source: Sentences, target: Sentences, ids: Sequence[list[int]]) -> list[TranslatedSentence]:
    """Return the sentences read, with those written for them.

    >>> read, written = Sentences(["One.", "Two."], ["", " ", ""]), Sentences(["Eins zwei.", "Drei."], ["", " ", ""])
    >>> [(part.source_word, part.target_word) for part in pair_sentences(read, written, [[5], [6]])]
    [(0, 0), (1, 2)]
    """
    rows = zip(source.sentences, target.sentences, ids, _first_words(source), _first_words(target), strict=True)
    return [TranslatedSentence(*row) for row in rows]


def split_pair(source: str, target: str, tokenizer: Tokenizer, *, split: bool) -> list[TranslatedSentence]:
    """Return a given pair of texts sentence by sentence where both have equally many, else whole."""
    read, written = split_sentences(source), split_sentences(target)
    if not split or len(read.sentences) != len(written.sentences):
        read, written = (Sentences([text.strip()], ["", ""]) for text in (source, target))
    return pair_sentences(read, written, tokenizer.encode_batch(written.sentences))


def _first_words(sentences: Sentences) -> list[int]:
    """Return the number of the word that each sentence begins with, words being what white space parts."""
    made, words, open_word = [], 0, False
    for gap, sentence in zip(sentences.separators, sentences.sentences, strict=False):
        inside = open_word and not gap  # two sentences in one word
        made.append(words - inside)
        words += len(sentence.split()) - inside
        open_word = bool(sentence)
    return made
