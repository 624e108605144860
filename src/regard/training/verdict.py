"""The verdict on a finished run: did it learn more than a trivial baseline, and would more time have helped?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "needs_more_time", "learned_nothing"]

FEW_UPDATES = 20  # of a generative model that starts from random weights
ENOUGH_UPDATES = 1000  # what the remedy for too few updates aims at
LONGER = 4.0  # times the given limit, where the updates so far do not suggest a number
STILL_LEARNING = 0.5  # exponent of the recent improvement as a power law of the updates
POOR_BLEU = 10.0  # below it, a loss that falls at all is reason enough for more time
STILL_MOVING = 0.05  # exponent
RECENT = 0.8  # improvement is measured from the last evaluation up to this share of the updates
PERFECT = 99.95  # per cent: rounds to 100
GOOD = {"bleu": 60.0, "exact_match": 90.0, "f1": 90.0, "micro_f1": 90.0, "accuracy": 95.0}  # per cent
GOOD_ERROR, GOOD_PERPLEXITY = 5.0, 1.1
RANKED = ("bleu", "f1", "micro_f1", "accuracy", "valid_error")  # first of these that a task measures decides
LOSS = "loss"
LABELS = {"bleu": "BLEU", "f1": "F1", "micro_f1": "micro-F1", "macro_f1": "macro-F1", "valid_error": "error"}
HEADS: dict[Status, str] = {
    "ok": "ok",
    "needs_more_time": "more time is needed",
    "learned_nothing": "learned nothing",
}


@dataclass(frozen=True)
class TrivialBaseline:
    """Validation scores of a trivial rule that knows nothing but training statistics."""

    rule: str  # what it does, for people
    scores: Mapping[str, float]  # by the names that evaluations use
    margins: Mapping[str, float] = field(default_factory=dict)  # by which a model must be better, in the same units

    def beaten_by(self, evaluation: Mapping[str, float]) -> bool:
        """Whether an evaluation is better in at least one of the scores, beyond its margin.

        >>> baseline = TrivialBaseline("always yes", {"accuracy": 60.0, "loss": 0.67}, {"accuracy": 5.0})
        >>> [baseline.beaten_by({"accuracy": score, "loss": 0.7}) for score in (60.0, 64.0, 66.0)]
        [False, False, True]
        """
        for name, score in self.scores.items():
            if name in evaluation:
                gain = evaluation[name] - score
                if (-gain if lower_is_better(name) else gain) > self.margins.get(name, 0.0):
                    return True
        return False

    def compare(self, evaluation: Mapping[str, float]) -> str:
        """Say that an evaluation is no better, by the first score that both have."""
        name = next((name for name in self.scores if name in evaluation), "")
        if not name:
            return f"validation is no better than {self.rule}"
        return (
            f"validation {_label(name)} {evaluation[name]:.4g} is no better than {self.rule} ({self.scores[name]:.4g})"
        )


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
        digit = 10.0 ** (math.floor(math.log10(value)) - 1)
        rounded = digit * math.ceil(value / digit - 1e-6)
        return f"{self.option} {rounded if self.option == '--minutes' and rounded < 1 else math.ceil(rounded - 1e-6):g}"


@dataclass(frozen=True)
class Verdict:
    """What came of a run, why, and what to do about it."""

    status: Status = "ok"
    reason: str = ""
    remedy: str = ""
    baseline: dict[str, dict[str, float]] = field(default_factory=dict)  # rule → scores of the trivial baselines

    @property
    def text(self) -> str:
        """One line for people; empty where all is well.

        >>> Verdict("needs_more_time", "BLEU still rose", "train longer: --minutes 20").text
        'more time is needed: BLEU still rose; train longer: --minutes 20'
        """
        return "" if self.status == "ok" else f"{HEADS[self.status]}: {self.reason}; {self.remedy}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Verdict | None:
        """The verdict that a run's or a model's file records; None for one that was written without."""
        return cls(**values) if values else None


def lower_is_better(name: str) -> bool:
    """Whether a smaller value of this measure is better."""
    return name.startswith(("loss", "perplexity")) or name.endswith("error")


def judge(
    evaluations: Sequence[Mapping[str, Any]],
    *,
    updates: int,
    baselines: Sequence[TrivialBaseline],
    limit: Limit | None,
    pretrained: bool = False,
) -> Verdict:
    """Decide from a run's evaluations, oldest first, each with its `step`; the model of the last best one was kept.

    `limit` is the setting that ended the run; None where it ended because validation stopped improving or was good
    enough. `pretrained` models need no minimum of updates.
    """
    history = list({evaluation["step"]: evaluation for evaluation in evaluations}.values())
    recorded = {baseline.rule: dict(baseline.scores) for baseline in baselines}
    if not history:
        return Verdict(baseline=recorded)
    kept = next((one for one in reversed(history) if one.get("best")), history[-1])
    if _is_perfect(kept):
        return Verdict(baseline=recorded)
    unbeaten = next((baseline for baseline in baselines if not baseline.beaten_by(kept)), None)
    too_few = "perplexity" in kept and not pretrained and updates < FEW_UPDATES and not _is_good(kept)
    if unbeaten is not None or too_few:
        reason = f"{updates:,} update{'' if updates == 1 else 's'}{' are too few' if too_few else ''}"
        if unbeaten is not None:
            score = unbeaten.compare(kept)
            reason = f"{reason}, and {score}" if too_few else f"{score} after {reason}"
        return Verdict("learned_nothing", reason, _remedy_for_nothing(updates, limit), recorded)
    if limit is not None and not _is_good(kept) and (reason := _still_improving(history, kept)):
        remedy = f"train longer: {limit.longer(LONGER)}, with another --out"
        return Verdict("needs_more_time", reason, remedy, recorded)
    return Verdict(baseline=recorded)


def _ranked(evaluation: Mapping[str, Any]) -> str:
    """The measure that decides between evaluations."""
    return next((name for name in RANKED if name in evaluation), LOSS)


def _is_perfect(evaluation: Mapping[str, Any]) -> bool:
    name = _ranked(evaluation)
    if name == LOSS:
        return False
    score = 100 - evaluation[name] if lower_is_better(name) else evaluation[name]
    return bool(score >= PERFECT or evaluation.get("exact_match", 0.0) >= PERFECT)


def _is_good(evaluation: Mapping[str, Any]) -> bool:
    """Whether the model is usable, so that nobody needs to be warned."""
    if any(evaluation.get(name, 0.0) >= score for name, score in GOOD.items()):
        return True
    perplexity = evaluation.get("perplexity", math.inf)
    return bool(evaluation.get("valid_error", 100.0) <= GOOD_ERROR or perplexity <= GOOD_PERPLEXITY)


def _remedy_for_nothing(updates: int, limit: Limit | None) -> str:
    """More updates where there were few or time ran out; otherwise the data or the learning rate are to blame."""
    if limit is None or updates >= 2 * ENOUGH_UPDATES:
        return "check that the data can be learned, give more of it, or change --learning-rate"
    factor = max(2.0, ENOUGH_UPDATES / max(1, updates))
    return f"train longer: {limit.longer(factor)} (about {math.ceil(factor * updates):,} updates), with another --out"


def _still_improving(history: Sequence[Mapping[str, Any]], kept: Mapping[str, Any]) -> str:
    """Say what improved in the last part of the run, if the last evaluation is the best and more would clearly help.

    The pace is the exponent of a power law of the updates, so it does not depend on how many evaluations a run makes.
    """
    last = history[-1]
    earlier = [evaluation for evaluation in history if 0 < evaluation["step"] <= RECENT * last["step"]]
    if not earlier:
        return ""
    before = earlier[-1]
    elapsed = math.log(last["step"] / before["step"])
    poor = kept.get("bleu", POOR_BLEU) < POOR_BLEU
    for name in dict.fromkeys((_ranked(last), LOSS)):
        if name not in last or name not in before:
            continue
        falls = lower_is_better(name)
        if last[name] != (min if falls else max)(evaluation[name] for evaluation in history):
            continue
        larger, smaller = (before[name], last[name]) if falls else (last[name], before[name])
        pace = STILL_LEARNING if not poor else STILL_MOVING
        if larger <= 0 or math.log(larger / max(smaller, 1e-9)) < pace * elapsed:
            continue
        share = 100 * (1 - before["step"] / last["step"])
        score = f", BLEU is {kept['bleu']:.4g}" if poor and name != "bleu" else ""
        return (
            f"validation {_label(name)} still {'fell' if falls else 'rose'} from {before[name]:.4g} to "
            f"{last[name]:.4g} in the last {share:.0f} % of the run{score}"
        )
    return ""


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))
