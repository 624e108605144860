"""How far models look back: influence and gradients by distance."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from recipes.claims.measure import Measurement, Subject
from regard.interpret.reach import ReachPoint, distance_bins, reach_curve
from regard.interpret.reach_sample import build_reach_subject, sample_reach
from regard.pipeline.load import load


def influence(subject: Subject, *, of: str, predictions: int = 500, bins: int = 12) -> Measurement:
    """Influence of source tokens on the prediction by their distance, as `regard reach` measures it.

    `of` is recalled: share of the token to recall in the gradient norms of its row; or all: gradient norm of any token.
    `near` and `far` are means over the nearest and the farthest quarter of the distances, `retained` is their ratio.
    """
    assert subject.data is not None
    reach_subject = build_reach_subject(load(subject.folder), subject.data.test)
    sample = sample_reach(reach_subject, sample=predictions, occluded=1)
    curve = reach_curve(sample, distance_bins(int(sample.distance.max()), bins))
    values = [(point.distance, _influence(point, of)) for point in curve.points]
    known = [(distance, value) for distance, value in values if not np.isnan(value)]
    quarter = max(1, len(known) // 4)
    near = fmean(value for _, value in known[:quarter])
    far = fmean(value for _, value in known[-quarter:])
    return Measurement({"near": near, "far": far, "retained": far / near}, curve=tuple(known))


def _influence(point: ReachPoint, of: str) -> float:
    return point.recalled_gradient if of == "recalled" else point.gradient_norm
