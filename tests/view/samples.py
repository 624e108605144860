"""A small record with every kind of attention, made without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import (
    Attribution,
    DecodingStep,
    HeadQKV,
    LabelProbabilities,
    Omission,
    PositionCodes,
    SpanProbabilities,
)
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

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
        AttentionRecord("decoder.cross", "target", "source", cross, (0, 1), produced=True),
        AttentionRecord(
            "encoder.self", "source", "source", distributions((LAYERS, HEADS, columns, columns), 2), (0, 1)
        ),
    )
    made = {"version": "0.0.0", "model": "sample", "when": "2026-01-01T00:00:00"}
    texts = {"source": left, "target": right}
    return Record(title or source, texts, attention, made=made, best=("decoder.cross", 1, 2))


def side_of(text: str, language: str) -> RecordText:
    """The text's words, long ones cut in two, and an end mark."""
    tokens, words, spans, place = [], [], [], 0
    for number, word in enumerate(text.split(" ")):
        for piece in [word] if len(word) < 5 else [word[:4], word[4:]]:
            tokens.append((" " if number and piece == word[: len(piece)] else "") + piece)
            words.append(number)
            spans.append((place, place + len(piece)))
            place += len(piece)
        place += 1
    return RecordText.from_subwords(text, [*tokens, "</s>"], [*words, -1], [*spans, (len(text), len(text))], language)


def whole_record(
    source: str = "The animal was too tired", target: str = "Das Tier war zu müde", **others: Any
) -> Record:
    """A record that has every part a record can have."""
    plain = sample_record(source, target)
    tokens = plain.texts["target"].tokens
    inside = []
    chance = np.random.default_rng(3)
    for seen in plain.attention:
        rows, columns = seen.shape[2:]
        query, key, value = (chance.normal(size=(count, 8)) for count in (rows, columns, columns))
        scores = (query @ key.T / np.sqrt(8)).astype(np.float32)
        inside.append(HeadQKV(seen.name, 1, 2, query, key, value, scores))
    steps = tuple(
        DecodingStep(
            token, 0.8, 0.9, ((token, 0.8), (" other", 0.15), (" third", 0.05)), ((0, token, -0.2), (0, " other", -1.9))
        )
        for token in tokens
    )
    count = len(plain.texts["source"].tokens)
    angles = np.arange(24)[:, None] / 10 ** (np.arange(8)[None] / 4)
    parts: dict[str, Any] = {
        "steps": steps,
        "verdict": LabelProbabilities(("tired", "awake", "neither"), (0.7, 0.2, 0.1)),
        "attribution": (Attribution("gradient×input", "tired", "source", tuple(np.linspace(-1, 1, count)), 0.42),),
        "places": PositionCodes(
            "sinusoidal", np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
        ),
        "inside": tuple(inside),
        "cut": (Omission("the sample is small", "the rest of the text"),),
    }
    ranked = replace(plain.attention[0], importance={"metric": "loss", "by": [[0.1, 0.2, 0.0], [0.3, -0.1, 1.2]]})
    parts |= {"made": {**plain.made, "epoch": 3}, "attention": (ranked, *plain.attention[1:])}
    return replace(plain, **{**parts, **others})


def answered_record() -> Record:
    """A question about a passage, with the answer's span."""
    text = side_of("Who was tired ? The animal was too tired to cross the street", "en")
    count = len(text.tokens)
    asked = replace(text, segment=tuple(int(place > 3) for place in range(count)))
    curve = np.exp(-((np.arange(count) - 6.0) ** 2))
    start, end = tuple(curve / curve.sum()), tuple(np.roll(curve, 1) / curve.sum())
    verdict = SpanProbabilities(start, end, ((6, 7, "animal", 0.8), (5, 7, "The animal", 0.15)), 0.05)
    seen = AttentionRecord("encoder.self", "source", "source", distributions((2, 4, count, count), 5), (0, 1))
    return Record("Who was tired?", {"source": asked}, (seen,), task="answer", verdict=verdict)
