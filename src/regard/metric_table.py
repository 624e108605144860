"""The table of metrics: by name, what computes them, for which kinds of predictions, and how they are compared.

`regard.tasks.predictions` describes the kinds. A plugin adds a metric with `regard.register`:

    def kappa(predictions: PredictedLabels) -> float:
        return cohen_kappa_score(predictions.references, predictions.predictions)

    regard.register("metric", "kappa", Metric("Cohen's kappa", {"labels": kappa}, format="{:.3f}"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.errors import UsageError
from regard.registry import TASKS
from regard.tables import Registry

PERCENT = "{:.2f} %"
POINTS = "{:.2f}"
NATS = "{:.4f}"


@dataclass(frozen=True)
class Metric:
    """A metric. Its functions are objects or import strings: (Predictions) → number, None where the data has none.

    >>> Metric("macro-F1", {}).format_value(81.25), METRICS["ter"].format_value(40.0)
    ('macro-F1 81.25 %', 'TER 40.00')
    """

    field_name: str  # as the field writes it
    functions: Mapping[str, Any]  # kind of predictions → what computes the metric
    larger_is_better: bool = True
    format: str = PERCENT  # of its value
    digits: int | None = 4  # decimals that count when models are compared; None: all
    signature: Any = None  # () → text: version and settings of what computes it
    # kind of predictions → (Predictions) → ExampleStatistics: what it sums over examples, for intervals and tests
    statistics: Mapping[str, Any] = field(default_factory=dict)
    is_baseline: bool = False  # of a simple model on the same data: reported, but selects no model

    def format_value(self, value: float) -> str:
        """Name and value, for reading."""
        return f"{self.field_name} {self.format.format(value)}"

    def format_difference(self, value: float) -> str:
        """A value or a difference of two without name and unit: one decimal of points, more of nats.

        >>> METRICS["accuracy"].format_difference(-3.21), METRICS["loss"].format_difference(0.123)
        ('−3.2', '0.1230')
        """
        difference = self.format.format(value) if self.format == NATS else f"{value:.1f}"
        return difference.replace("-", "−")

    @property
    def unit(self) -> str:
        """Unit of a difference."""
        return "nats" if self.format == NATS else "points"

    def rank(self, value: float) -> float:
        """Value by which models are compared; the larger is the better."""
        rounded = value if self.digits is None else round(value, self.digits)
        return rounded if self.larger_is_better else -rounded


_FUNCTIONS = "regard.tasks.named_metrics"
_STATISTICS = "regard.tasks.example_statistics"
_TOKENS = ("next tokens", "masked tokens", "bidirectional tokens")


def _loss(
    field_name: str, function: str, kinds: tuple[str, ...], *, format: str = NATS, statistics: str = ""
) -> Metric:
    """Build the row of a loss or a perplexity; `statistics` are those of next tokens."""
    functions = dict.fromkeys(kinds, f"{_FUNCTIONS}:{function}")
    by_kind = {"next tokens": f"{_STATISTICS}:{statistics}"} if statistics else {}
    return Metric(field_name, functions, larger_is_better=False, format=format, digits=None, statistics=by_kind)


SPLITS = {"valid": "validation", "test": "test"}  # prefix of a metric's name → data that it is computed on


def format_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Format numeric metrics for reading: a fragment of text for each split, and one for those without a split.

    >>> format_metrics({"bleu": 39.216, "bleu_signature": "…"})
    ['BLEU 39.22']
    >>> format_metrics({"valid_accuracy": 82.0, "valid_accuracy_deviation": 2.83, "test_baseline": 71.5, "speed": 1.8})
    ['validation accuracy 82.00 % ± 2.83', 'test baseline 71.5', 'speed 1.8']
    """
    groups: dict[str, list[str]] = {}
    for name, value in metrics.items():
        if not isinstance(value, int | float) or name.endswith("_deviation"):
            continue
        split, _, metric = name.partition("_")
        if split not in SPLITS:
            split = ""
            metric = name
        text = METRICS[metric].format_value(value) if metric in METRICS else f"{metric.replace('_', ' ')} {value:.4g}"
        deviation = metrics.get(f"{name}_deviation")
        groups.setdefault(split, []).append(text if deviation is None else f"{text} ± {deviation:.3g}")
    return [f"{SPLITS.get(split, '')} {', '.join(texts)}".lstrip() for split, texts in groups.items()]


