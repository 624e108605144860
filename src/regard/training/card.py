"""The model card that every saved model has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from regard.config.runs import RunConfig
from regard.training.verdict import Verdict

CARD_TEXTS = {  # task → Hugging Face tag, title, example of use
    "translate": ("translation", "A translation model", 'regard translate THIS_FOLDER "A text to translate."'),
    "elmo": (
        "feature-extraction",
        "An ELMo language model whose layers are features of words",
        "regard train classify texts.csv --features THIS_FOLDER --out runs/labels",
    ),
    "masked-lm": (
        "fill-mask",
        "A masked language model",
        'regard fill THIS_FOLDER "Paris is the [MASK] of France."',
    ),
    "causal-lm": ("text-generation", "A causal language model", 'regard generate THIS_FOLDER "Once upon"'),
    "classify": ("text-classification", "A text classifier", 'regard classify THIS_FOLDER "A text."'),
    "tag": ("token-classification", "A token classifier", 'regard tag THIS_FOLDER "A text."'),
    "answer": (
        "question-answering",
        "An extractive question-answering model",
        'regard answer THIS_FOLDER --passage notes.txt "Who was it?"',
    ),
    "story-qa": (
        "question-answering",
        "A memory network for questions about stories",
        'regard answer THIS_FOLDER --story story.txt "Where is the apple?"',
    ),
}


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
    use_as: str = "",
) -> str:
    """Write the card as Markdown: model, data, metrics and use.

    `details` are lines below the metrics; `use_as` is the task of the model's folder, where that is not the run's.
    """
    metric_rows = [
        f"| {name.removeprefix('valid_')} | {value:.2f} | {task['metrics'].get(name + '_signature', '')} |"
        for name, value in task["metrics"].items()
        if isinstance(value, float)
    ]
    tag, title, example = CARD_TEXTS[use_as or run.task]
    verdict = Verdict.from_dict(task.get("verdict"))
    warning = []
    if verdict is not None and verdict.text:
        warning = [f"**{verdict.text[0].upper()}{verdict.text[1:]}.**", ""]
    files = ", ".join(f"`{name}`" for name in run.data.train)
    digests = task["data_digests"]
    lines = [
        "---",
        "library_name: regard",
        f"tags: [{tag}]",
        "---",
        f"# {title} trained with Regard",
        "",
        f"{config.summary()}; {num_parameters:,} parameters, {task.get('unit', 'step')} {task['step']}.",
        "",
        f"Trained on {files} (digest `{digests['train'][:16]}`), "
        f"validated on data of digest `{digests['valid'][:16]}`, seed {task.get('seed', run.training.seed)}.",
        "",
        "## Metrics on validation data",
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
        example,
        "```",
        "",
        "The model reflects its training data; expect more errors on texts from other domains.",
        "",
    ]
    return "\n".join(lines)
