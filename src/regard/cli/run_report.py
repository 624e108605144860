"""The three lines at the end of a training run: what was trained, how good it is, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.output import own_command
from regard.config.data import ReadConfig
from regard.config.runs import RunConfig
from regard.formatting import format_duration
from regard.metric_table import METRICS, SPLITS
from regard.registry import TASKS, resolve

if TYPE_CHECKING:
    from regard.training.run import RunResult
    from regard.training.verdict import Verdict

SHOWN_READ_SETTINGS = {"encoding": "--encoding", "lenient": "--lenient"}  # that an evaluation of the same data needs


def closing_lines(report: RunResult, config: RunConfig, arguments: Sequence[str]) -> list[str]:
    """The last lines of a finished run; `arguments` are those of the command that trained it."""
    return [
        f"trained  {describe_training(report)}",
        f"result   {describe_result(report)}",
        f"next     {next_command(report, config, arguments)}",
    ]


def describe_training(report: RunResult) -> str:
    """Architecture, size, data, duration and folder."""
    unit = report.unit if report.step == 1 else f"{report.unit}s"
    ending = "" if report.reason == "plan done" else f" ({report.reason})"
    length = f"{report.step:,} {unit} in {format_duration(report.seconds)}{ending}: {report.folder}"
    if report.summary is None:
        return length
    summary = report.summary
    return f"{summary.architecture}; {summary.parameters:,} parameters, on {summary.data}, {length}"


def describe_result(report: RunResult) -> str:
    """Scores beside those of the baselines; of a run that learned nothing, why, and what may help."""
    verdict = report.verdict
    if verdict is not None and verdict.status == "learned_nothing":
        return verdict.text
    fragments = [*_describe_scores(report), *_describe_gain(report)]
    if verdict is not None and verdict.text:
        fragments.append(verdict.text)
    return "; ".join(fragments)


def _describe_scores(report: RunResult) -> list[str]:
    """The selecting metric, and the first one that a trivial baseline has, with the baseline's score."""
    metrics = report.metrics
    rule, baseline_name, baseline_score = _choose_baseline(report.verdict, report)
    names = [name for name in dict.fromkeys((report.metric, baseline_name)) if name]
    fragments = []
    for split, split_name in reversed(SPLITS.items()):
        scores = []
        for name in names:
            if f"{split}_{name}" in metrics:
                deviation = metrics.get(f"{split}_{name}_deviation")
                spread = "" if deviation is None else f" ± {deviation:.2f}"
                scores.append(METRICS[name].format_value(metrics[f"{split}_{name}"]) + spread)
        if scores:
            fragments.append(f"{', '.join(scores)} on {split_name} data")
    if rule:
        name = "" if len(names) == 1 else f"{METRICS[baseline_name].field_name} "
        fragments.append(f"baseline {name}{METRICS[baseline_name].format.format(baseline_score)} ({rule})")
    return fragments


def _choose_baseline(verdict: Verdict | None, report: RunResult) -> tuple[str, str, float]:
    """Rule, metric and score of the best trivial baseline, by the selecting metric if possible; empty without one."""
    rules = {} if verdict is None else verdict.baseline
    scores = [
        (name.removeprefix("valid_"), rule, score) for rule, values in rules.items() for name, score in values.items()
    ]
    scores = [entry for entry in scores if f"valid_{entry[0]}" in report.metrics]
    if not scores:
        return "", "", 0.0
    names = [name for name, _, _ in scores]
    metric = report.metric if report.metric in names else names[0]
    candidates = [(METRICS[name].rank(score), rule, score) for name, rule, score in scores if name == metric]
    _, rule, score = max(candidates)
    return rule, metric, score


