"""Small records for tests, built without a model; together they have every part that a record can have."""

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
    PositionEncodings,
    SpanProbabilities,
)
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

LAYERS = 2
HEADS = 3
HEAD_SIZE = 8


def distributions(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random attention weights: each row sums to one."""
    samples = np.random.default_rng(seed).gamma(0.3, size=shape) + 1e-9
    return (samples / samples.sum(axis=-1, keepdims=True)).astype(np.float32)


def sample_record(source: str = "viernes, 3 de marzo de 2017", target: str = "2017-03-03", title: str = "") -> Record:
    """A translation in subwords; head 2 of the last cross-attention layer is the best alignment head."""
    source_text = build_text(source, "es")
    target_text = build_text(target, "")
    rows = len(target_text.tokens)
    columns = len(source_text.tokens)
    cross_weights = distributions((LAYERS, HEADS, rows, columns), 1)
    cross_weights[1, 2] = 0
    cross_weights[1, 2, np.arange(rows), np.arange(rows) * 2 % columns] = 1
    self_weights = distributions((LAYERS, HEADS, columns, columns), 2)
    attention = (
        AttentionRecord("decoder.cross", "target", "source", cross_weights, layers=(0, 1), is_generated=True),
        AttentionRecord("encoder.self", "source", "source", self_weights, layers=(0, 1)),
    )
    return Record(
        title or source,
        {"source": source_text, "target": target_text},
        attention,
        provenance={"version": "0.0.0", "model": "sample", "when": "2026-01-01T00:00:00"},
        best=("decoder.cross", 1, 2),
    )


def build_text(text: str, language: str) -> RecordText:
    """Tokenize a text: a word of five or more letters is two subwords; an end token follows."""
    tokens: list[str] = []
    word_ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for word_id, word in enumerate(text.split(" ")):
        subwords = [word] if len(word) < 5 else [word[:4], word[4:]]
        for subword in subwords:
            starts_word = subword == word[: len(subword)]
            tokens.append((" " if word_id and starts_word else "") + subword)
            word_ids.append(word_id)
            spans.append((start, start + len(subword)))
            start += len(subword)
        start += 1
    end_span = (len(text), len(text))
    return RecordText.from_subwords(text, [*tokens, "</s>"], [*word_ids, -1], [*spans, end_span], language)


def whole_record(
    source: str = "The animal was too tired", target: str = "Das Tier war zu müde", **changes: Any
) -> Record:
    """A translation that has every part of a record; `changes` replace fields."""
    record = sample_record(source, target)
    angles = np.arange(24)[:, None] / 10 ** (np.arange(8)[None] / 4)
    position_codes = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    attributions = tuple(np.linspace(-1, 1, len(record.texts["source"].tokens)))
    importance = {"metric": "loss", "values": [[0.1, 0.2, 0.0], [0.3, -0.1, 1.2]]}
    ranked_attention = replace(record.attention[0], importance=importance)
    parts: dict[str, Any] = {
        "steps": tuple(_decoding_step(token) for token in record.texts["target"].tokens),
        "prediction": LabelProbabilities(("tired", "awake", "neither"), (0.7, 0.2, 0.1)),
        "attribution": (Attribution("gradient×input", "tired", "source", attributions, 0.42),),
        "positions": PositionEncodings("sinusoidal", position_codes),
        "qkv": _random_qkv(record),
        "omissions": (Omission("the sample is small", "the rest of the text"),),
        "provenance": {**record.provenance, "epoch": 3},
        "attention": (ranked_attention, *record.attention[1:]),
    }
    return replace(record, **{**parts, **changes})


def _decoding_step(token: str) -> DecodingStep:
    return DecodingStep(
        token,
        0.8,
        entropy=0.9,
        top=((token, 0.8), (" other", 0.15), (" third", 0.05)),
        beams=((0, token, -0.2), (0, " other", -1.9)),
    )


def _random_qkv(record: Record) -> tuple[HeadQKV, ...]:
    """Random queries, keys and values of head 2 in layer 1, for every attention of a record."""
    random = np.random.default_rng(3)
    heads = []
    for attention in record.attention:
        rows, columns = attention.shape[2:]
        query = random.normal(size=(rows, HEAD_SIZE))
        key = random.normal(size=(columns, HEAD_SIZE))
        value = random.normal(size=(columns, HEAD_SIZE))
        scores = (query @ key.T / np.sqrt(HEAD_SIZE)).astype(np.float32)
        exponentials = np.exp(scores)
        heads.append(
            HeadQKV(
                attention.name,
                1,
                head=2,
                query=query,
                key=key,
                value=value,
                scores=scores,
                weights=exponentials / exponentials.sum(axis=1, keepdims=True),
                scale=HEAD_SIZE**-0.5,
            )
        )
    return tuple(heads)


def unscaled_sparse_record() -> Record:
    """A record whose math view shows a sparsemax of unscaled dot products, with a bias and a masked key."""
    record = whole_record()
    num_keys = len(record.texts["source"].tokens)
    attention = record["encoder.self"]
    head = next(head for head in record.qkv if head.attention == attention.name)
    weights = np.zeros((num_keys, num_keys), np.float32)
    weights[:, :2] = (0.75, 0.25)
    scores = head.query @ head.key.T + 1
    scores[:, 2] = -np.inf
    stored = np.array(attention.stored)
    stored[1, 2] = weights
    head = replace(head, scores=scores, weights=weights, scale=1.0, has_bias=True, normalization="sparsemax")
    return replace(record, attention=(replace(attention, stored=stored, has_residual=False),), qkv=(head,), best=None)


def answered_record() -> Record:
    """A question about a passage, with the probabilities of the answer's span."""
    text = build_text("Who was tired ? The animal was too tired to cross the street", "en")
    num_tokens = len(text.tokens)
    pair = replace(text, token_types=tuple(int(index > 3) for index in range(num_tokens)))
    curve = np.exp(-((np.arange(num_tokens) - 6.0) ** 2))
    start = tuple(curve / curve.sum())
    end = tuple(np.roll(curve, 1) / curve.sum())
    answers = ((6, 7, "animal", 0.8), (5, 7, "The animal", 0.15))
    weights = distributions((2, 4, num_tokens, num_tokens), 5)
    attention = AttentionRecord("encoder.self", "source", "source", weights, layers=(0, 1))
    return Record(
        "Who was tired?",
        {"source": pair},
        (attention,),
        task="answer",
        prediction=SpanProbabilities(start, end, answers=answers, no_answer=0.05),
    )
