"""The model card that goes with every model."""

from __future__ import annotations

from typing import Any

from regard.config.model import WritingConfig
from regard.config.run import RunConfig


def model_card(run: RunConfig, model: WritingConfig, parameters: int, task: dict[str, Any]) -> str:
    """Return the card as Markdown: what it is, from which data, how good, how to use it."""
    measured = [
        f"| {name.removeprefix('valid_')} | {value:.2f} | {task['metrics'].get(name + '_signature', '')} |"
        for name, value in task["metrics"].items()
        if isinstance(value, float)
    ]
    files = ", ".join(f"`{name}`" for name in run.data.train)
    lines = [
        "---",
        "library_name: regard",
        "tags: [translation]",
        "---",
        "# A translation model made with Regard",
        "",
        f"{model.summary()}; {parameters / 1e6:.2f} M parameters, step {task['step']}.",
        "",
        f"Trained on {files} (digest `{task['data']['train'][:16]}`), "
        f"validated on data of digest `{task['data']['valid'][:16]}`, seed {run.training.seed}.",
        "",
        "## Measured on validation data",
        "",
        "| measure | value | signature |",
        "| --- | ---: | --- |",
        *measured,
        "",
        "## Use",
        "",
        "```",
        'regard translate THIS_FOLDER "A text to translate."',
        "```",
        "",
        "It knows what its training data shows and no more; texts of another kind may come out wrong.",
        "",
    ]
    return "\n".join(lines)
