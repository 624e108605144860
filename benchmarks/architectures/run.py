"""Run the stages: pre-train, then train and compare the architectures of each data set; everything resumes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.architectures.stages import (
    AG_NEWS,
    AG_NEWS_TRAIN,
    COMPARISONS,
    MINILM,
    PRECISION,
    PRETRAINING_MINUTES,
    PRETRAININGS,
    TASK_SETTINGS,
    TEXTS,
    THREADS,
    Comparison,
    Pretraining,
    stage_parts,
)
from recipes.claims.check import describe_machine
from recipes.datasets import DATASETS, DataFiles, MissingDataError, find_minilm, limit_file, prepare_dataset
from regard.checkpoint.atomic import json_bytes, make_folder, read_json, write_file
from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import build_run
from regard.data.ledger import iter_lines
from regard.errors import UsageError
from regard.report.comparison.compare import ComparisonOptions, compare_architectures
from regard.report.comparison.report import test_dict
from regard.report.comparison.training import Candidate, TrainingPlan, parse_candidates
from regard.training.listeners import Listener
from regard.training.run import train_to_end

QUICK_ROWS = 120  # of a short trial
QUICK_STEPS = 2
Report = Callable[[str], object]


@dataclass(frozen=True)
class Workplace:
    """Where and how the stages run."""

    data: Path
    out: Path
    results: Path
    threads: int
    is_quick: bool = False  # a short trial: few rows, two updates, one seed
    listeners: Sequence[Listener] = ()
    report: Report = lambda text: None

    def model_folder(self, name: str) -> Path:
        """Folder of a pre-trained model."""
        return find_minilm(self.data) if name == MINILM else self.out / "pretrained" / name


def write_pretraining(workplace: Workplace) -> None:
    """Write what was pre-trained, and how well."""
    texts = pretraining_texts(workplace)
    models = {pretraining.name: pretrain_model(pretraining, workplace) for pretraining in PRETRAININGS}
    result = {"stage": "pretrain", "minutes": PRETRAINING_MINUTES, "texts": [Path(text).name for text in texts]}
    result |= {"models": models, "machine": describe_machine(workplace.threads)}
    write_file(workplace.results / "pretrain.json", json_bytes(result))


def pretraining_texts(workplace: Workplace) -> list[str]:
    """Books, and WikiText-2's validation text; of a short trial, the first lines of the latter."""
    folders = [workplace.data / name for name in TEXTS]
    for folder in folders:
        if not folder.is_dir():
            raise MissingDataError(f"{folder} does not exist: it holds texts to pre-train on")
    texts = [*sorted(folders[0].glob("*.txt.gz")), folders[1] / "wiki.valid.raw.gz"]
    if workplace.is_quick:
        texts = [limit_file(texts[-1], QUICK_ROWS, workplace.out / "data")]
    return [str(text) for text in texts]


def pretrain_model(pretraining: Pretraining, workplace: Workplace) -> dict[str, Any]:
    """Pre-train a model unless it is finished; return how it was trained, and how well it predicts."""
    settings: dict[str, Any] = {
        **PRECISION,
        **pretraining.settings,
        "data.train": pretraining_texts(workplace),
        "training.threads": workplace.threads,
        "training.minutes": PRETRAINING_MINUTES,
    }
    if workplace.is_quick:
        settings |= {"training.minutes": 0, "training.steps": QUICK_STEPS}
    folder = workplace.model_folder(pretraining.name)
    config = build_run(pretraining.task, settings)
    training = train_to_end(config, folder, name=pretraining.name, listeners=workplace.listeners)
    summary = training.summary
    return {
        "task": pretraining.task,
        **pretraining.settings,
        "summary": summary.architecture if summary else "",
        "parameters": summary.parameters if summary else None,
        "seconds": training.seconds,
        "metrics": training.metrics,
    }


def run_stage(stage: str, workplace: Workplace) -> None:
    """Run the parts of a stage, one after another."""
    for part in stage_parts(stage):
        run_part(part, workplace)
    if stage == "pretrain":
        write_pretraining(workplace)


def run_part(name: str, workplace: Workplace) -> None:
    """Pre-train a model, or run a comparison; a comparison whose result belongs to its settings is skipped."""
    pretraining = next((pretraining for pretraining in PRETRAININGS if pretraining.name == name), None)
    if pretraining is not None:
        workplace.report(f"pretrain: {name}")
        pretrain_model(pretraining, workplace)
        return
    comparison = next(comparison for comparison in COMPARISONS if comparison.name == name)
    if not workplace.is_quick and is_current(workplace.results, comparison, workplace.threads):
        workplace.report(f"{name}: finished before")
        return
    try:
        compare(comparison, workplace)
    except MissingDataError as error:
        workplace.report(f"skipped: {name}: {error}")


