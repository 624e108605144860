"""A run from its config to its model: read, choose, train, keep, and go on where it stopped."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.checkpoint.directory import RunDirectory, existing, load_model, save_model
from regard.checkpoint.files import write_file
from regard.config.decoding import DecodingConfig
from regard.config.model import TranslatorConfig
from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.data.order import chance
from regard.data.sources import Pairs, read_pairs
from regard.errors import ConfigError, UsageError
from regard.machine import cores
from regard.models import build
from regard.models.base import start_weights
from regard.tasks.metrics import bleu, translation_scores
from regard.tasks.translation import Examples, Languages, TranslationTask
from regard.text.learn import learn
from regard.text.tokenizer import Tokenizer
from regard.training.card import model_card
from regard.training.evaluation import MOST_TRANSLATED, Evaluation, Evaluator
from regard.training.plan import model_config, planned_updates, rates, time_formats, training_config
from regard.training.processes import Processes, others
from regard.training.tensorboard import TensorBoardWatcher
from regard.training.trainer import Trainer
from regard.training.watch import Watcher, tell
from regard.training.weights import FlatWeights

MAY_CHANGE = ("threads", "workers", "save_every", "keep", "device", "tensorboard")  # settings of training
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 1000
READY, NOTHING_TO_DO = 1.0, 2.0  # what the first process tells the others
LENGTH_POWERS = (0.6, 1.0, 1.4, 1.8)  # tried on validation data


@dataclass(frozen=True)
class Report:
    """How a run ended."""

    folder: Path
    step: int
    reason: str  # "plan done", "patience", "finished before", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.reason.startswith("SIG")


def train_run(config: RunConfig, out: Path, *, watchers: Sequence[Watcher] = ()) -> Report:
    """Train, or go on training, the run in folder `out`; the same command continues it."""
    processes = Processes.started()
    if processes.count == 1 and config.training.workers > 1:
        return _with_others(config, out, watchers)
    torch.set_num_threads(config.training.threads or max(1, cores() // processes.here))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # what is left uninitialised is never read
    with processes:
        return _first(config, out, watchers, processes) if processes.first else _another(config, out, processes)


def _with_others(config: RunConfig, out: Path, watchers: Sequence[Watcher]) -> Report:
    """Train with several processes on this machine; this one is the first."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "run.json")
        recipe.write_text(json.dumps(config.to_dict()), "utf-8")
        command = ["-m", "regard", "train", "--recipe", str(recipe), "--out", str(out)]
        with others(config.training.workers, command, config.training.threads or 1):
            return train_run(config, out, watchers=watchers)


def _first(config: RunConfig, out: Path, watchers: Sequence[Watcher], processes: Processes) -> Report:
    """Train as the process that decides, reports and writes."""
    _check_target(out)
    directory = RunDirectory(out, tell=lambda message: tell(watchers, "note", text=message), keep=config.training.keep)
    with directory.lock():
        if config.training.tensorboard:
            watchers = [*watchers, TensorBoardWatcher(out)]
        known = directory.read_run()
        if known:
            _check_same(known["config"], config, out)
            if known.get("finished"):
                processes.said_by_first([NOTHING_TO_DO])
                tell(watchers, "note", text=f"{out} is finished: nothing to do (choose another --out to train anew)")
                facts = known["finished"]
                return Report(out, facts["step"], "finished before", facts["seconds"], facts["metrics"])
        run = _Run(config, directory, known, watchers, processes)
        processes.said_by_first([READY])
        return run.train()


def _another(config: RunConfig, out: Path, processes: Processes) -> Report:
    """Train beside the first process, on what it has prepared."""
    (said,) = processes.said_by_first([0.0])
    directory = RunDirectory(out, keep=config.training.keep)
    known = directory.read_run()
    if said == NOTHING_TO_DO:
        return Report(out, known["finished"]["step"], "finished before", 0.0, {})
    return _Run(config, directory, known, [], processes).train()


