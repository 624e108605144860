"""Training memory networks in a run: their data, their plan, a checkpoint after every pass, and what is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from regard.checkpoint.memory_folder import save_memory
from regard.data.stories import Stories, read_stories
from regard.errors import UsageError
from regard.models.base import placed
from regard.models.memory_network import MemoryNetwork
from regard.phrases import duration
from regard.tasks.stories import Examples, answer, examples
from regard.tasks.story_scores import StoryScores, measured
from regard.training.card import model_card
from regard.training.job import Outcome, Plan, Sitting, rejection_notes
from regard.training.signals import stop_requests
from regard.training.stories import prepared
from regard.training.throughput import Setup, Throughput, choose_throughput, fastest_setup
from regard.training.trivial import frequent_answers
from regard.training.verdict import Limit, Verdict, judge
from regard.training.watch import tell

PROBE_SECONDS = 2.0  # of timing before training starts
SAMPLES = 2  # questions shown with each evaluation


class StoryTraining:
    """Stories, and the memory networks that learn to answer questions about them."""

    unit = "pass"

    def __init__(self, sitting: Sitting) -> None:
        self.sitting, config = sitting, sitting.config
        if sitting.distributed.world_size > 1:
            raise UsageError("memory networks are trained by one process, all starts side by side: start it alone")
        self.notes: list[str] = []
        self.verdict: Verdict | None = None  # once all passes are made
        self.stories = self._read(config.data.train, "training")
        self.trainer, self.vocabulary = prepared(self.stories, config.memory, config.stories)
        self.valid = self._valid()
        self.valid_data = self._examples(self.valid)
        self.digests = {"train": self.stories.digest, "valid": self.valid.digest}

    # ---- data

    def _read(self, files: tuple[str, ...], name: str) -> Stories:
        found = read_stories(files, self.sitting.config.data.read)
        self.notes += rejection_notes(found, name)
        return found

    def _valid(self) -> Stories:
        """Return the questions that are measured: those of files, those held out, or at worst those learned."""
        data, held_out = self.sitting.config.data, self.trainer.held_out
        if data.valid:
            return self._read(data.valid, "validation")
        if len(held_out):
            self.notes.append(f"validation: the {len(held_out):,} questions that are held out (chosen by the seed)")
            return self.stories.chosen(held_out.tolist())
        self.notes.append("validation: on the training questions, as none are held out and none are given by --valid")
        return self.stories

    def _examples(self, stories: Stories) -> Examples:
        refuse = self.sitting.config.stories.unseen == "refuse"
        return examples(stories, self.vocabulary, self.trainer.model.config, refuse=refuse)

    # ---- what a run asks

    def choose(self) -> dict[str, Any]:
        """Return the fastest thread count and the seconds of a pass, by a short timing that leaves the weights."""
        trainer = self.trainer
        indices = trainer.learned[: trainer.config.batch]

        def time_update(setup: Setup) -> float:
            began = time.perf_counter()
            loss, _ = trainer.model.loss(trainer.train.batch(indices), trainer.train.answers[indices])
            loss.sum().backward()
            return time.perf_counter() - began

        def measure(counts: Sequence[int]) -> Throughput:
            return fastest_setup([Setup("float32", count) for count in counts], time_update, PROBE_SECONDS)

        throughput = choose_throughput(trainer.model, self.sitting.config.training, 1, measure)
        trainer.model.zero_grad(set_to_none=True)
        return {
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": throughput.update_seconds * len(trainer.learned) / len(indices),
        }

    def plan(self, chosen: Mapping[str, Any]) -> Plan:
        """Say what data, model and length of training are."""
        trainer, model, config = self.trainer, self.trainer.model, self.trainer.config
        held_out, learned = len(trainer.held_out), len(trainer.learned)
        parameters = model.parameter_count() // model.members
        linear = f"at most {config.linear_epochs} without softmax, then " if config.linear_start else ""
        starts = f"{model.members} starts side by side, of which the best is kept" if model.members > 1 else "one start"
        passes = config.epochs + (config.linear_epochs if config.linear_start else 0)
        estimate = passes * chosen["seconds"]
        lines = [
            f"data: {_tasks(self.stories)}, {learned:,} questions to learn and {held_out:,} held out; "
            f"validation {_tasks(self.valid)}, {len(self.valid):,} questions",
            f"words: {len(self.vocabulary.words):,} kinds, {len(self.vocabulary.answers):,} of them answers; "
            f"at most {model.config.longest} in a sentence or question",
            f"model: {parameters:,} parameters, {model.config.summary()}",
            f"compute: {chosen['throughput']}",
            f"plan: {linear}{config.epochs} passes, {config.batch} questions a batch, learning rate "
            f"{config.learning_rate:.2g}, halved every {config.halve_every} passes; {starts}; "
            f"about {duration(estimate)}",
            *self.notes,
        ]
        return Plan(lines, parameters, estimate)

    def train(self, chosen: Mapping[str, Any]) -> Outcome:
        """Train until all passes are made or a signal comes; every pass is saved."""
        trainer = self.trainer
        placed(trainer.model, self.sitting.config.training.device)
        self._resume()
        found: dict[str, Any] = {}
        with stop_requests() as asked:
            while not trainer.done and not asked:
                self._pass()
                if trainer.progress.switched and (trainer.done or self._halved()):
                    found = self._evaluate()
                    self._log("evaluate", _numbers(found))
                self._save()
        progress = trainer.progress
        if not trainer.done:
            return Outcome(progress.epoch, asked.name, progress.seconds)
        metrics = found or self._evaluate()
        for line in StoryScores.from_dict(metrics["valid"]).lines():
            self.sitting.say(line)
        facts = {"questions": len(trainer.learned) * progress.epoch}
        return Outcome(progress.epoch, "plan done", progress.seconds, metrics, facts, self.verdict)

    # ---- the loop

    def _resume(self) -> None:
        directory = self.sitting.directory
        saved = directory.newest()
        directory.truncate_log(saved.step if saved else 0)
        if saved:
            self.trainer.resume(saved.weights, saved.counters)
            tell(self.sitting.watchers, "resume", step=saved.step, unit=self.unit)

    def _pass(self) -> None:
        trainer = self.trainer
        before = trainer.progress.seconds
        facts = trainer.step()
        best = min(trainer.sound, key=lambda member: facts["losses"][member])
        told = {"loss": facts["losses"][best], "error": facts["errors"][best], "learning_rate": facts["learning_rate"]}
        losses = [loss if math.isfinite(loss) else None for loss in facts["losses"]]  # of a broken start: null
        self._log("step", {**told, "linear": facts["linear"], "losses": losses, "errors": facts["errors"]})
        done, left = trainer.progress.epoch, trainer.left
        rate = len(trainer.learned) / max(1e-9, trainer.progress.seconds - before)
        place = {"step": done, "unit": self.unit, "of": done + left, "fraction": done / (done + left), "epoch": done}
        seconds_left = trainer.progress.seconds / done * left
        pace = {"questions_per_second": rate, "seconds_left": seconds_left}
        tell(self.sitting.watchers, "step", **place, **told, **pace)

    def _halved(self) -> bool:
        """Whether the learning rate changes now: a good moment to look how far things are."""
        passes = self.trainer.progress.softmax
        return passes > 0 and passes % self.trainer.config.halve_every == 0

    def _log(self, event: str, facts: Mapping[str, Any]) -> None:
        self.sitting.directory.append_log({"step": self.trainer.progress.epoch, "event": event, **facts})

    def _save(self) -> None:
        step = self.trainer.progress.epoch
        weights, progress = self.trainer.state()
        self.sitting.directory.save_checkpoint(step, weights, {}, progress)
        tell(self.sitting.watchers, "save", step=step)

    # ---- what is kept

    def _evaluate(self) -> dict[str, Any]:
        """Measure the start with the least training error, write it as the run's model, and return its measures."""
        trainer, data = self.trainer, self.valid_data
        member, errors = trainer.best()
        model = trainer.model.member(member)
        given = answer(model, self.vocabulary, data)
        scores = measured(data, given, self.vocabulary)
        metrics: dict[str, Any] = {"valid_error": scores.error, "train_error": float(errors[member])}
        if scores.support is not None:
            metrics["valid_support"] = scores.support
        metrics |= {"valid": scores.to_dict(), "starts": {"kept": member, "train_errors": errors.tolist()}}
        if trainer.done:
            self.verdict = self._judge(metrics)
        self._write(model, metrics, scores)
        shown = zip(self.valid.questions[:SAMPLES], given, strict=False)
        samples = [(question.text, question.answer, said.text) for question, said in shown]
        facts = {"step": trainer.progress.epoch, "unit": self.unit, "samples": samples}
        tell(self.sitting.watchers, "evaluate", metrics=_numbers(metrics), **facts)
        return metrics

    def _judge(self, metrics: Mapping[str, Any]) -> Verdict:
        trainer = self.trainer
        evaluations = [event for event in self.sitting.directory.read_log() if event.get("event") == "evaluate"]
        last = {"step": trainer.progress.epoch, **_numbers(metrics)}
        answers = [
            [(question.task, question.answer) for question in part.questions] for part in (self.stories, self.valid)
        ]
        return judge(
            [*evaluations, last],
            updates=trainer.progress.epoch * math.ceil(len(trainer.learned) / trainer.config.batch),
            baselines=[frequent_answers(*answers)],
            limit=Limit("--epochs", trainer.config.epochs),
        )

    def _write(self, model: MemoryNetwork, metrics: dict[str, Any], scores: StoryScores) -> None:
        run = self.sitting.config
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
        save_memory(
            self.sitting.directory.path,
            model.config,
            model.state_dict(),
            vocabulary=self.vocabulary.to_dict(),
            facts=facts,
            card=model_card(run, model.config, model.parameter_count(), facts, details),
        )


def _tasks(stories: Stories) -> str:
    count = len(stories.tasks)
    return f"{count} task{'s' if count > 1 else ''}"


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that are single numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
