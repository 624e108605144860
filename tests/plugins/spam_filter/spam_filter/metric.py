"""The metric: percentage of good mail that is taken for spam."""

from __future__ import annotations

from regard.metric_table import Metric
from regard.tasks.predictions import PredictedLabels


def false_alarms(predictions: PredictedLabels) -> float | None:
    """Percentage of the texts of other labels that are predicted to be spam; None where there is no such text."""
    spam = list(predictions.labels).index("spam")
    is_good = predictions.references != spam
    if not is_good.any():
        return None
    return 100 * float((predictions.predictions[is_good] == spam).mean())


FALSE_ALARMS = Metric("false alarms", {"labels": false_alarms}, larger_is_better=False)