def _check_target(out: Path) -> None:
    kind = existing(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose an empty or new folder for --out")
    if kind == "other":
        raise UsageError(f"{out} holds other files: choose an empty or new folder for --out")
    if kind == "model":
        raise UsageError(f"{out} holds a model that is not a run: give it to --from and choose a new folder for --out")


def _check_same(before: dict[str, Any], config: RunConfig, out: Path) -> None:
    """Refuse to go on with other settings than the run began with, naming those that differ."""
    # read as a config first: a setting that a later version added has its default there
    old = _flat(RunConfig.from_dict(before, where=str(out / "run.json")).to_dict())
    new = _flat(config.to_dict())
    different = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name.removeprefix("training.") not in MAY_CHANGE
    ]
    if different:
        raise ConfigError(
            f"{out} holds a run with other settings ({'; '.join(different)}): "
            "repeat its own command to go on, or choose another --out"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        made |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return made


def hold_out(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs without a small share, and that share; a source text is wholly on one side."""
    texts = sorted(set(pairs.source))
    count = max(1, min(HELD_OUT_MOST, round(HELD_OUT_SHARE * len(texts))))
    if len(texts) < 2:
        raise UsageError("one example cannot be split: give validation data with --valid")
    drawn = chance(seed=seed, epoch=0, digest=pairs.digest, purpose=2).choice(len(texts), count, replace=False)
    held = {texts[number] for number in drawn}
    kept = [number for number, text in enumerate(pairs.source) if text not in held]
    away = [number for number, text in enumerate(pairs.source) if text in held]
    return pairs.chosen(kept), pairs.chosen(away)


def _rejects(pairs: Pairs, name: str) -> list[str]:
    """Say how many rows a lenient reading left out, and where they are."""
    if not pairs.rejected:
        return []
    return [f"{pairs.rejected:,} of {pairs.read:,} {name} rows are rejected: see {pairs.reject_file}"]


class _Run:
    """One sitting of a run."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        known: dict[str, Any],
        watchers: Sequence[Watcher],
        processes: Processes,
    ) -> None:
        self.config, self.directory, self.known, self.watchers = config, directory, known, watchers
        self.processes = processes
        self.notes: list[str] = []
        self.decoding = config.decoding
        pairs = read_pairs(config.data.train, config.data.read)
        rejects = _rejects(pairs, "training")
        if config.data.valid:
            valid = read_pairs(config.data.valid, config.data.read)
            rejects += _rejects(valid, "validation")
        else:
            pairs, valid = hold_out(pairs, config.training.seed)
            self.notes.append(f"validation: {len(valid):,} of the training pairs are held out (chosen by the seed)")
        self.digests = {"train": pairs.digest, "valid": valid.digest}
        self.notes += rejects
        if known and known["data"] != self.digests:
            raise UsageError(f"the data changed since {directory.path} began: train on the same files, or anew")
        self.start = load_model(config.start_from) if config.start_from else None
        self.languages = self._languages(pairs)
        train = self._fitting(self.languages.examples(pairs), "training")
        self.valid = self._fitting(self.languages.examples(valid), "validation")
        self.target_tokens = int(train.lengths[:, 1].sum())
        sampling = config.tokenizer.sampling
        self.task = TranslationTask(self.languages, train, self.valid, seed=config.training.seed, sampling=sampling)
        self.model_config, self.reason = self._model()
        self.training, self.precision = self._training()

    # ---- choices

    def _languages(self, pairs: Pairs) -> Languages:
        folder = self.directory.path / "tokenizers"
        if (folder / "target.json").exists():
            source, target = (
                Tokenizer.loads((folder / name).read_text("utf-8"), where=str(folder / name))
                for name in ("source.json", "target.json")
            )
            return Languages(source, target)
        settings = self.config.tokenizer
        if self.start is not None:
            languages = Languages(self.start.source, self.start.target)
        elif settings.joint:
            tokenizer = learn([*pairs.source, *pairs.target], settings)
            languages = Languages(tokenizer, tokenizer)
        else:
            languages = Languages(learn(pairs.source, settings), learn(pairs.target, settings))
        folder.mkdir(exist_ok=True)
        write_file(folder / "source.json", languages.source.dumps().encode())
        write_file(folder / "target.json", languages.target.dumps().encode())
        return languages

    def _fitting(self, examples: Examples, name: str) -> Examples:
        """Leave out rows beyond the longest length, and say how many."""
        most = self.config.data.max_length
        fits = np.flatnonzero(examples.lengths.max(axis=1) <= most) if len(examples) else np.zeros(0, np.int64)
        if len(fits) == 0:
            raise UsageError(f"no {name} pair has at most {most} tokens: raise --data.max_length or split the texts")
        if len(fits) == len(examples):
            return examples
        self.notes.append(f"{len(examples) - len(fits):,} {name} pairs of over {most} tokens are left out")
        kept = [int(number) for number in fits]
        return Examples(
            examples.texts.chosen(kept), [examples.source[n] for n in kept], [examples.target[n] for n in kept]
        )

    def _model(self) -> tuple[TranslatorConfig, str]:
        if self.start is None:
            return model_config(self.config, self.languages, self.target_tokens)
        return self.start.config, f"as in {self.config.start_from}"

    def _training(self) -> tuple[TrainingConfig, str]:
        training = training_config(self.config.training, self.target_tokens)
        if not self.known.get("chosen"):
            timing = time_formats(self.model_config, self.task, training)
            seconds = timing.seconds[timing.chosen]
            updates = planned_updates(training, len(self.task.epoch(0, training.batch_tokens)), seconds)
            self.known = {
                "config": self.config.to_dict(),
                "data": self.digests,
                "chosen": {
                    "precision": timing.chosen,
                    "precision_text": timing.text(),
                    "seconds": seconds,
                    **rates(training, self.model_config.width, updates, goes_on=self.start is not None),
                },
                "versions": _environment(self.processes),
            }
            self.directory.write_run(self.known)
        chosen = self.known["chosen"]
        kept = {name: chosen[name] for name in ("learning_rate", "matrix_rate")}
        return replace(training, **kept), chosen["precision_text"]

    # ---- the sitting

    def train(self) -> Report:
        """Train until the plan is done or a signal comes."""
        changed = [
            f"{name} {self.known['versions'].get(name)} → {value}"
            for name, value in _environment(self.processes).items()
            if self.known["versions"].get(name) != value
        ]
        if changed:
            self.notes.append(f"the same bits as without the interruption are not promised: {', '.join(changed)}")
        model = build(self.model_config)
        if self.start is not None:
            model.load_state_dict(self.start.weights)
        else:
            start_weights(model, self.config.training.seed)
        self._tell_plan(model.parameter_count())
        weights = FlatWeights(model, self.known["chosen"]["precision"], self.training.device)
        evaluator = Evaluator(self.model_config, self.languages, self.valid, self.training.device)
        trainer = Trainer(
            model,
            weights,
            self.task,
            self.training,
            directory=self.directory,
            evaluator=evaluator,
            keep_best=self._export,
            watchers=self.watchers,
            processes=self.processes,
        )
        trainer.resume()
        reason = trainer.run()
        seconds = trainer.counters.seconds
        if reason.startswith("SIG") or not self.processes.first:
            tell(self.watchers, "stop", reason=reason, step=trainer.counters.step, resumable=True)
            return Report(self.directory.path, trainer.counters.step, reason, seconds, {})
        metrics = self._finish(trainer, evaluator)
        self.directory.write_run(
            {**self.known, "finished": {"step": trainer.counters.step, "seconds": seconds, "metrics": metrics}}
        )
        facts = {"step": trainer.counters.step, "metrics": metrics, "seconds": seconds, "reason": reason}
        tell(self.watchers, "done", folder=str(self.directory.path), **facts)
        return Report(self.directory.path, trainer.counters.step, reason, seconds, metrics)

    def _export(self, evaluator: Evaluator, found: Evaluation, step: int) -> None:
        """Write the evaluated weights as the run's model."""
        self._write_model(evaluator, step, {f"valid_{name}": value for name, value in found.metrics.items()})

    def _write_model(self, evaluator: Evaluator, step: int, metrics: dict[str, Any]) -> None:
        task: dict[str, Any] = {
            "step": step,
            "data": self.digests,
            "metrics": metrics,
            "max_length": self.config.data.max_length,
            "align": evaluator.aligning_head(),
        }
        card = model_card(self.config, self.model_config, evaluator.model.parameter_count(), task)
        save_model(
            self.directory.path,
            self.model_config,
            evaluator.model.state_dict(),
            tokenizers={"source": self.languages.source, "target": self.languages.target},
            decoding=self.decoding,
            task=task,
            card=card,
            fields=self.start.fields if self.start is not None else None,
        )

    def _finish(self, trainer: Trainer, evaluator: Evaluator) -> dict[str, Any]:
        """Choose between the best and the average on validation data, score the choice, write it."""
        best = load_model(self.directory.path)
        step = int(best.task["step"])
        evaluator.load(best.weights)
        if len(trainer.recent) > 1:
            mean = torch.stack(trainer.recent).mean(0)
            evaluator.load(trainer.weights.named(mean))
            found = evaluator.measure()
            if list(found.rank) > trainer.counters.best:
                step = trainer.counters.step
                tell(self.watchers, "note", text=f"the average of {len(trainer.recent)} evaluations is best")
            else:
                evaluator.load(best.weights)
        count = min(MOST_TRANSLATED, len(self.valid))
        wanted = self.valid.texts.target[:count]
        self.decoding, said = self._tuned(evaluator, count)
        scores = translation_scores(said, wanted)
        metrics = {f"valid_{name}": value for name, value in scores.items()}
        self._write_model(evaluator, step, metrics)
        return metrics

    def _tuned(self, evaluator: Evaluator, count: int) -> tuple[DecodingConfig, list[str]]:
        """Return the search with the length power that scores best on validation data, and its translations."""
        given = self.config.decoding
        powers = [given.length_power]
        if self.config.training.tune_length and given.beam > 1 and not given.sample:
            powers += [power for power in LENGTH_POWERS if power != given.length_power]
        tried = []
        for power in powers:
            decoding = replace(given, length_power=power)
            said = evaluator.translations(count, decoding)
            tried.append((bleu(said, self.valid.texts.target[:count]), decoding, said))
        _, decoding, said = max(tried, key=lambda one: one[0])  # the first of equals: the given one
        if len(tried) > 1:
            told = ", ".join(f"{one.length_power:g}: {found:.2f}" for found, one, _ in tried)
            text = f"length power {decoding.length_power:g} is best on validation data (BLEU by power {told})"
            tell(self.watchers, "note", text=text)
        return decoding, said

    def _tell_plan(self, parameters: int) -> None:
        training, config = self.training, self.model_config
        train = self.task.train
        updates = len(self.task.epoch(0, training.batch_tokens)) // training.accumulate or 1
        lengths = [
            f"{training.steps:,} updates" if training.steps else "",
            f"{training.epochs:g} passes of about {updates:,} updates" if training.epochs else "",
            f"{training.minutes:g} minutes" if training.minutes else "",
        ]
        planned = min([n for n in (training.steps, int(training.epochs * updates)) if n] or [0])
        estimate = 60 * training.minutes or planned * self.known["chosen"]["seconds"] * 1.15
        lines = [
            f"data: {len(train):,} pairs, {self.target_tokens:,} target tokens; validation {len(self.valid):,} pairs",
            f"tokens: {self.config.tokenizer.kind}, {self.languages.source.size:,}"
            + ("" if config.shared else f" and {self.languages.target.size:,}")
            + " kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {config.encoder.layers}+{config.decoder.layers} layers of "
            f"{config.width} ({self.reason})",
            f"numbers: {self.precision}; "
            + (f"{self.processes.count} processes of " if self.processes.count > 1 else "")
            + f"{torch.get_num_threads()} threads",
            f"plan: {' or '.join(filter(None, lengths))}, {training.batch_tokens:,} tokens a batch, "
            f"learning rate {training.learning_rate:.2g}"
            + (f" and {training.matrix_rate:.2g} for matrices" if training.optimizer == "muon" else "")
            + f"; about {_duration(estimate)}",
            *self.notes,
        ]
        tell(self.watchers, "plan", lines=lines, parameters=parameters, seconds=estimate)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _environment(processes: Processes) -> dict[str, Any]:
    """What the bits of a run depend on besides its settings."""
    return {
        "processes": processes.count,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
