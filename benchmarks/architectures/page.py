"""The page of the site that shows the comparisons, generated from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.architectures.stages import (
    COMPARISONS,
    PRETRAINING_MINUTES,
    STORY_RESTARTS,
    Comparison,
)
from regard.checkpoint.atomic import read_json
from regard.formatting import format_count, format_p_value
from regard.metric_table import METRICS
from regard.report.comparison.conclusion import WITHOUT_PRETRAINING, join_names, quote_name

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "architectures"
PAGE = ROOT / "docs" / "best-architecture.md"
STAGE_TITLES = {
    "classify": "Classification: test accuracy, %",
    "tag": "Tagging: test F1, %",
    "stories": "Stories of bAbI: test error, %",
}
INTRODUCTION = f"""\
# Which architecture is best

*At the end you know how architectures compare on the same data with the same budget, and where attention does not win.*

```text
python -m benchmarks.architectures --data ../shared/data             # all stages; resumes after an interruption
python -m benchmarks.architectures pretrain --data ../shared/data    # or one: pretrain, classify, tag, stories
```

Each stage takes at most an hour on two cores: its parts run two at a time, each on one thread. ELMo, BERT and GPT are
pre-trained for {PRETRAINING_MINUTES:.0f} minutes each on the same text, three books and part of WikiText-2. MiniLM,
which was pre-trained on far more text, is included for comparison. ELMo, BERT and GPT were pre-trained once each: no
interval contains what another pre-training would change.

On a data set, all models trained from scratch have the same time limit, and so have all that use a pre-trained model,
whose limit includes the computation of frozen features; both are given below each table. Memory networks have no limit:
they train for their published number of epochs, and the column “minutes” shows how long that takes. Word counts and the
most frequent answer are baselines, which have no training time. All models have their default settings: none is tuned.

Scores are means over three seeds. Their 95 % intervals come from a bootstrap over the test examples, with Student's t
for the error of the seeds; for proportions such as accuracies, the bootstrap is the exact interval of Clopper and
Pearson. “Against the best” is the difference from the best model, with the p-value of a paired test (approximate
randomization). The best is chosen on the same test data, so p is adjusted for all pairs of models (Holm).

On bAbI, models are trained from one seed with {STORY_RESTARTS} restarts, and intervals do not contain what another seed
would change. Of the LSTM and the Transformer the restart with the best validation score is tested; of the memory
network, as published, that with the lowest training error.
"""
OVERVIEW_NOTE = "Bold: the best score of a data set, and those that do not differ from it significantly."
OUTCOMES = {
    "wins": "{model}, the best with attention, is significantly better than the best without on {data}.",
    "ties": "{model}, the best with attention, does not differ significantly from the best without on {data}.",
    "loses": "{model}, the best without attention, is significantly better than the best with attention on {data}.",
}
CONTRASTS_NOTE = (
    "Differences between pairs of models that were chosen beforehand, first minus second, in points. Bold: "
    "significant, with p adjusted for the number of pairs on a data set. In brackets: not tested."
)
FORMER_METHOD_NOTE = (
    "This result is older than the statistics described above: its intervals are percentiles of resampled single "
    "questions, also where several are about one story; p is adjusted for the tests against the best model alone, and "
    "the test between the best with attention and the best without is not adjusted."
)


def build_page(results: Path = RESULTS) -> str:
    """Build the page: an overview, and a section for each comparison."""
    paths = {comparison.name: results / f"{comparison.name}.json" for comparison in COMPARISONS}
    finished = {name: read_json(path) for name, path in paths.items() if path.is_file()}
    sections = [_section(comparison, finished.get(comparison.name)) for comparison in COMPARISONS]
    return "\n".join([INTRODUCTION, *_overview(finished), *sections])


def _overview(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Scores of all models by data set, a table for each stage, where attention wins, and pairs chosen beforehand."""
    reports = {name: result["report"] for name, result in results.items()}
    parts = ["## Overview\n", f"{OVERVIEW_NOTE}\n"]
    contrasts = []
    for stage, title in STAGE_TITLES.items():
        comparisons = [
            comparison for comparison in COMPARISONS if comparison.stage == stage and comparison.name in reports
        ]
        if comparisons:
            parts.append(_overview_table(title, comparisons, reports))
            contrasts.append(_contrast_table(title, comparisons, results))
    parts += [f"{sentence}\n" for sentence in describe_attention(reports)]
    return [*parts, f"{CONTRASTS_NOTE}\n", *contrasts] if any(contrasts) else parts


def _overview_table(title: str, comparisons: Sequence[Comparison], reports: Mapping[str, Mapping[str, Any]]) -> str:
    lines = _table_header(title, comparisons)
    scores = [
        {model["name"]: _format_score(model) for model in reports[comparison.name]["models"]}
        for comparison in comparisons
    ]
    for row in dict.fromkeys(row for comparison in comparisons for row in comparison.rows):
        lines.append(f"| {row} | {' | '.join(column.get(row, '–') for column in scores)} |")
    return "\n".join(lines) + "\n"


def _format_score(model: Mapping[str, Any]) -> str:
    """Score of a model, in bold unless it is significantly worse than the best.

    >>> _format_score({"score": 81.25, "test": {"significant": True}}), _format_score({"score": 81.25, "test": None})
    ('81.2', '**81.2**')
    """
    is_worse = model["test"] is not None and model["test"]["significant"]
    return f"{model['score']:.1f}" if is_worse else f"**{model['score']:.1f}**"


