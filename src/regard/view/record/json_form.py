"""The JSON form of a record, and what `regard see` and `regard figure` print about the files that they write.

Texts beside source and target: `decoder_input` (the target shifted by bos: what the decoder reads when it generates the
token of each row), `question` and `memory` (a hop attends to sentences), `label` (pooling for a classifier), `mix` and
`layers` (mix of frozen layers).
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class TextDict(TypedDict):
    """One text with its tokens."""

    text: str
    lang: str
    dir: str  # auto, ltr or rtl
    tokens: list[str]
    spans: list[list[int]]  # start and end of each token in `text`; empty where they are not known
    word_ids: list[int]  # word index of each token; -1: special token
    special: list[bool]
    token_types: list[int]  # empty for a single text


class BlockDict(TypedDict):
    """Weights of one layer; a layer may have several blocks, and a head without a block its thumbnail only."""

    layer: int
    heads: list[int]
    shape: list[int]  # heads, queries, keys
    codec: Literal["root8", "f16", "sparse"]
    data: NotRequired[str]
    href: NotRequired[str]  # in place of `data`: one matrix is at href + "/" + head


class ThumbnailsDict(TypedDict):
    """Small pictures of all heads."""

    size: list[int]  # rows, columns
    data: str  # root8, [layers, heads, rows, columns]


class HeadStatsDict(TypedDict):
    """Statistics of all heads, each [layers][heads]."""

    entropy: list[list[float]]
    distance: list[list[float]]
    special: list[list[float]]
    label: list[list[str]]


class ImportanceDict(TypedDict):
    """Importance of all heads."""

    metric: str
    values: list[list[float]]  # [layers][heads]


class AttentionDict(TypedDict):
    """Attention of one kind of site."""

    name: str
    rows: str  # name of the text
    columns: str
    row_meaning: Literal["token", "generated"]
    causal: bool
    residual: bool  # whether layers have residual connections
    visible: list[list[int]] | None  # number of keys that the mask allows each query, [layers or 1][queries]
    layers: list[int]
    heads: int
    blocks: list[BlockDict]
    thumbs: ThumbnailsDict
    stats: HeadStatsDict
    importance: ImportanceDict | None


class ArrayDict(TypedDict):
    """An array."""

    shape: list[int]
    codec: Literal["f16"]
    data: str


class QkvDict(TypedDict):
    """Queries, keys, values, scores and weights of one head."""

    attention: str
    layer: int
    head: int
    q: ArrayDict
    k: ArrayDict
    v: ArrayDict
    scores: ArrayDict  # as they are normalised
    weights: ArrayDict
    scale: float | None  # factor of q · k in the scores, before the temperature; null: they are no dot products
    temperature: float  # that divides the scores
    has_bias: bool  # whether a bias is added to the scores
    normalization: str  # what turns scores into weights: softmax, sparsemax, …
    scaling: str  # how views name the scale, the temperature and the bias: "÷ √64 + bias"


class StepDict(TypedDict):
    """One generated token."""

    token: str
    probability: float
    entropy: float  # bits
    top: list[tuple[str, float]]  # the most probable tokens
    beams: list[tuple[int, str, float]]  # index of the parent, token, score


class LabelProbabilitiesDict(TypedDict):
    """Probability of each label."""

    labels: list[str]
    probabilities: list[float]


class SpanProbabilitiesDict(TypedDict):
    """Probabilities that an answer starts, and ends, at each token of the text `source`."""

    start: list[float]
    end: list[float]
    answers: list[tuple[int, int, str, float]]  # first token, last token, text, score
    none: float | None  # probability of no answer


class AttributionDict(TypedDict):
    """How much an output depends on each token of a text."""

    method: str
    target: str
    side: str  # name of the text
    values: list[float]
    agreement: float | None  # rank correlation with attention
    backend: str  # that computed the values
    difference: float  # of its log-probability from the answer's


class PositionsDict(TypedDict):
    """Positional encodings of a model."""

    kind: str
    shape: list[int]
    data: str  # f16


class OmissionDict(TypedDict):
    """What a record leaves out, and why."""

    reason: str
    dropped: str


class RecordDict(TypedDict):
    """A record: texts, tokens, attention weights and decoding steps, behind page, file, notebook and figure."""

    regard: int  # version of this form
    id: str
    title: str
    task: str  # name of the task, or "see" for weights of any model
    provenance: dict[str, Any]  # version, model, time, …
    texts: dict[str, TextDict]
    attention: list[AttentionDict]
    qkv: list[QkvDict]
    steps: list[StepDict]
    prediction: LabelProbabilitiesDict | SpanProbabilitiesDict | None
    attribution: list[AttributionDict]
    positions: PositionsDict | None
    omissions: list[OmissionDict]
    view: dict[str, Any]  # initial state of the page


class RecordFileDict(TypedDict):
    """What `regard see --out --json` prints."""

    out: str
    id: str  # of the record
    title: str


class FigureFileDict(TypedDict):
    """What `regard figure --out --json` prints."""

    out: str
    view: str
    millimetres: list[float]  # width and height
    notes: list[str]


class TerminalViewDict(TypedDict):
    """What `regard figure --json` prints without `--out`."""

    view: str
    title: str
    lines: list[str]
