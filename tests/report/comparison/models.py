"""Evaluated models for reports, without training: labels that are right at known examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.report.comparison.evaluation import Example, LearningCurve, ModelEvaluation, TrainingHistory
from regard.tasks.predictions import PredictedLabels

COUNT = 100


def labels(num_right: int, *, first: int = 0) -> PredictedLabels:
    """Predictions for 100 texts that are right for `num_right` of them, from the text `first` on."""
    is_right = (np.arange(COUNT) >= first) & (np.arange(COUNT) < first + num_right)
    references = np.arange(COUNT) % 2
    predictions = np.where(is_right, references, 1 - references)
    return PredictedLabels(predictions=predictions, references=references, labels=["no", "yes"])


def model(
    name: str, seeds: Sequence[int], *, has_attention: bool = False, first: int = 0, **settings: Any
) -> ModelEvaluation:
    """A model with so many right labels for each seed."""
    picture = "<svg></svg>" if has_attention else ""
    defaults: dict[str, Any] = {
        "summary": f"summary of {name}",
        "parameters": 1234,
        "examples_per_second": 99.0,
        "is_pretrained": False,
        "example": Example("yes", picture, site="pooling" if has_attention else "", has_attention=has_attention),
        "history": TrainingHistory(
            rate=10.0,
            unit="texts",
            minutes=1.5,
            loss=LearningCurve([(0.5, 0.9), (1.5, 0.4)], is_validation=False),
            metric=LearningCurve([(0.5, 60.0), (1.5, 90.0)]),
        ),
    }
    predictions = [labels(num_right, first=first) for num_right in seeds]
    return ModelEvaluation(name, predictions=predictions, **{**defaults, **settings})