class MetricTable(Registry[Metric]):
    """Metrics by name."""

    def register(self, name: str, target: str | Metric, *, owner: str) -> None:
        """Add a metric; a bare function is refused, as it does not say which predictions it is for."""
        if not isinstance(target, str | Metric):
            raise UsageError(
                f"the metric {name!r} of {owner} must be a Metric, not {target!r:.60}: "
                'write Metric("its name", {"labels": function})'
            )
        super().register(name, target, owner=owner)


def describe_metric_name(name: str) -> str:
    """A metric's name, with what it stands for where that is not the same words.

    >>> describe_metric_name("macro_f1"), describe_metric_name("next_accuracy")
    ('macro_f1', 'next_accuracy (next-sentence accuracy)')
    """
    field_name = METRICS[name].field_name
    is_plain = _letters(field_name) == _letters(name)
    return name if is_plain else f"{name} ({field_name})"


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


METRICS = MetricTable(
    "metric",
    {
        "loss": _loss(
            "loss",
            "loss",
            ("labels", "label sets", "tags", "entities", "story answers", "translations", *_TOKENS),
            statistics="token_loss",
        ),
        "perplexity": _loss(
            "perplexity", "perplexity", ("translations", *_TOKENS), format=POINTS, statistics="perplexity"
        ),
        "loss_per_character": _loss("loss per character", "loss_per_character", ("next tokens",)),
        "perplexity_forward": _loss(
            "perplexity forward", "forward_perplexity", ("bidirectional tokens",), format=POINTS
        ),
        "perplexity_backward": _loss(
            "perplexity backward", "backward_perplexity", ("bidirectional tokens",), format=POINTS
        ),
        "perplexity_unigram": replace(
            _loss("perplexity of a unigram model", "unigram_perplexity", ("masked tokens",), format=POINTS),
            is_baseline=True,
        ),
        "accuracy": Metric(
            "accuracy",
            {
                "labels": f"{_FUNCTIONS}:label_accuracy",
                "tags": f"{_FUNCTIONS}:tag_accuracy",
                "entities": f"{_FUNCTIONS}:tag_accuracy",
                "masked tokens": f"{_FUNCTIONS}:masked_accuracy",
                "story answers": f"{_FUNCTIONS}:story_accuracy",
            },
            statistics={
                "labels": f"{_STATISTICS}:label_accuracy",
                "tags": f"{_STATISTICS}:tag_accuracy",
                "entities": f"{_STATISTICS}:tag_accuracy",
                "story answers": f"{_STATISTICS}:story_accuracy",
            },
        ),
        "error": Metric(
            "error",
            {"story answers": f"{_FUNCTIONS}:story_error"},
            larger_is_better=False,
            statistics={"story answers": f"{_STATISTICS}:story_error"},
        ),
        "next_accuracy": Metric("next-sentence accuracy", {"masked tokens": f"{_FUNCTIONS}:next_sentence_accuracy"}),
        "macro_f1": Metric(
            "macro-F1",
            {"labels": f"{_FUNCTIONS}:label_macro_f1", "label sets": f"{_FUNCTIONS}:label_set_macro_f1"},
            statistics={"labels": f"{_STATISTICS}:label_macro_f1", "label sets": f"{_STATISTICS}:label_set_macro_f1"},
        ),
        "micro_f1": Metric(
            "micro-F1",
            {"labels": f"{_FUNCTIONS}:label_micro_f1", "label sets": f"{_FUNCTIONS}:label_set_micro_f1"},
            statistics={"labels": f"{_STATISTICS}:label_accuracy", "label sets": f"{_STATISTICS}:label_set_micro_f1"},
        ),
        "weighted_f1": Metric(
            "weighted F1",
            {"labels": f"{_FUNCTIONS}:label_weighted_f1", "label sets": f"{_FUNCTIONS}:label_set_weighted_f1"},
        ),
        "mcc": Metric("Matthews correlation", {"labels": f"{_FUNCTIONS}:matthews_correlation"}, format=POINTS),
        "f1": Metric(
            "F1",
            {"entities": f"{_FUNCTIONS}:entity_f1", "answers": f"{_FUNCTIONS}:answer_f1"},
            statistics={"entities": f"{_STATISTICS}:entity_f1", "answers": f"{_STATISTICS}:answer_f1"},
        ),
        "precision": Metric(
            "precision",
            {"entities": f"{_FUNCTIONS}:entity_precision"},
            statistics={"entities": f"{_STATISTICS}:entity_precision"},
        ),
        "recall": Metric(
            "recall",
            {"entities": f"{_FUNCTIONS}:entity_recall"},
            statistics={"entities": f"{_STATISTICS}:entity_recall"},
        ),
        "exact_match": Metric(
            "exact match",
            {
                "label sets": f"{_FUNCTIONS}:label_set_exact_match",
                "answers": f"{_FUNCTIONS}:answer_exact_match",
                "translations": f"{_FUNCTIONS}:translation_exact_match",
            },
            statistics={
                "label sets": f"{_STATISTICS}:label_set_exact_match",
                "answers": f"{_STATISTICS}:answer_exact_match",
                "translations": f"{_STATISTICS}:translation_exact_match",
            },
        ),
        "answerable_f1": Metric("answerable F1", {"answers": f"{_FUNCTIONS}:answerable_f1"}),
        "no_answer_f1": Metric("no-answer F1", {"answers": f"{_FUNCTIONS}:no_answer_f1"}),
        "bleu": Metric(
            "BLEU",
            {"translations": f"{_FUNCTIONS}:bleu"},
            format=POINTS,
            signature=f"{_FUNCTIONS}:bleu_signature",
            statistics={"translations": f"{_STATISTICS}:bleu"},
        ),
        "bleu_lowercase": Metric(
            "BLEU, lower-cased",
            {"translations": f"{_FUNCTIONS}:bleu_lowercase"},
            format=POINTS,
            signature=f"{_FUNCTIONS}:bleu_lowercase_signature",
            statistics={"translations": f"{_STATISTICS}:bleu_lowercase"},
        ),
        "chrf": Metric(
            "chrF", {"translations": f"{_FUNCTIONS}:chrf"}, format=POINTS, signature=f"{_FUNCTIONS}:chrf_signature"
        ),
        "ter": Metric(
            "TER",
            {"translations": f"{_FUNCTIONS}:ter"},
            larger_is_better=False,
            format=POINTS,
            signature=f"{_FUNCTIONS}:ter_signature",
            statistics={"translations": f"{_STATISTICS}:ter"},
        ),
    },
)


def metrics_of(task: str) -> tuple[str, ...]:
    """Names that `--metric` takes: metrics of a task's predictions; of a task that names no kind of predictions, all.

    >>> metrics_of("story-qa"), "perplexity_unigram" in metrics_of("masked-lm")
    (('loss', 'accuracy', 'error'), False)
    """
    return metrics_for(*TASKS[task].metrics)


def metrics_for(*kinds: str) -> tuple[str, ...]:
    """Names that `--metric` takes for predictions of these kinds; without any, all. Those of baselines are left out."""
    selectable = {name: metric for name, metric in METRICS.items() if not metric.is_baseline}
    return tuple(name for name, metric in selectable.items() if not kinds or metric.functions.keys() & {*kinds})


def default_metrics(task: str) -> tuple[str, ...]:
    """Names of the metrics that select the best model, one for each kind of predictions of a task.

    >>> default_metrics("classify")
    ('accuracy', 'micro_f1')
    """
    return tuple(dict.fromkeys(metrics.ranking[0] for metrics in TASKS[task].metrics.values()))