def is_current(results: Path, comparison: Comparison, threads: int = THREADS) -> bool:
    """Whether there is a result of these settings."""
    path = results / f"{comparison.name}.json"
    return path.is_file() and read_json(path)["digest"] == comparison.digest(threads)


def compare(comparison: Comparison, workplace: Workplace) -> None:
    """Train every row of a comparison, test them on the same examples, and write the result."""
    files = prepare_files(comparison.dataset, workplace)
    names = [name for name in (*(row.name for row in PRETRAININGS), MINILM) if comparison.needs(name)]
    folders = {name: workplace.model_folder(name) for name in names}
    for name, folder in folders.items():
        if name != MINILM and not RunDirectory(folder).read_run().get("result"):
            raise UsageError(f"{name} is not pre-trained yet: run the stage pretrain first")
    settings: dict[str, Any] = {
        **TASK_SETTINGS[comparison.task],
        **comparison.settings,
        "training.threads": workplace.threads,
        "data.train": list(files.train),
        "data.valid": list(files.valid),
    }
    seeds = comparison.seeds
    if workplace.is_quick:
        seeds = seeds[:1]
        is_story = comparison.task == "story-qa"  # memory networks are trained for a number of epochs
        settings |= {"training.epochs": 1, "training.restarts": 1} if is_story else {"training.steps": QUICK_STEPS}
    candidates = build_candidates(comparison, folders, is_timed=not workplace.is_quick)
    plan = TrainingPlan(comparison.task, candidates, settings, seeds, minutes=0.0)
    report = compare_architectures(
        plan,
        files.test,
        workplace.out / comparison.name,
        ComparisonOptions(threads=workplace.threads),
        listeners=workplace.listeners,
        notify=workplace.report,
    )
    pairs = comparison.contrasts
    result = {
        "name": comparison.name,
        "digest": "" if workplace.is_quick else comparison.digest(workplace.threads),
        "dataset": comparison.dataset,
        "minutes": {row: comparison.row_minutes(row) for row in comparison.rows},
        "restarts": comparison.restarts,
        "machine": describe_machine(workplace.threads),
        "report": report.to_dict(),
        "contrasts": [
            {"first": first, "second": second, "test": test_dict(test)}
            for (first, second), test in zip(pairs, report.paired_tests(pairs), strict=True)
        ],
    }
    write_file(workplace.results / f"{comparison.name}.json", json_bytes(result))
    workplace.report(f"{comparison.name}: {report.conclusion}")


def build_candidates(comparison: Comparison, folders: Mapping[str, Path], *, is_timed: bool = True) -> list[Candidate]:
    """Rows of a comparison with their time limits; `folders` are those of pre-trained models by name."""
    entries = [f"{row}={entry.format(**folders)}" for row, entry in comparison.rows.items()]
    candidates = parse_candidates(entries, comparison.task)
    if not is_timed:
        return candidates
    return [replace(candidate, minutes=comparison.run_minutes(candidate.name)) for candidate in candidates]


def prepare_files(dataset: str, workplace: Workplace) -> DataFiles:
    """Files of a data set; of a short trial, their first rows."""
    out = workplace.out / "data"
    files = split_ag_news(workplace.data, out) if dataset == AG_NEWS else prepare_dataset(dataset, workplace.data, out)
    if not workplace.is_quick or dataset.startswith("babi"):
        return files

    def limit(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(str(limit_file(Path(path), QUICK_ROWS, out / f"{dataset}-quick")) for path in paths)

    return replace(files, train=limit(files.train), test=limit(files.test), valid=limit(files.valid))


def split_ag_news(root: Path, out: Path) -> DataFiles:
    """Split the published test file of AG News, which is all there is: 6,600 articles train, 1,000 test."""
    whole = prepare_dataset("ag_news", root, out)
    rows = [line for path in (*whole.train, *whole.valid, *whole.test) for line in iter_lines(path)]
    rows.sort(key=lambda row: (zlib.crc32(row.encode()), row))  # an order that depends on nothing but the rows
    folder = out / AG_NEWS
    make_folder(folder)
    paths = {}
    for split, split_rows in {"train": rows[:AG_NEWS_TRAIN], "test": rows[AG_NEWS_TRAIN:]}.items():
        paths[split] = folder / f"{split}.tsv"
        write_file(paths[split], "".join(f"{row}\n" for row in split_rows).encode())
    return DataFiles((str(paths["train"]),), (str(paths["test"]),))


assert AG_NEWS in {comparison.dataset for comparison in COMPARISONS}
assert {comparison.dataset for comparison in COMPARISONS} <= {*DATASETS, AG_NEWS}
