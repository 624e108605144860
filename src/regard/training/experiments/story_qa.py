"""Training memory networks in a run: their data, their plan, a checkpoint after every pass, and what is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from regard.checkpoint.native import save_memory_network
from regard.data.babi import StoryQuestions, read_stories
from regard.errors import UsageError
from regard.formatting import format_duration
from regard.models.base import move_to_device
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_qa import StoryExamples, StoryScores, encode_stories, predict_answers, score_answers
from regard.training.card import model_card
from regard.training.experiments.base import RunContext, RunPlan, TrainingResult, rejection_notes
from regard.training.listeners import notify
from regard.training.memory_trainer import build_trainer
from regard.training.throughput import Setup, Throughput, choose_throughput, fastest_setup
from regard.training.trainer import catch_stop_signals
from regard.training.trivial_baselines import frequent_answers
from regard.training.verdict import Limit, Verdict, judge

PROBE_SECONDS = 2.0  # of timing before training starts
SAMPLES = 2  # questions shown with each evaluation


class MemoryNetworkProcedure:
    """Stories, and the memory networks that learn to answer questions about them."""

    unit = "pass"

    def __init__(self, context: RunContext) -> None:
        self.context, config = context, context.config
        if context.distributed.world_size > 1:
            raise UsageError("memory networks are trained by one process, all starts side by side: start it alone")
        self.notes: list[str] = []
        self.verdict: Verdict | None = None  # once all passes are made
        self.stories = self._read(config.data.train, "training")
        self.trainer, self.vocabulary = build_trainer(self.stories, config.memory_network, config.stories)
        self.valid = self._valid()
        self.valid_data = self._examples(self.valid)
        self.digests = {"train": self.stories.digest, "valid": self.valid.digest}

    # ---- data

    def _read(self, files: tuple[str, ...], name: str) -> StoryQuestions:
        found = read_stories(files, self.context.config.data.read)
        self.notes += rejection_notes(found, name)
        return found

    def _valid(self) -> StoryQuestions:
        """Return the questions that are measured: those of files, those held out, or at worst those learned."""
        data, held_out = self.context.config.data, self.trainer.held_out
        if data.valid:
            return self._read(data.valid, "validation")
        if len(held_out):
            self.notes.append(f"validation: the {len(held_out):,} questions that are held out (chosen by the seed)")
            return self.stories.select(held_out.tolist())
        self.notes.append("validation: on the training questions, as none are held out and none are given by --valid")
        return self.stories

    def _examples(self, stories: StoryQuestions) -> StoryExamples:
        refuse = self.context.config.stories.unknown_answers == "refuse"
        return encode_stories(stories, self.vocabulary, self.trainer.model.config, strict=refuse)

    # ---- what a run asks

    def resolve_settings(self) -> dict[str, Any]:
        """Return the fastest thread count and the seconds of a pass, by a short timing that leaves the weights."""
        trainer = self.trainer
        indices = trainer.learned[: trainer.config.batch_size]

        def time_update(setup: Setup) -> float:
            began = time.perf_counter()
            loss, _ = trainer.model.loss(trainer.train.batch(indices), trainer.train.answers[indices])
            loss.sum().backward()
            return time.perf_counter() - began

        def measure(counts: Sequence[int]) -> Throughput:
            return fastest_setup([Setup("float32", count) for count in counts], time_update, PROBE_SECONDS)

        throughput = choose_throughput(trainer.model, self.context.config.training, 1, measure)
        trainer.model.zero_grad(set_to_none=True)
        return {
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": throughput.update_seconds * len(trainer.learned) / len(indices),
        }

    def plan(self, chosen: Mapping[str, Any]) -> RunPlan:
        """Say what data, model and length of training are."""
        trainer, model, config = self.trainer, self.trainer.model, self.trainer.config
        held_out, learned = len(trainer.held_out), len(trainer.learned)
        parameters = model.num_parameters() // model.members
        linear = f"at most {config.linear_start_epochs} without softmax, then " if config.linear_start else ""
        starts = f"{model.members} starts side by side, of which the best is kept" if model.members > 1 else "one start"
        passes = config.epochs + (config.linear_start_epochs if config.linear_start else 0)
        estimate = passes * chosen["seconds"]
        lines = [
            f"data: {_tasks(self.stories)}, {learned:,} questions to learn and {held_out:,} held out; "
            f"validation {_tasks(self.valid)}, {len(self.valid):,} questions",
            f"words: {len(self.vocabulary.words):,} kinds, {len(self.vocabulary.answers):,} of them answers; "
            f"at most {model.config.max_sentence_words} in a sentence or question",
            f"model: {parameters:,} parameters, {model.config.summary()}",
            f"compute: {chosen['throughput']}",
            f"plan: {linear}{config.epochs} passes, {config.batch_size} questions a batch, learning rate "
            f"{config.learning_rate:.2g}, halved every {config.lr_halving_epochs} passes; {starts}; "
            f"about {format_duration(estimate)}",
            *self.notes,
        ]
        return RunPlan(lines, parameters, estimate)

    def train(self, chosen: Mapping[str, Any]) -> TrainingResult:
        """Train until all passes are made or a signal comes; every pass is saved."""
        trainer = self.trainer
        move_to_device(trainer.model, self.context.config.training.device)
        self._resume()
        found: dict[str, Any] = {}
        with catch_stop_signals() as asked:
            while not trainer.is_done and not asked:
                self._pass()
                if trainer.progress.switched and (trainer.is_done or self._halved()):
                    found = self._evaluate()
                    self._log("evaluate", _numbers(found))
                self._save()
        progress = trainer.progress
        if not trainer.is_done:
            return TrainingResult(progress.epoch, asked.name, progress.seconds)
        metrics = found or self._evaluate()
        for line in StoryScores.from_dict(metrics["valid"]).lines():
            self.context.notify(line)
        facts = {"questions": len(trainer.learned) * progress.epoch}
        return TrainingResult(progress.epoch, "plan done", progress.seconds, metrics, facts, self.verdict)

    # ---- the loop

    def _resume(self) -> None:
        directory = self.context.directory
        saved = directory.latest_checkpoint()
        directory.truncate_log(saved.step if saved else 0)
        if saved:
            self.trainer.resume(saved.weights, saved.counters)
            notify(self.context.listeners, "resume", step=saved.step, unit=self.unit)

    def _pass(self) -> None:
        trainer = self.trainer
        before = trainer.progress.seconds
        facts = trainer.step()
        best = min(trainer.finite_restarts, key=lambda member: facts["losses"][member])
        told = {"loss": facts["losses"][best], "error": facts["errors"][best], "learning_rate": facts["learning_rate"]}
        losses = [loss if math.isfinite(loss) else None for loss in facts["losses"]]  # of a broken start: null
        self._log("step", {**told, "linear": facts["linear"], "losses": losses, "errors": facts["errors"]})
        done, left = trainer.progress.epoch, trainer.remaining_epochs
        rate = len(trainer.learned) / max(1e-9, trainer.progress.seconds - before)
        place = {"step": done, "unit": self.unit, "of": done + left, "fraction": done / (done + left), "epoch": done}
        seconds_left = trainer.progress.seconds / done * left
        pace = {"questions_per_second": rate, "seconds_left": seconds_left}
        notify(self.context.listeners, "step", **place, **told, **pace)

    def _halved(self) -> bool:
        """Whether the learning rate changes now: a good moment to look how far things are."""
        passes = self.trainer.progress.softmax
        return passes > 0 and passes % self.trainer.config.lr_halving_epochs == 0

    def _log(self, event: str, facts: Mapping[str, Any]) -> None:
        self.context.directory.append_log({"step": self.trainer.progress.epoch, "event": event, **facts})

    def _save(self) -> None:
        step = self.trainer.progress.epoch
        weights, progress = self.trainer.state()
        self.context.directory.save_checkpoint(step, weights, {}, progress)
        notify(self.context.listeners, "save", step=step)

    # ---- what is kept

    def _evaluate(self) -> dict[str, Any]:
        """Measure the start with the least training error, write it as the run's model, and return its measures."""
        trainer, data = self.trainer, self.valid_data
        member, errors = trainer.best()
        model = trainer.model.restart(member)
        given = predict_answers(model, self.vocabulary, data)
        scores = score_answers(data, given, self.vocabulary)
        metrics: dict[str, Any] = {"valid_error": scores.error, "train_error": float(errors[member])}
        if scores.support is not None:
            metrics["valid_support"] = scores.support
        metrics |= {"valid": scores.to_dict(), "starts": {"kept": member, "train_errors": errors.tolist()}}
        if trainer.is_done:
            self.verdict = self._judge(metrics)
        self._write(model, metrics, scores)
        shown = zip(self.valid.questions[:SAMPLES], given, strict=False)
        samples = [(question.text, question.answer, said.text) for question, said in shown]
        facts = {"step": trainer.progress.epoch, "unit": self.unit, "samples": samples}
        notify(self.context.listeners, "evaluate", metrics=_numbers(metrics), **facts)
        return metrics

    def _judge(self, metrics: Mapping[str, Any]) -> Verdict:
        trainer = self.trainer
        evaluations = [event for event in self.context.directory.read_log() if event.get("event") == "evaluate"]
        last = {"step": trainer.progress.epoch, **_numbers(metrics)}
        answers = [
            [(question.task, question.answer) for question in part.questions] for part in (self.stories, self.valid)
        ]
        return judge(
            [*evaluations, last],
            updates=trainer.progress.epoch * math.ceil(len(trainer.learned) / trainer.config.batch_size),
            baselines=[frequent_answers(*answers)],
            limit=Limit("--epochs", trainer.config.epochs),
        )

    def _write(self, model: MemoryNetwork, metrics: dict[str, Any], scores: StoryScores) -> None:
        run = self.context.config
        facts = {
            "step": self.trainer.progress.epoch,
            "unit": self.unit,
            "seed": run.stories.seed,
            "data": self.digests,
            "tasks": self.stories.tasks,
            "metrics": metrics,
        }
        if self.verdict is not None:
            facts["verdict"] = self.verdict.to_dict()
        table = [f"| {' | '.join(row)} |" for row in scores.rows()]
        details = ["| task | questions | error | support seen |", "| --- | ---: | ---: | ---: |", *table, ""]
        save_memory_network(
            self.context.directory.path,
            model.config,
            model.state_dict(),
            vocabulary=self.vocabulary.to_dict(),
            facts=facts,
            card=model_card(run, model.config, model.num_parameters(), facts, details),
        )


def _tasks(stories: StoryQuestions) -> str:
    count = len(stories.tasks)
    return f"{count} task{'s' if count > 1 else ''}"


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that are single numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
