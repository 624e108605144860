"""What one answer loses without each head: every head switched off once, for this text alone.

`regard heads` measures heads on a corpus; this is what a page shows beside one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard.attention.intervention import ablate
from regard.attention.sites import site_kind
from regard.errors import UsageError
from regard.interpret.attribution import explainable_predictions
from regard.pipeline.embedding import EmbeddingPipeline, normalize
from regard.tokens import Tokens
from regard.view.record.record import Record

LOGPROB_LOSS, COSINE_DISTANCE = "log-probability lost", "1 − cosine"


def head_importance(pipeline: Any, *given: str) -> tuple[str, dict[str, list[float]]]:
    """Return what is measured, and what is lost without each head, by site.

    Given are a text, or two, for a classifier, a question and a passage for what answers questions, a text and its
    translation for a translator (without it, the one that it gives), a text for an encoder.
    """
    metric, sites, lost = _measured(pipeline, given)
    made: dict[str, list[float]] = {}
    for site, count in sites.items():
        made[site] = []
        for head in range(count):
            with ablate(f"{site}:{head}"):
                made[site].append(round(lost(), 6))
    return metric, made


def add_head_importance(record: Record, pipeline: Any, *inputs: str) -> Record:
    """Return the record of an answer with what is lost without each head; arguments are those of `head_importance`."""
    metric, found = head_importance(pipeline, *inputs)
    seen = []
    for one in record.attention:
        by = {site: values for site, values in found.items() if site_kind(site) == one.name}
        numbers = [*by.values()]
        whole = numbers and one.layers == tuple(range(len(numbers)))
        seen.append(replace(one, importance={"metric": metric, "by": numbers}) if whole else one)
    return replace(record, attention=tuple(seen))


def _measured(pipeline: Any, given: tuple[str, ...]) -> tuple[str, Mapping[str, int], Callable[[], float]]:
    """Return what is measured, the sites of the model, and what is lost at this moment."""
    if isinstance(pipeline, EmbeddingPipeline):
        if len(given) != 1:
            raise UsageError(f"one text has a vector, {len(given)} are given")
        vector = normalize(pipeline.embed(given).vectors)[0]

        def turned() -> float:
            return max(0.0, 1 - float(normalize(pipeline.embed(given).vectors)[0] @ vector))

        return COSINE_DISTANCE, pipeline.model.attention_sites(), turned
    asked = explainable_predictions(pipeline, given)

    @torch.no_grad()
    def value() -> float:
        return float(np.sum([float(one.values(Tokens.from_rows([one.input_ids]))[0]) for one in asked]))

    whole = value()
    return LOGPROB_LOSS, asked[0].model.attention_sites(), lambda: whole - value()
