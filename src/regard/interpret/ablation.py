"""Head importance for one prediction: what it loses when each head is ablated.

`regard heads` measures heads on a corpus (`head_study`); this is what a page shows beside one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from regard.attention.intervention import ablate
from regard.attention.sites import site_kind
from regard.errors import UsageError
from regard.interpret.explainable import Explainable, explainable_predictions
from regard.packed_tokens import Tokens
from regard.pipeline.embedding import EmbeddingPipeline, normalize
from regard.view.record.record import Record

LOGPROB_LOSS = "log-probability lost"
COSINE_DISTANCE = "1 − cosine"


def head_importance(pipeline: Any, *inputs: str) -> tuple[str, dict[str, list[float]]]:
    """Measure what a prediction loses without each head; return the name of the metric and the losses by site.

    Inputs are a text or a pair for a classifier, a question and a passage for question answering, a question and the
    sentences of a story for stories, a text and its translation for translation (by default the model's own), a text
    for an encoder.
    """
    metric, sites, measure_loss = _build_measure(pipeline, inputs)
    losses: dict[str, list[float]] = {}
    for site, num_heads in sites.items():
        losses[site] = []
        for head in range(num_heads):
            with ablate(f"{site}:{head}"):
                losses[site].append(round(measure_loss(), 6))
    return metric, losses


def add_head_importance(record: Record, pipeline: Any, *inputs: str) -> Record:
    """Add the importance of each head to the record of a prediction; arguments are those of `head_importance`."""
    metric, losses = head_importance(pipeline, *inputs)
    attention = []
    for site_attention in record.attention:
        by_layer = [values for site, values in losses.items() if site_kind(site) == site_attention.name]
        has_all_layers = by_layer and site_attention.layers == tuple(range(len(by_layer)))
        if has_all_layers:
            site_attention = replace(site_attention, importance={"metric": metric, "values": by_layer})
        attention.append(site_attention)
    return replace(record, attention=tuple(attention))


def _build_measure(pipeline: Any, inputs: tuple[str, ...]) -> tuple[str, Mapping[str, int], Callable[[], float]]:
    """Name of the metric, sites of the model, and a function that measures the loss under the active ablation."""
    if isinstance(pipeline, EmbeddingPipeline):
        if len(inputs) != 1:
            raise UsageError(f"head importance of an embedding takes one text, not {len(inputs)}")
        intact_vector = normalize(pipeline.embed(inputs).vectors)[0]

        def cosine_distance() -> float:
            return max(0.0, 1 - float(normalize(pipeline.embed(inputs).vectors)[0] @ intact_vector))

        return COSINE_DISTANCE, pipeline.model.attention_sites(), cosine_distance
    predictions = explainable_predictions(pipeline, inputs)

    def logprob() -> float:
        logprobs = [_single_logprob(prediction) for prediction in predictions]
        return float(np.sum(logprobs))

    intact_logprob = logprob()
    return LOGPROB_LOSS, predictions[0].backend.attention_sites(), lambda: intact_logprob - logprob()


def _single_logprob(prediction: Explainable) -> float:
    return float(prediction.scores(Tokens.from_rows([prediction.input_ids]))[0])
