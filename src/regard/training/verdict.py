"""The verdict on a finished run: whether it beats trivial baselines, and whether more time would have helped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from regard.errors import CheckpointError
from regard.formatting import format_count
from regard.metric_table import METRICS, Metric

Status = Literal["ok", "needs_more_time", "learned_nothing"]

FEW_UPDATES = 20  # too few for a generative model that starts from random weights
FEW_UPDATES_OF_AN_EPOCH = 200  # too few for random weights where the time ended within the first epoch
ENOUGH_UPDATES = 1000  # target of the remedy for too few updates
LOWER_RATE = 3.0  # divisor of a learning rate with which nothing was learned
LONGER = 4.0  # factor on the limit, where the updates so far do not suggest one
STILL_LEARNING = 0.5  # exponent of the recent improvement as a power law of the updates
POOR_BLEU = 10.0  # below it, any falling loss is reason enough for more time
STILL_MOVING = 0.05  # the same exponent with a poor BLEU
RECENT = 0.8  # improvement is measured from the last evaluation up to this share of the updates
PERFECT = 99.95  # percent; rounds to 100
GOOD = {"bleu": 60.0, "exact_match": 90.0, "f1": 90.0, "micro_f1": 90.0, "accuracy": 95.0}  # percent
GOOD_ERROR = 5.0  # percent
GOOD_PERPLEXITY = 1.1
LOSS = "loss"
HEADLINES: dict[Status, str] = {
    "ok": "ok",
    "needs_more_time": "more time is needed",
    "learned_nothing": "learned nothing",
}


@dataclass(frozen=True)
class TrivialBaseline:
    """Validation scores of a trivial rule that uses only training statistics."""

    rule: str  # as text for people
    scores: Mapping[str, float]  # by the metric names of evaluations
    margins: Mapping[str, float] = field(default_factory=dict)  # by which a model must be better, by metric

    def is_beaten_by(self, evaluation: Mapping[str, float]) -> bool:
        """Whether an evaluation is better in at least one of the scores, beyond its margin.

        >>> baseline = TrivialBaseline("always yes", {"accuracy": 60.0, "loss": 0.67}, {"accuracy": 5.0})
        >>> [baseline.is_beaten_by({"accuracy": score, "loss": 0.7}) for score in (60.0, 64.0, 66.0)]
        [False, False, True]
        """
        for name, score in self.scores.items():
            if name in evaluation:
                gain = evaluation[name] - score
                if not metric_row(name).larger_is_better:
                    gain = -gain
                if gain > self.margins.get(name, 0.0):
                    return True
        return False

    def compare(self, evaluation: Mapping[str, float]) -> str:
        """Describe an evaluation that is no better, by the first metric that both have."""
        name = next((name for name in self.scores if name in evaluation), "")
        if not name:
            return f"validation is no better than {self.rule}"
        metric = f"{metric_row(name).field_name} {evaluation[name]:.4g}"
        return f"validation {metric} is no better than {self.rule} ({self.scores[name]:.4g})"


@dataclass(frozen=True)
class Limit:
    """The setting that ended a run."""

    option: str  # of the command line: --minutes, --steps, --epochs
    value: float

    def longer(self, factor: float) -> str:
        """The same option with a larger value, rounded up to two digits.

        >>> Limit("--minutes", 1.5).longer(4), Limit("--steps", 12).longer(1000 / 12)
        ('--minutes 6', '--steps 1000')
        """
        value = factor * self.value
        second_digit = 10.0 ** (math.floor(math.log10(value)) - 1)
        rounded = second_digit * math.ceil(value / second_digit - 1e-6)
        is_fraction = self.option == "--minutes" and rounded < 1
        return f"{self.option} {rounded if is_fraction else math.ceil(rounded - 1e-6):g}"


class VerdictDict(TypedDict):
    """JSON form of a `Verdict`."""

    status: Status
    reason: str
    remedy: str
    retry: str  # options of a run that may do better; empty where the status is ok
    baseline: dict[str, dict[str, float]]  # rule → scores of the trivial baselines


@dataclass(frozen=True)
class Verdict:
    """Outcome of a run, its reason, and the remedy."""

    status: Status = "ok"
    reason: str = ""
    remedy: str = ""
    retry: str = ""  # options of a run that may do better
    baseline: dict[str, dict[str, float]] = field(default_factory=dict)  # rule → scores of the trivial baselines

    @property
    def text(self) -> str:
        """One line for people; empty where the status is ok.

        >>> Verdict("needs_more_time", "BLEU still rose", "train longer: --minutes 20").text
        'more time is needed: BLEU still rose; train longer: --minutes 20'
        """
        return "" if self.status == "ok" else f"{HEADLINES[self.status]}: {self.reason}; {self.remedy}"

    def to_dict(self) -> VerdictDict:
        """Convert to JSON values."""
        return {
            "status": self.status,
            "reason": self.reason,
            "remedy": self.remedy,
            "retry": self.retry,
            "baseline": dict(self.baseline),
        }

    def for_all_seeds(self, count: int) -> Verdict:
        """The verdict on a run of several seeds by that on one of them, which had its share of the minutes.

        >>> verdict = Verdict("needs_more_time", "BLEU still rose", "train longer: --minutes 8", "--minutes 8")
        >>> verdict.for_all_seeds(5).text
        'more time is needed: BLEU still rose; train longer: --minutes 40'
        """
        option, _, value = self.retry.partition(" ")
        if option != "--minutes":
            return self
        retry = f"{option} {count * float(value):g}"
        return replace(self, remedy=self.remedy.replace(self.retry, retry), retry=retry)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, *, where: str = "") -> Verdict | None:
        """Build from the JSON values of a run or a model, read from `where`; None where it has no verdict."""
        if not values:
            return None
        names = VerdictDict.__annotations__.keys()
        if not isinstance(values, Mapping) or values.keys() != names or values["status"] not in HEADLINES:
            raise CheckpointError(f"{where}: verdict: an object with {', '.join(names)} is needed")
        return cls(**values)


def metric_row(name: str) -> Metric:
    """Row of a metric by its name in an evaluation, which may begin with the split.

    >>> metric_row("valid_error").field_name
    'error'
    """
    return METRICS[name.removeprefix("valid_")]


def judge(
    evaluations: Sequence[Mapping[str, Any]],
    *,
    metric: str,
    updates: int,
    baselines: Sequence[TrivialBaseline],
    limit: Limit | None,
    epochs: float = math.inf,
    learning_rate: float = 0.0,
    is_pretrained: bool = False,
) -> Verdict:
    """Judge a run by its evaluations, oldest first, each with its `step`; the last one marked `best` is the model's.

    `metric` is the name of the metric that ranks them. `limit` is the setting that ended the run; None where it ended
    by patience or at its target. `epochs` is the number of passes over the training data. `learning_rate` is the base
    rate of the run, 0 where it is not known. Models that start from pretrained weights need no minimum of updates.
    """
    history = list({evaluation["step"]: evaluation for evaluation in evaluations}.values())
    baseline_scores = {baseline.rule: dict(baseline.scores) for baseline in baselines}
    ok = Verdict(baseline=baseline_scores)
    if not history:
        return ok
    best = next((evaluation for evaluation in reversed(history) if evaluation.get("best")), history[-1])
    if _is_perfect(best, metric):
        return ok
    unbeaten = next((baseline for baseline in baselines if not baseline.is_beaten_by(best)), None)
    has_few_updates = "perplexity" in best and not is_pretrained and updates < FEW_UPDATES and not _is_good(best)
    if unbeaten is not None or has_few_updates:
        reason = _reason_for_nothing(updates, has_few_updates, unbeaten, best)
        remedy, retry = _remedy_for_nothing(updates, limit, learning_rate)
        return Verdict("learned_nothing", reason, remedy=remedy, retry=retry, baseline=baseline_scores)
    if limit is None or _is_good(best):
        return ok
    reason = _describe_improvement(history, best, metric)
    ends_early = limit.option == "--minutes" and epochs < 1 and updates < FEW_UPDATES_OF_AN_EPOCH
    if ends_early and not is_pretrained:
        reason = f"the time ended after {format_count(updates, 'update')}, on {100 * epochs:.0f} % of the training data"
    if not reason:
        return ok
    retry = limit.longer(LONGER)
    remedy = f"train longer: {retry}, with another --out"
    return Verdict("needs_more_time", reason, remedy=remedy, retry=retry, baseline=baseline_scores)


def _reason_for_nothing(
    updates: int, has_few_updates: bool, unbeaten: TrivialBaseline | None, best: Mapping[str, Any]
) -> str:
    count = format_count(updates, "update")
    too_few = f"{count} {'is' if updates == 1 else 'are'} too few"
    if unbeaten is None:
        return too_few
    comparison = unbeaten.compare(best)
    return f"{too_few}, and {comparison}" if has_few_updates else f"{comparison} after {count}"


def _is_perfect(evaluation: Mapping[str, Any], metric: str) -> bool:
    row = metric_row(metric)
    if row.digits is None:  # a loss
        return False
    score = evaluation[metric] if row.larger_is_better else 100 - evaluation[metric]
    return bool(score >= PERFECT or evaluation.get("exact_match", 0.0) >= PERFECT)


def _is_good(evaluation: Mapping[str, Any]) -> bool:
    """Whether the model is good enough to need no warning."""
    if any(evaluation.get(name, 0.0) >= score for name, score in GOOD.items()):
        return True
    perplexity = evaluation.get("perplexity", math.inf)
    return bool(evaluation.get("valid_error", 100.0) <= GOOD_ERROR or perplexity <= GOOD_PERPLEXITY)


def _remedy_for_nothing(updates: int, limit: Limit | None, learning_rate: float) -> tuple[str, str]:
    """Advise more updates after few of them, otherwise better data or another learning rate; and the options for it."""
    if limit is None or updates >= 2 * ENOUGH_UPDATES:
        remedy = "check that the data can be learned, add more of it, or change --learning-rate"
        return remedy, f"--learning-rate {learning_rate / LOWER_RATE:.1g}" if learning_rate else ""
    factor = max(2.0, ENOUGH_UPDATES / max(1, updates))
    retry = limit.longer(factor)
    return f"train longer: {retry} (about {math.ceil(factor * updates):,} updates), with another --out", retry


def _describe_improvement(history: Sequence[Mapping[str, Any]], best: Mapping[str, Any], metric: str) -> str:
    """Describe what improved late in the run, if the last evaluation is the best and more time would clearly help.

    The pace is the exponent of a power law of the updates, so it does not depend on the number of evaluations.
    """
    last = history[-1]
    earlier = [evaluation for evaluation in history if 0 < evaluation["step"] <= RECENT * last["step"]]
    if not earlier:
        return ""
    before = earlier[-1]
    is_poor = best.get("bleu", POOR_BLEU) < POOR_BLEU
    min_gain = (STILL_MOVING if is_poor else STILL_LEARNING) * math.log(last["step"] / before["step"])
    for name in dict.fromkeys((metric, LOSS)):
        if name not in last or name not in before or not _is_last_best(history, name):
            continue
        falls = not metric_row(name).larger_is_better
        larger, smaller = (before[name], last[name]) if falls else (last[name], before[name])
        if larger <= 0 or math.log(larger / max(smaller, 1e-9)) < min_gain:
            continue
        percent = 100 * (1 - before["step"] / last["step"])
        score = f", BLEU is {best['bleu']:.4g}" if is_poor and name != "bleu" else ""
        return (
            f"validation {metric_row(name).field_name} still {'fell' if falls else 'rose'} from {before[name]:.4g} to "
            f"{last[name]:.4g} in the last {percent:.0f} % of the run{score}"
        )
    return ""


def _is_last_best(history: Sequence[Mapping[str, Any]], name: str) -> bool:
    scores = [evaluation[name] for evaluation in history]
    return bool(scores[-1] == (max(scores) if metric_row(name).larger_is_better else min(scores)))