def _contrast_table(title: str, comparisons: Sequence[Comparison], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Differences between the pairs of rows that were chosen beforehand; empty where there are none."""
    pairs = dict.fromkeys(pair for comparison in comparisons for pair in comparison.contrasts)
    lines = _table_header(title, comparisons)
    for first, second in pairs:
        cells = [_format_contrast(first, second, results[comparison.name]) for comparison in comparisons]
        lines.append(f"| {first} − {second} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if pairs else ""


def _table_header(title: str, comparisons: Sequence[Comparison]) -> list[str]:
    columns = [comparison.short_title for comparison in comparisons]
    return [f"| {title} | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]


def _format_contrast(first: str, second: str, result: Mapping[str, Any]) -> str:
    """Difference between the scores of two rows: bold if significant, in brackets if it was not tested.

    >>> models = [{"name": "a", "score": 75.0}, {"name": "b", "score": 70.0}]
    >>> tested = [{"first": "a", "second": "b", "test": {"difference": 5.0, "significant": True}}]
    >>> [_format_contrast("a", "b", {"report": {"models": models}, **more}) for more in ({}, {"contrasts": tested})]
    ['(+5.0)', '**+5.0**']
    """
    scores = {model["name"]: model["score"] for model in result["report"]["models"]}
    if not {first, second} <= scores.keys():
        return "–"
    difference = f"{scores[first] - scores[second]:+.1f}".replace("-", "−")
    tests = [row["test"] for row in result.get("contrasts", []) if (row["first"], row["second"]) == (first, second)]
    if not tests:
        return f"({difference})"
    return f"**{difference}**" if tests[0]["significant"] else difference


def describe_attention(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """State on which data sets which model with attention beats the best without, of those without pre-training."""
    sentences = []
    for outcome, clause in OUTCOMES.items():
        data_sets: dict[str, list[str]] = {}  # of each winner, or of the best model with attention where none wins
        for comparison in COMPARISONS:
            report = reports.get(comparison.name)
            if report is not None and _attention_outcome(report) == outcome:
                verdict = report["attention"]
                name = verdict["plain"] if outcome == "loses" else verdict["attending"]
                data_sets.setdefault(name, []).append(comparison.short_title)
        clauses = [clause.format(model=quote_name(name), data=join_names(data)) for name, data in data_sets.items()]
        sentences += [f"{WITHOUT_PRETRAINING}, {text}" for text in clauses]
    return sentences


def _attention_outcome(report: Mapping[str, Any]) -> str:
    verdict = report["attention"]
    if verdict is None:
        return ""
    if not verdict["test"]["significant"]:
        return "ties"
    return "wins" if (verdict["test"]["difference"] > 0) == METRICS[report["metric"]].larger_is_better else "loses"


def _section(comparison: Comparison, result: Mapping[str, Any] | None) -> str:
    parts = [f"## {comparison.title}\n"]
    if comparison.note:
        parts.append(f"{comparison.note}\n")
    if result is None:
        return "\n".join([*parts, f"Not run yet. Rows: {'; '.join(comparison.rows)}. {_budget(comparison)}\n"])
    if "contrasts" not in result:
        parts.append(f"{FORMER_METHOD_NOTE}\n")
    return "\n".join([*parts, _table(result), f"{result['report']['conclusion']}\n", _origin(result, comparison)])


def _table(result: Mapping[str, Any]) -> str:
    report = result["report"]
    metric = METRICS[report["metric"]]
    lines = [
        f"| model | {metric.field_name}, % | 95 % interval | against the best | parameters | minutes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model in sorted(report["models"], key=lambda model: -metric.rank(model["score"])):
        minutes = "" if model["minutes"] is None else f"{model['minutes']:.1f}"
        lines.append(
            f"| {model['name']} | {model['score']:.1f} | {model['low']:.1f} to {model['high']:.1f} | "
            f"{_describe_test(model['test'])} | {model['parameters']:,} | {minutes} |"
        )
    return "\n".join(lines) + "\n"


def _describe_test(test: Mapping[str, Any] | None) -> str:
    """Difference from the best model, and its p-value.

    >>> _describe_test({"difference": -51.0, "p_value": 0.0006, "significant": True}), _describe_test(None)
    ('−51.0 (p < 0.001)', 'best')
    """
    if test is None:
        return "best"
    level = "" if test["significant"] else ", not significant"
    return f"{test['difference']:+.1f} ({format_p_value(test['p_value'])}{level})".replace("-", "−")


def _origin(result: Mapping[str, Any], comparison: Comparison) -> str:
    machine = result["machine"]
    return (
        f"{_budget(comparison)} {machine['processor']}, "
        f"{format_count(machine['threads'], 'thread')}, torch {machine['torch']}. "
        f"Result: `benchmarks/results/architectures/{comparison.name}.json`.\n"
    )


def _budget(comparison: Comparison) -> str:
    """Time limits of the rows.

    >>> _budget(COMPARISONS[0])
    'Time limit of a training: 30 s from scratch, 60 s with a pre-trained model.'
    >>> _budget(COMPARISONS[-1])
    'Time limit of a training: 60 s from scratch, for each of 3 restarts; none for memory network.'
    """
    limits = [f"{60 * comparison.minutes:.0f} s from scratch"]
    if comparison.pretrained_minutes:
        limits.append(f"{60 * comparison.pretrained_minutes:.0f} s with a pre-trained model")
    if comparison.restarts > 1:
        limits.append(f"for each of {comparison.restarts} restarts")
    untimed = comparison.untimed_models
    exception = f"; none for {join_names(untimed)}" if untimed else ""
    return f"Time limit of a training: {', '.join(limits)}{exception}."
