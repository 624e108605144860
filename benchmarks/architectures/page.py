"""The page of the site that shows the comparisons, generated from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.architectures.stages import COMPARISONS, PRETRAINING_MINUTES, STORY_RESTARTS, Comparison
from regard.checkpoint.atomic import read_json
from regard.formatting import format_count
from regard.metric_table import METRICS
from regard.report.comparison.conclusion import join_names

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "architectures"
PAGE = ROOT / "docs" / "best-architecture.md"
TITLES = {
    "classify-trec": "TREC: types of questions",
    "classify-sst2": "SST-2: sentiment of sentences",
    "classify-ag_news-6600": "AG News: topics of articles",
    "tag-wnut17": "WNUT-17: emerging entities",
    "stories-babi-1": "bAbI 1: one supporting fact",
    "stories-babi-2": "bAbI 2: two supporting facts",
    "stories-babi-3": "bAbI 3: three supporting facts",
    "stories-babi-15": "bAbI 15: deduction",
    "stories-babi-16": "bAbI 16: induction",
    "stories-babi-19": "bAbI 19: path finding",
}
STAGE_TITLES = {
    "classify": "Classification: test accuracy, %",
    "tag": "Tagging: test F1, %",
    "stories": "Stories of bAbI: test error, %",
}
HELD_OUT = ("stories-babi-1", "stories-babi-3", "stories-babi-15", "stories-babi-19")
INTRODUCTION = f"""\
# Which architecture is best

*At the end you know how architectures compare on the same data with the same budget, and where attention does not win.*

```text
python -m benchmarks.architectures --data ../shared/data             # all stages; resumes after an interruption
python -m benchmarks.architectures pretrain --data ../shared/data    # or one: pretrain, classify, tag, stories
```

Each stage takes at most an hour on two cores: its parts run two at a time, each on one thread. ELMo, BERT and GPT are
pre-trained for {PRETRAINING_MINUTES:.0f} minutes each on the same text, three books and part of WikiText-2. MiniLM,
which was pre-trained on far more text, is included for comparison. All models trained from scratch get the same
training time, and so do all that use a pre-trained model; both times are given below each table. They include the
computation of frozen features. All models have their default settings: none is tuned.

Scores are means over three seeds with 95 % intervals, by bootstrap over seeds and test examples. “Against the best” is
the difference from the best model, with the p-value of a paired test (approximate randomization, adjusted for the
number of models). On bAbI, models are trained from one seed, and the best of {STORY_RESTARTS} restarts by validation
score is tested.
"""
OVERVIEW_NOTE = "Bold: the best score of a data set, and those that do not differ from it significantly."
AG_NEWS_NOTE = "Only the published test file is used: 6,600 of its articles are training data, 1,000 test data."
HELD_OUT_NOTE = "Without the published test file, every tenth training story is held out as test data."


def build_page(results: Path = RESULTS) -> str:
    """Build the page: an overview, and a section for each comparison."""
    reports = {}
    for comparison in COMPARISONS:
        path = results / f"{comparison.name}.json"
        if path.is_file():
            reports[comparison.name] = read_json(path)["report"]
    sections = [_section(comparison, results) for comparison in COMPARISONS]
    return "\n".join([INTRODUCTION, *_overview(reports), *sections])


def _overview(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Scores of all models by data set, a table for each stage, and where attention wins."""
    parts = ["## Overview\n", f"{OVERVIEW_NOTE}\n"]
    for stage, title in STAGE_TITLES.items():
        comparisons = [
            comparison for comparison in COMPARISONS if comparison.stage == stage and comparison.name in reports
        ]
        if comparisons:
            parts.append(_overview_table(title, comparisons, reports))
    return [*parts, f"{describe_attention(reports)}\n"]


def _overview_table(title: str, comparisons: Sequence[Comparison], reports: Mapping[str, Mapping[str, Any]]) -> str:
    columns = [TITLES[comparison.name].partition(":")[0] for comparison in comparisons]
    lines = [f"| {title} | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
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


def describe_attention(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """State on which data sets the best model with attention beats the best without, of those trained from scratch."""
    clauses = {
        "wins": "the best with attention beats the best without on",
        "ties": "they do not differ significantly on",
        "loses": "the best without attention is better on",
    }
    outcomes = {name: _attention_outcome(report) for name, report in reports.items()}
    sentences = []
    for outcome, clause in clauses.items():
        names = [TITLES[name].partition(":")[0] for name in reports if outcomes[name] == outcome]
        if names:
            sentences.append(f"{clause} {join_names(names)}")
    return f"Of the models trained from scratch, {'; '.join(sentences)}."


def _attention_outcome(report: Mapping[str, Any]) -> str:
    verdict = report["attention"]
    if verdict is None:
        return ""
    if not verdict["test"]["significant"]:
        return "ties"
    return "wins" if (verdict["test"]["difference"] > 0) == METRICS[report["metric"]].larger_is_better else "loses"


def _section(comparison: Comparison, results: Path) -> str:
    path = results / f"{comparison.name}.json"
    parts = [f"## {TITLES[comparison.name]}\n"]
    if comparison.name in HELD_OUT:
        parts.append(f"{HELD_OUT_NOTE}\n")
    if "ag_news" in comparison.name:
        parts.append(f"{AG_NEWS_NOTE}\n")
    if not path.is_file():
        return "\n".join([*parts, f"Not run yet. Rows: {'; '.join(comparison.rows)}. {_budget(comparison)}\n"])
    result = read_json(path)
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
    if test is None:
        return "best"
    level = "" if test["significant"] else ", not significant"
    return f"{test['difference']:+.1f} (p = {test['p_value']:.3f}{level})"


def _origin(result: Mapping[str, Any], comparison: Comparison) -> str:
    machine = result["machine"]
    return (
        f"{_budget(comparison)} {machine['processor']}, "
        f"{format_count(machine['threads'], 'thread')}, torch {machine['torch']}. "
        f"Result: `benchmarks/results/architectures/{comparison.name}.json`.\n"
    )


def _budget(comparison: Comparison) -> str:
    """Training time of the rows.

    >>> _budget(COMPARISONS[0])
    'Each training takes 30 s from scratch, 60 s with a pre-trained model.'
    """
    pretrained = ""
    if comparison.pretrained_minutes:
        pretrained = f", {60 * comparison.pretrained_minutes:.0f} s with a pre-trained model"
    return f"Each training takes {60 * comparison.minutes:.0f} s from scratch{pretrained}."
