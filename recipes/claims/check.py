"""Check a claim: train its models, evaluate each in the same way, and compare the scores with the expectations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from recipes.claims.claim import METRICS, ClaimConfig, Expectation
from recipes.claims.result import ClaimResult, ExpectationResult
from regard.checkpoint.atomic import json_bytes, make_folder, write_file
from regard.checkpoint.run_dir import RunDirectory
from regard.config.architecture import parse_architecture
from regard.config.data import ReadConfig
from regard.config.runs import RunConfig, build_run
from regard.data.babi import read_stories
from regard.data.pairs import read_pairs
from regard.data.synthetic import generate_pairs
from regard.errors import ConfigError, UsageError
from regard.pipeline.load import load
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.scoring import translation_scores
from regard.training.listeners import Listener
from regard.training.run import train_run

DEFAULT_TRAIN_ROWS = 20_000  # of synthetic data
DEFAULT_TEST_ROWS = 500
HEAD_DISTANCE_SENTENCES = 50  # test sentences on which heads are compared
SYNTHETIC_SETTINGS = {"kind", "count", "tested", "lengths", "seed"}
Report = Callable[[str], object]


@dataclass(frozen=True)
class ClaimData:
    """Files to train and test on; without `valid`, training holds some of its own data out."""

    train: Sequence[str]
    test: Sequence[str]
    valid: Sequence[str] = ()


def check_claim(
    config: ClaimConfig,
    out: Path,
    data: ClaimData | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    listeners: Sequence[Listener] = (),
    report: Report = lambda text: None,
) -> ClaimResult:
    """Train every model with every seed, evaluate it, and judge the claim; finished runs are not trained again."""
    if not config.make and data is None:
        raise UsageError(f"this claim needs data: give --train and --test files ({config.about})")
    if data is None:
        data = _write_synthetic_data(config.make, out / "data")
    seeds = [*(seeds or config.seeds)]
    run_configs = {  # all of them before the first training, so that a wrong setting costs no time
        name: [run_config(config, settings, data, seed=seed, overrides=overrides or {}) for seed in seeds]
        for name, settings in config.models.items()
    }
    scores: dict[str, list[float]] = {name: [] for name in run_configs}
    for name, configs in run_configs.items():
        for seed, run in zip(seeds, configs, strict=True):
            folder = out / f"{name}-{seed}"
            report(f"{name}, seed {seed}")
            training = train_run(run, folder, listeners=listeners)
            if not training.is_finished:
                raise UsageError(f"{training.reason} stopped {name} at {training.step}: the same command goes on")
            score = _evaluate(config, folder, data)
            scores[name].append(score)
            report(f"{name}, seed {seed}: {score:.4g} {METRICS[config.measure]}")
    return judge(config, scores, seeds)


def judge(config: ClaimConfig, scores: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> ClaimResult:
    """Compare the scores with the claim's expectations; the means over seeds decide."""
    return ClaimResult(
        config.claim,
        config.said_by,
        about=config.about,
        unit=METRICS[config.measure],
        scores=dict(scores),
        seeds=seeds,
        outcomes=[_judge_expectation(expectation, scores) for expectation in config.expectations],
    )


def _judge_expectation(expectation: Expectation, scores: Mapping[str, Sequence[float]]) -> ExpectationResult:
    value = expectation.evaluate({name: mean(model_scores) for name, model_scores in scores.items()})
    per_seed = [dict(zip(scores, seed_scores, strict=True)) for seed_scores in zip(*scores.values(), strict=True)]
    return ExpectationResult(
        expectation.text,
        value,
        margin=abs(value - expectation.bound),
        holds=expectation.holds(value),
        seeds_holding=sum(expectation.holds(expectation.evaluate(seed_scores)) for seed_scores in per_seed),
        num_seeds=len(per_seed),
    )


def run_config(
    config: ClaimConfig, model_settings: Mapping[str, Any], data: ClaimData, *, seed: int, overrides: Mapping[str, Any]
) -> RunConfig:
    """Build the config of one run: shared settings, then the model's own, then those of the command line."""
    settings = {**config.settings, **model_settings}
    if isinstance(settings.get("model"), str):
        settings |= parse_architecture(settings.pop("model"))
    task = str(settings.pop("task", "translate"))
    settings |= {**overrides, "training.seed": seed, "data.train": list(data.train), "data.valid": list(data.valid)}
    return build_run(task, settings)


def _write_synthetic_data(settings: Mapping[str, Any], folder: Path) -> ClaimData:
    """Generate training and test files; the same settings always give the same files."""
    if unknown := set(settings) - SYNTHETIC_SETTINGS:
        known = ", ".join(sorted(SYNTHETIC_SETTINGS))
        raise ConfigError(f"make: unknown {', '.join(sorted(unknown))}: there are {known}")
    lengths = tuple(settings["lengths"]) if "lengths" in settings else None
    counts = {
        "train": settings.get("count", DEFAULT_TRAIN_ROWS),
        "test": settings.get("tested", DEFAULT_TEST_ROWS),
    }
    make_folder(folder)
    for split, count in counts.items():
        pairs = generate_pairs(settings["kind"], count, settings.get("seed", 1), split=split, lengths=lengths)
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        write_file(folder / f"{split}.tsv", text.encode())
    return ClaimData(train=[str(folder / "train.tsv")], test=[str(folder / "test.tsv")])


def _evaluate(config: ClaimConfig, folder: Path, data: ClaimData) -> float:
    """Compute the claim's metric for one finished run."""
    if config.measure == "minutes_to_bleu":
        return _minutes_to_bleu(config.bleu, folder)
    model = load(folder)
    if isinstance(model, StoryQAPipeline):
        if config.measure != "error":
            raise ConfigError(f"measure must be error for stories, not {config.measure}")
        scores, *_ = model.evaluate(read_stories(data.test), strict=False)
        return scores.error
    if not isinstance(model, TranslationPipeline) or config.measure == "error":
        raise ConfigError(f"{config.measure} is not measured of what this claim trains")
    pairs = read_pairs(data.test, ReadConfig())
    if config.measure == "heads_apart":
        return _head_distance(model, pairs.source[:HEAD_DISTANCE_SENTENCES])
    translations = [str(translation) for translation in model(list(pairs.source), split=False)]
    return float(translation_scores(translations, pairs.target)[config.measure])


def _minutes_to_bleu(bleu: float, folder: Path) -> float:
    """Minutes of training until validation BLEU first reached this value; infinite if it never did.

    The log holds no times, so that equal runs have equal logs: an update counts as its share of the training time.
    """
    result = RunDirectory(folder).read_run()["result"]
    for line in (folder / "log.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "evaluate" and event["bleu"] >= bleu:
            return float(event["step"] / result["step"] * result["seconds"] / 60)
    return float("inf")


def _head_distance(model: TranslationPipeline, sentences: Sequence[str]) -> float:
    """Mean total variation distance between the attention weights of two heads of a layer, over all pairs of heads."""
    distances: list[float] = []
    for translation in model(list(sentences), split=False):
        for attention_map in translation.attention.values():
            for head, other_head in combinations(attention_map.weights, 2):
                distances.append(float(np.abs(head - other_head).sum(-1).mean()) / 2)
    if not distances:
        raise ConfigError("heads_apart needs models with several heads")
    return mean(distances)


def write_result(result: ClaimResult, out: Path) -> list[Path]:
    """Write the result as JSON and as Markdown; return both paths."""
    contents = {"claim.json": json_bytes(result.to_dict()), "claim.md": result.markdown().encode()}
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
