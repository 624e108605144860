"""Attribution: how much a prediction depends on each input token.

Attention weights say what a head attends to, not why a model predicts as it does. Three methods, a value per token:

    gradient×input        gradient of the prediction's log-probability, times the token's embedding
    integrated gradients  the same, averaged over embeddings on the path from a baseline token to this one
                          (Sundararajan et al. 2017); the values of all tokens add up to the whole change
    occlusion             loss of log-probability when the baseline replaces the token: slow, a check of the others

Gradients need torch: a torch model with the weights of the answering backend computes them, and each attribution states
its backend and by how much its log-probability differs from the answer's. Occlusion and the deletion test run on the
backend that answers.

The baseline is the model's mask token where it has one, else the unknown token. Special tokens are never replaced.
`agreement` is the rank correlation of absolute attributions with the attention that the tokens receive. The deletion
test replaces tokens in the order of their attribution: the larger the loss, the better the order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError, nearest
from regard.interpret.explainable import Explainable, explainable_predictions
from regard.packed_tokens import Ids, Tokens
from regard.view.record.parts import METHODS, Attribution, Omission
from regard.view.record.record import Record

Floats = NDArray[np.float64]
OCCLUSION = METHODS[-1]  # the only method without gradients
STEPS = 32  # of the path from baseline to input embeddings
BATCH_TOKENS = 4096  # computed together
DELETED_FRACTIONS = (0.1, 0.2, 0.3, 0.5)  # of the tokens that the deletion test replaces
RANDOM_ORDERS = 5  # that the deletion test compares with


@dataclass(frozen=True)
class Explanation:
    """Attributions of a prediction, and tests of their quality."""

    target: str  # what is explained: a label, a span, a translation
    attributions: tuple[Attribution, ...]  # one for each method
    deletion: Mapping[str, float]  # mean loss of log-probability when tokens are replaced in this order
    gap: float  # relative error of integrated gradients: how far they are from adding up to the whole change


def explain(
    pipeline: Any, *inputs: str, methods: Sequence[str] = METHODS, steps: int = STEPS, label: str = ""
) -> Explanation:
    """Attribute a prediction to its input tokens.

    Inputs are a text or a pair for a classifier (explains `label`, by default the predicted one), a question and a
    passage for question answering, a question and the sentences of a story for stories, a text and its translation for
    translation (by default the model's own).
    """
    for method in methods:
        if method not in METHODS:
            raise UsageError(f"no attribution {method!r}{nearest(method, METHODS)}: there are {', '.join(METHODS)}")
    predictions = explainable_predictions(pipeline, inputs, label)
    explanations = [_explain_prediction(prediction, methods, steps) for prediction in predictions]
    return explanations[0] if len(explanations) == 1 else _join_explanations(explanations)


def attributions(pipeline: Any, *inputs: str, methods: Sequence[str] = METHODS) -> tuple[Attribution, ...]:
    """Attributions of a prediction, as a record stores them; arguments are those of `explain`."""
    return explain(pipeline, *inputs, methods=methods).attributions


def add_attribution(record: Record, pipeline: Any, *inputs: str, methods: Sequence[str] = METHODS) -> Record:
    """Add the attributions of a prediction to its record; arguments are those of `explain`."""
    token_attributions = attributions(pipeline, *inputs, methods=methods)
    num_tokens = len(record.texts["source"].tokens)
    if any(len(attribution.values) != num_tokens for attribution in token_attributions):
        reason = f"the record shows {num_tokens} tokens, attribution is of {len(token_attributions[0].values)}"
        return replace(record, omissions=(*record.omissions, Omission(reason, "attribution")))
    return replace(record, attribution=token_attributions)


# ---- methods


def _compute_scores(prediction: Explainable, sequences: NDArray[np.int32]) -> Floats:
    """Log-probability of a prediction for each sequence, [sequences, tokens] → [sequences]."""
    batch_size = max(1, BATCH_TOKENS // max(1, sequences.shape[1]))
    scores = []
    for start in range(0, len(sequences), batch_size):
        scores.append(prediction.scores(Tokens.from_rows(list(sequences[start : start + batch_size]))))
    return np.concatenate(scores)


def _replace_tokens(prediction: Explainable, positions: NDArray[np.int64]) -> Ids:
    """Input tokens with the baseline at these positions, where they are not special."""
    ids = prediction.input_ids.copy()
    ids[positions] = np.where(prediction.is_special[positions], ids[positions], prediction.baseline_id)
    return ids


def _baseline_ids(prediction: Explainable) -> Ids:
    return _replace_tokens(prediction, np.arange(len(prediction.input_ids)))


def _gradient_times_input(prediction: Explainable, steps: int) -> tuple[Floats, float]:
    from regard.interpret.gradients import path_gradients

    return path_gradients(prediction, [1.0], _baseline_ids(prediction), times_input=True), 0.0


def _integrated_gradients(prediction: Explainable, steps: int) -> tuple[Floats, float]:
    from regard.interpret.gradients import path_gradients, torch_scores

    baseline_ids = _baseline_ids(prediction)
    values = path_gradients(prediction, [(step + 0.5) / steps for step in range(steps)], baseline_ids)
    input_logprob, baseline_logprob = torch_scores(prediction, [prediction.input_ids, baseline_ids])
    change = float(input_logprob - baseline_logprob)
    return values, abs(float(values.sum()) - change) / max(abs(change), 1e-9)


def _occlusion(prediction: Explainable, steps: int) -> tuple[Floats, float]:
    positions = np.flatnonzero(~prediction.is_special)
    occluded = [_replace_tokens(prediction, np.array([position])) for position in positions]
    logprobs = _compute_scores(prediction, np.stack([prediction.input_ids, *occluded]))
    values = np.zeros(len(prediction.input_ids))
    values[positions] = logprobs[0] - logprobs[1:]
    return values, 0.0


# each method returns the value of every token and its relative error
METHODS_BY_NAME: dict[str, Callable[[Explainable, int], tuple[Floats, float]]] = dict(
    zip(METHODS, (_gradient_times_input, _integrated_gradients, _occlusion), strict=True)
)


def _difference_of_torch(prediction: Explainable) -> float:
    """By how much the log-probability of the torch model differs from that of the backend that answers."""
    from regard.interpret.gradients import torch_scores

    if prediction.backend is prediction.model:
        return 0.0
    (torch_score,) = torch_scores(prediction, [prediction.input_ids])
    return float(torch_score - prediction.scores(Tokens.from_rows([prediction.input_ids]))[0])


def _explain_prediction(prediction: Explainable, methods: Sequence[str], steps: int) -> Explanation:
    attention = prediction.attention()
    has_gradients = any(method != OCCLUSION for method in methods)
    difference = _difference_of_torch(prediction) if has_gradients else 0.0
    is_content = ~prediction.is_special
    orders: dict[str, Floats] = {}
    gaps = []
    method_attributions = []
    for method in methods:
        values, gap = METHODS_BY_NAME[method](prediction, steps)
        orders[method] = values
        gaps.append(gap)
        method_attributions.append(
            Attribution(
                method,
                prediction.target,
                "source",
                tuple(float(value) for value in values),
                rank_correlation(np.abs(values)[is_content], attention[is_content]),
                backend=(prediction.backend if method == OCCLUSION else prediction.model).backend_name,
                difference=0.0 if method == OCCLUSION else difference,
            )
        )
    orders["attention"] = attention
    return Explanation(
        prediction.target,
        tuple(method_attributions),
        deletion=_test_deletion(prediction, orders),
        gap=max(gaps),
    )


def _join_explanations(explanations: Sequence[Explanation]) -> Explanation:
    """Join the explanations of a text's sentences: values one after the other, means of the measures."""
    joined = []
    for sentences in zip(*(explanation.attributions for explanation in explanations), strict=True):
        agreements = [sentence.agreement for sentence in sentences if sentence.agreement is not None]
        values = itertools.chain.from_iterable(sentence.values for sentence in sentences)
        joined.append(
            Attribution(
                sentences[0].method,
                " ".join(sentence.target for sentence in sentences),
                sentences[0].text_name,
                tuple(values),
                float(np.mean(agreements)) if agreements else None,
                backend=sentences[0].backend,
                difference=sum(sentence.difference for sentence in sentences),
            )
        )
    deletion = {}
    for order in explanations[0].deletion:
        deletion[order] = float(np.mean([explanation.deletion[order] for explanation in explanations]))
    return Explanation(
        joined[0].target if joined else "",
        tuple(joined),
        deletion=deletion,
        gap=max(explanation.gap for explanation in explanations),
    )


def _test_deletion(prediction: Explainable, orders: Mapping[str, Floats]) -> dict[str, float]:
    """Mean loss of log-probability when the first tokens of an order are replaced; `random`: of random orders."""
    positions = np.flatnonzero(~prediction.is_special)
    if not len(positions):
        return {}
    counts = sorted({max(1, round(fraction * len(positions))) for fraction in DELETED_FRACTIONS})
    rankings = [positions[np.argsort(-values[positions], kind="stable")] for values in orders.values()]
    rng = np.random.default_rng(0)
    rankings += [rng.permutation(positions) for _ in range(RANDOM_ORDERS)]
    sequences = [prediction.input_ids]
    for ranking, count in itertools.product(rankings, counts):
        sequences.append(_replace_tokens(prediction, ranking[:count]))
    logprobs = _compute_scores(prediction, np.stack(sequences))
    losses = (logprobs[0] - logprobs[1:]).reshape(len(rankings), len(counts)).mean(axis=1)
    deletion = {name: float(loss) for name, loss in zip(orders, losses, strict=False)}
    deletion["random"] = float(losses[len(orders) :].mean())
    return deletion


def rank_correlation(first: NDArray[np.floating], second: NDArray[np.floating]) -> float | None:
    """Spearman's rank correlation; None for fewer than three values, or where one side is constant.

    >>> rank_correlation(np.array([1.0, 5.0, 2.0]), np.array([10.0, 90.0, 20.0]))
    1.0
    """
    if len(first) < 3:
        return None
    first_ranks = _ranks(first)
    second_ranks = _ranks(second)
    if float(first_ranks.std()) == 0 or float(second_ranks.std()) == 0:
        return None
    return float(np.clip(np.corrcoef(first_ranks, second_ranks)[0, 1], -1, 1).round(12))


def _ranks(values: NDArray[np.floating]) -> Floats:
    """Ranks of values; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    return np.asarray((last_ranks - (counts - 1) / 2)[inverse], dtype=np.float64)
