"""A small record with every kind of attention, made without a model."""

from __future__ import annotations

import numpy as np

from regard.view.record import Attention, Record, Side

LAYERS, HEADS = 2, 3


def distributions(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random rows that add up to one."""
    raw = np.random.default_rng(seed).gamma(0.3, size=shape) + 1e-9
    return (raw / raw.sum(axis=-1, keepdims=True)).astype(np.float32)


def sample_record(source: str = "viernes, 3 de marzo de 2017", target: str = "2017-03-03", title: str = "") -> Record:
    """A translation of pieces: words of the source longer than four letters are two tokens."""
    left, right = side_of(source, "es"), side_of(target, "")
    rows, columns = len(right.tokens), len(left.tokens)
    cross = distributions((LAYERS, HEADS, rows, columns), 1)
    cross[1, 2] = 0
    cross[1, 2, np.arange(rows), np.arange(rows) * 2 % columns] = 1
    attention = (
        Attention("decoder.cross", "target", "source", cross, (0, 1), produced=True),
        Attention("encoder.self", "source", "source", distributions((LAYERS, HEADS, columns, columns), 2), (0, 1)),
    )
    made = {"version": "0.0.0", "model": "sample", "when": "2026-01-01T00:00:00"}
    texts = {"source": left, "target": right}
    return Record(title or source, texts, attention, made=made, best=("decoder.cross", 1, 2))


def side_of(text: str, language: str) -> Side:
    """The text's words, long ones cut in two, and an end mark."""
    tokens, words, spans, place = [], [], [], 0
    for number, word in enumerate(text.split(" ")):
        for piece in [word] if len(word) < 5 else [word[:4], word[4:]]:
            tokens.append((" " if number and piece == word[: len(piece)] else "") + piece)
            words.append(number)
            spans.append((place, place + len(piece)))
            place += len(piece)
        place += 1
    return Side.of_pieces(text, [*tokens, "</s>"], [*words, -1], [*spans, (len(text), len(text))], language)
