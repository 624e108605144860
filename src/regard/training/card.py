"""The model card that goes with every model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from regard.config.runs import RunConfig
from regard.training.verdict import Verdict

KINDS = {  # task → its tag, what its models are, how they are used
    "translate": ("translation", "A translation model", 'regard translate THIS_FOLDER "A text to translate."'),
    "language": (
        "feature-extraction",
        "A language model whose layers are features of words",
        "regard train classify texts.csv --features THIS_FOLDER --out runs/labels",
    ),
    "fill": (
        "fill-mask",
        "An encoder trained to tell hidden words",
        'regard fill THIS_FOLDER "Paris is the [MASK] of France."',
    ),
    "generate": ("text-generation", "A causal language model", 'regard generate THIS_FOLDER "Once upon"'),
    "classify": ("text-classification", "A text classifier", 'regard classify THIS_FOLDER "A text."'),
    "tag": ("token-classification", "A tagger of words", 'regard tag THIS_FOLDER "A text."'),
    "answer": (
        "question-answering",
        "Answers questions by spans of a passage",
        'regard answer THIS_FOLDER --passage notes.txt "Who was it?"',
    ),
    "stories": (
        "question-answering",
        "A memory network for questions about stories",
        'regard answer THIS_FOLDER --story story.txt "Where is the apple?"',
    ),
}


class SummarizedConfig(Protocol):
    """The config of a model."""

    def summary(self) -> str:
        """Say what it is in a few words."""
        ...


def model_card(
    run: RunConfig,
    config: SummarizedConfig,
    num_parameters: int,
    task: dict[str, Any],
    details: Sequence[str] = (),
    use_as: str = "",
) -> str:
    """Return the card as Markdown: what it is, from which data, how good, how to use it.

    `details` are lines below the measures; `use_as` is the task of its folder, where that is not the run's.
    """
    measured = [
        f"| {name.removeprefix('valid_')} | {value:.2f} | {task['metrics'].get(name + '_signature', '')} |"
        for name, value in task["metrics"].items()
        if isinstance(value, float)
    ]
    tag, title, use = KINDS[use_as or run.task]
    verdict = Verdict.from_dict(task.get("verdict"))
    warning = [f"**{verdict.text[0].upper()}{verdict.text[1:]}.**", ""] if verdict is not None and verdict.text else []
    files = ", ".join(f"`{name}`" for name in run.data.train)
    lines = [
        "---",
        "library_name: regard",
        f"tags: [{tag}]",
        "---",
        f"# {title} made with Regard",
        "",
        f"{config.summary()}; {num_parameters:,} parameters, {task.get('unit', 'step')} {task['step']}.",
        "",
        f"Trained on {files} (digest `{task['data']['train'][:16]}`), "
        f"validated on data of digest `{task['data']['valid'][:16]}`, seed {task.get('seed', run.training.seed)}.",
        "",
        "## Measured on validation data",
        "",
        *warning,
        "| measure | value | signature |",
        "| --- | ---: | --- |",
        *measured,
        "",
        *details,
        "## Use",
        "",
        "```",
        use,
        "```",
        "",
        "It knows what its training data shows and no more; texts of another kind may come out wrong.",
        "",
    ]
    return "\n".join(lines)