def _describe_gain(report: RunResult) -> list[str]:
    """The gain over a trained baseline, or what a student retains of its teacher's score."""
    metrics = report.metrics
    for split in reversed(SPLITS):
        if f"{split}_retained" in metrics:
            speed = f", {metrics['speed']:.2f} times as fast" if "speed" in metrics else ""
            retained = metrics[f"{split}_retained"]
            return [f"{retained:.1f} % of the teacher's {metrics[f'{split}_teacher']:.2f}{speed}"]
        if f"{split}_baseline" in metrics:
            gain = metrics[f"{split}_gain"]
            interval = metrics[f"{split}_gain_interval"]
            return [f"word-based baseline {metrics[f'{split}_baseline']:.2f}, gain {gain:+.1f} ± {interval:.1f} points"]
    return []


def next_command(report: RunResult, config: RunConfig, arguments: Sequence[str]) -> str:
    """A command that runs as it stands: the model on a text, or a run that may do better where this one did not."""
    verdict = report.verdict
    if verdict is not None and verdict.retry and arguments:
        return retry_command(arguments, verdict.retry, str(report.folder))
    build = resolve(TASKS[config.task].next_command) or example_command
    command: str = build(report.folder, config)
    return own_command() + command.removeprefix("regard")


def retry_command(arguments: Sequence[str], retry: str, out: str) -> str:
    """The command line of a run with other options, in a new folder.

    >>> command = retry_command(["train", "tag", "a.conll", "--steps=2", "--out", "x"], "--steps 1000", "no/run")
    >>> command.removeprefix(own_command())
    ' train tag a.conll --steps 1000 --out no/run'
    """
    option, _ = retry.split()
    dotted = f"--training.{option.removeprefix('--').replace('-', '_')}"
    retained = []
    pending = iter(arguments)
    for argument in pending:
        flag, equals, _ = argument.partition("=")
        if flag in (option, dotted, "--out"):
            if not equals:
                next(pending, None)
        elif flag != "--json":
            retained.append(argument)
    return f"{own_command()} {shlex.join(retained)} {retry} --out {shlex.quote(unused_folder(out))}"


def unused_folder(out: str) -> str:
    """A folder that does not exist yet: the name with a number."""
    suffix = 2
    folder = Path(out)
    while folder.exists():
        folder = Path(f"{out.rstrip('/')}-{suffix}")
        suffix += 1
    return str(folder)


def example_command(folder: Path, config: RunConfig) -> str:
    """The example of the task."""
    return TASKS[config.task].example.format(shlex.quote(str(folder)))


def classify_command(folder: Path, config: RunConfig) -> str:
    """Classify a text; a model of pairs is evaluated."""
    from regard.checkpoint.locate import read_task_file, resolve_model_path

    if not read_task_file(resolve_model_path(folder)).get("has_pairs"):
        return example_command(folder, config)
    return f"regard evaluate {shlex.join([str(folder), *_evaluation_files(config)])}"


def fill_command(folder: Path, config: RunConfig) -> str:
    """Fill the mask of a text, written as the model's mask token."""
    from regard.checkpoint.locate import resolve_model_path
    from regard.checkpoint.tokenizer_files import TOKENIZER
    from regard.text.special_tokens import SpecialTokens
    from regard.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_json((resolve_model_path(folder) / TOKENIZER).read_text(encoding="utf-8"))
    mask = tokenizer.backend.id_to_token(SpecialTokens(tokenizer).mask_id)
    return example_command(folder, config).replace("[MASK]", str(mask))


def evaluate_command(folder: Path, config: RunConfig) -> str:
    """Evaluate on the validation files, or else on the training files."""
    return f"regard evaluate {shlex.join([str(folder), *_evaluation_files(config)])}"


def _evaluation_files(config: RunConfig) -> list[str]:
    """Files of the run, with the settings that say how they are read."""
    default = ReadConfig()
    options = []
    for name, flag in SHOWN_READ_SETTINGS.items():
        setting = getattr(config.data.read, name)
        if setting != getattr(default, name):
            options += [flag] if setting is True else [flag, str(setting)]
    return [*(config.data.valid or config.data.train), *options]
