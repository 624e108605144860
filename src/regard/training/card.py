"""The model card that every saved model has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from regard.config.runs import RunConfig
from regard.metric_table import METRICS
from regard.registry import TASKS
from regard.training.verdict import Verdict


class SummarizedConfig(Protocol):
    """The config of any model."""

    def summary(self) -> str:
        """Describe the model in one line."""
        ...


def model_card(
    run: RunConfig,
    config: SummarizedConfig,
    num_parameters: int,
    task: dict[str, Any],
    details: Sequence[str] = (),
) -> str:
    """Write the card as Markdown: model, data, metrics and use.

    `details` are lines below the metrics.
    """
    metric_rows = [
        f"| {name.removeprefix('valid_')} | {value:.2f} | {task['metrics'].get(name + '_signature', '')} |"
        for name, value in task["metrics"].items()
        if isinstance(value, float)
    ]
    row = TASKS[run.task]
    verdict = Verdict.from_dict(task.get("verdict"))
    warning = []
    if verdict is not None and verdict.text:
        warning = [f"**{verdict.text[0].upper()}{verdict.text[1:]}.**", ""]
    files = ", ".join(f"`{name}`" for name in run.data.train)
    digests = task["data_digests"]
    lines = [
        "---",
        "library_name: regard",
        f"tags: [{row.tag}]",
        "---",
        f"# {_with_article(row.field_name)} trained with Regard",
        "",
        f"{config.summary()}; {num_parameters:,} parameters, {task.get('unit', 'step')} {task['step']}.",
        "",
        f"Trained on {files} (digest `{digests['train'][:16]}`), "
        f"validated on data of digest `{digests['valid'][:16]}`, seed {task.get('seed', run.training.seed)}.",
        "",
        "## Metrics on validation data",
        "",
        f"The model was selected by {METRICS[task['metric']].field_name}.",
        "",
        *warning,
        "| metric | value | signature |",
        "| --- | ---: | --- |",
        *metric_rows,
        "",
        *details,
        "## Use",
        "",
        "```",
        row.example.format("THIS_FOLDER"),
        "```",
        "",
        "The model reflects its training data; expect more errors on texts from other domains.",
        "",
    ]
    return "\n".join(lines)


def _with_article(noun: str) -> str:
    """Add the indefinite article.

    >>> _with_article("encoder"), _with_article("tagger")
    ('An encoder', 'A tagger')
    """
    article = "An" if noun[0].lower() in "aeiou" else "A"
    return f"{article} {noun}"
