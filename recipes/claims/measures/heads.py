"""What heads attend to, and how much they differ."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.claims.measure import HEAD_STATISTICS, Measurement, Subject
from regard.checkpoint.atomic import make_folder, write_file
from regard.config.data import ReadConfig
from regard.data.coreference import CoreferenceSentence
from regard.data.coreference_templates import generate_coreference
from regard.data.pairs import read_pairs
from regard.errors import ConfigError
from regard.interpret.coreference_links import sentence_attention, study_links
from regard.interpret.head_statistics import AttentionBatch, CorpusStatistics
from regard.interpret.head_study import build_subject
from regard.interpret.subjects import TranslationSubject
from regard.pipeline.load import load, load_translator


def head_statistics(subject: Subject, *, examples: int = 200, site: str = "") -> Measurement:
    """Statistics of self-attention, means over all heads of the sites whose name contains `site`.

    `argmax_itself` is the percentage of rows of attention weights whose largest weight is on the token itself; the
    others are those of `regard heads`. The model is that of the setting `folder`, or the trained one.
    """
    folder = Path(subject.settings.get("folder", subject.folder))
    studied = build_subject(load(folder), [*_text_files(subject)])
    indices = np.arange(min(examples, len(studied)))
    statistics = CorpusStatistics(studied.model.attention_sites())
    shares: dict[str, list[float]] = defaultdict(list)
    for attention in studied.attention(indices):
        sites = [entry for entry in attention if entry[2].is_self and site in entry[0]]
        for name, weights, batch in sites:
            statistics.add(name, weights, batch)
        if sites:
            by_site = [_argmax_itself(weights, batch) for _, weights, batch in sites]
            shares["argmax_itself"] += np.mean(by_site, axis=0).tolist()
    heads = [
        values for (name, _), (values, _) in statistics.heads().items() if statistics.is_self[name] and site in name
    ]
    if not heads:
        raise ConfigError(f"head_statistics: no self-attention has {site!r} in its name")
    numbers = {name: fmean(getattr(head, name) for head in heads) for name in HEAD_STATISTICS}
    return Measurement({"argmax_itself": fmean(shares["argmax_itself"]), **numbers}, samples=dict(shares))


def head_distance(subject: Subject, *, examples: int = 50) -> Measurement:
    """Mean total variation distance between the attention weights of two heads of a layer, over all pairs of heads."""
    assert subject.data is not None
    pairs = read_pairs(subject.data.test, ReadConfig())
    studied = TranslationSubject(load_translator(subject.folder), pairs)
    distances: list[float] = []
    for attention in studied.attention(np.arange(min(examples, len(studied)))):
        for _, weights, batch in attention:
            is_query = batch.queries >= 0  # [rows, queries]
            for first, second in combinations(range(weights.shape[1]), 2):
                difference = np.abs(weights[:, first] - weights[:, second]).sum(-1)
                distances.append(float(difference[is_query].mean()) / 2)
    if not distances:
        raise ConfigError("head_distance needs models with several heads")
    return Measurement.from_value(fmean(distances))


def coreference_links(subject: Subject, *, pairs: int = 200) -> Measurement:
    """Accuracy of heads at pronouns: how often a pronoun attends more to its antecedent than to the other noun.

    The sentences differ by seed. `chosen` is the best head of one half of the scenarios, scored on the other half;
    `both` is its percentage of pairs with both sentences right. `nearest` is the baseline that takes the nearest noun,
    `best` the best head on all sentences.
    """
    rows = generate_coreference(pairs, subject.seed, split="all")
    sentences = [CoreferenceSentence.from_row(row) for row in rows]
    report = study_links(sentence_attention(load(subject.settings["folder"], task="embed")), sentences)
    assert report.chosen.both is not None  # all generated sentences are in pairs
    return Measurement(
        {
            "chosen": report.chosen.accuracy,
            "both": report.chosen.both,
            "nearest": report.baseline.mean,
            "best": report.rows[0].accuracy,
        }
    )


def _argmax_itself(weights: NDArray[np.float32], batch: AttentionBatch) -> NDArray[np.float64]:
    """Percentage of each example's rows, over all heads, whose largest weight is on the token itself."""
    is_query = batch.queries >= 0  # [examples, queries]
    is_itself = weights.argmax(axis=3) == np.arange(weights.shape[2])  # [examples, heads, queries]
    counts = (is_itself & is_query[:, None]).sum(axis=(1, 2))
    shares: NDArray[np.float64] = 100 * counts / (weights.shape[1] * is_query.sum(axis=1))
    return shares


def _text_files(subject: Subject) -> tuple[str, ...]:
    """Test files; of a model that embeds texts, a file of the texts alone."""
    assert subject.data is not None
    if "folder" not in subject.settings:
        return subject.data.test
    texts: Any = read_pairs(subject.data.test, ReadConfig()).source
    make_folder(subject.folder)
    file = subject.folder / "texts.txt"
    write_file(file, "".join(f"{text}\n" for text in texts).encode())
    return (str(file),)
