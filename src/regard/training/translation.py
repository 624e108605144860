"""Training a translator: parallel text, tokenizers, the model's size, and what is kept in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.checkpoint.directory import LoadedModel, load_model, save_model
from regard.checkpoint.files import write_file
from regard.config.decoding import DecodingConfig
from regard.config.model import WritingConfig
from regard.config.run import RunConfig
from regard.data.sources import Pairs, hold_out_pairs, read_pairs
from regard.errors import UsageError
from regard.models import build
from regard.models.base import Model
from regard.tasks.metrics import bleu, translation_scores
from regard.tasks.translation import Examples, Languages, TranslationTask
from regard.text.learn import learn
from regard.text.tokenizer import Tokenizer
from regard.training.evaluation import FEW_ALIGNED, MOST_ALIGNED, MOST_TRANSLATED, TranslationEvaluator
from regard.training.job import Say, rejection_notes, started
from regard.training.keeping import KeepingJob, measured_on, spread_indices
from regard.training.plan import model_config
from regard.training.trivial import constant_target, token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

LENGTH_POWERS = (0.6, 1.0, 1.4, 1.8)  # tried on validation data
BEAM_COST = 3.0  # beam search takes about so many times as long as the greedy search of an evaluation
TUNING_SHARE = 0.03  # of a time budget that tuning the search may take


class TranslationJob(KeepingJob[WritingConfig, TranslationEvaluator]):
    """Parallel text and the translator that learns it."""

    name = "translate"
    _evaluator: TranslationEvaluator | None = None

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.wishes: dict[str, float] = {}
        self.decoding = config.decoding
        pairs = read_pairs(config.data.train, config.data.read)
        rejects = rejection_notes(pairs, "training")
        if config.data.valid:
            valid = read_pairs(config.data.valid, config.data.read)
            rejects += rejection_notes(valid, "validation")
        else:
            pairs, valid = hold_out_pairs(pairs, config.training.seed)
            self.notes.append(f"validation: {len(valid):,} of the training pairs are held out (chosen by the seed)")
        self.digests = {"train": pairs.digest, "valid": valid.digest}
        self.notes += rejects
        self.start = load_model(config.start_from) if config.start_from else None
        self.goes_on = self.start is not None
        self.languages = self._languages(pairs)
        train = self._fitting(self.languages.examples(pairs), "training")
        self.valid = self._fitting(self.languages.examples(valid), "validation")
        self.tokens = int(train.lengths[:, 1].sum())
        seed, sampling = config.training.seed, config.tokenizer.sampling
        self.task = TranslationTask(self.languages, train, self.valid, seed=seed, sampling=sampling)
        if self.start is None:
            self.model_config, self.reason = model_config(config, self.languages, self.tokens)
        else:
            self.model_config, self.reason = self.start.config, f"as in {config.start_from}"
        self.width = self.model_config.width

    # ---- choices

    def _languages(self, pairs: Pairs) -> Languages:
        folder = self.folder / "tokenizers"
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
        return examples.chosen(fits)

    # ---- what a run asks

    def model(self) -> Model:
        """Return the model with its first weights."""
        weights = self.start.weights if self.start is not None else None
        return started(build(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation pairs only."""
        self.valid = self.valid.chosen(spread_indices(len(self.valid), share))

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads and writes."""
        return int(self.valid.lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of the last translations by beam search, and a share of the time for tuning."""
        greedy = min(evaluation, self.search_seconds) if self.search_seconds else evaluation
        beam = BEAM_COST * greedy if self.config.decoding.beam > 1 else greedy
        tuning = min((len(LENGTH_POWERS) - 1) * beam, TUNING_SHARE * 60 * self.config.training.minutes)
        return super().closing_seconds(evaluation) - greedy + beam + tuning

    def evaluator(self, device: str) -> TranslationEvaluator:
        """Return what measures weights."""
        self._evaluator = TranslationEvaluator(self.model_config, self.languages, self.valid, device)
        return self._evaluator

    @property
    def search_seconds(self) -> float:
        """Seconds that the greedy search of the last evaluation took; 0 before the first."""
        return 0.0 if self._evaluator is None else self._evaluator.search_seconds

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        config = self.model_config
        kinds = f"{self.languages.source.size:,}" + ("" if config.shared else f" and {self.languages.target.size:,}")
        train, valid = len(self.task.train), len(self.valid)
        return [
            f"data: {train:,} pairs, {self.tokens:,} target tokens; validation {valid:,} pairs",
            f"tokens: {self.config.tokenizer.kind}, {kinds} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {config.summary()} ({self.reason})",
        ]

    def facts(self, evaluator: TranslationEvaluator) -> dict[str, Any]:
        """Return what must be known to translate as in training."""
        count = FEW_ALIGNED if self.verdict is None else MOST_ALIGNED  # while it trains, a quick choice will do
        return {"max_length": self.config.data.max_length, "align": evaluator.aligning_head(count)}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of target tokens by their training frequencies, and what the most frequent target scores."""
        target = self.languages.target
        train, valid = ([np.append(row, target.end) for row in part.target] for part in (self.task.train, self.valid))
        constant = constant_target(self.task.train.texts.target, self.valid.texts.target[:MOST_TRANSLATED])
        frequencies = token_frequencies(unigram_perplexity(train, valid, target.size), translation=True)
        return [frequencies, constant]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_model(
            self.folder,
            self.model_config,
            weights,
            tokenizers={"source": self.languages.source, "target": self.languages.target},
            decoding=self.decoding,
            task=facts,
            card=card,
            fields=self.start.fields if self.start is not None else None,
        )

    def kept(self) -> LoadedModel:
        """Return the run's model as it was written."""
        return load_model(self.folder)

    def conclude(self, evaluator: TranslationEvaluator, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tune the search on validation data and return the scores of its translations."""
        count = min(MOST_TRANSLATED, len(self.valid))
        self.decoding, said = self._tuned(evaluator, count, say)
        return measured_on("valid", translation_scores(said, self.valid.texts.target[:count])), {}

    def _tuned(self, evaluator: TranslationEvaluator, count: int, say: Say) -> tuple[DecodingConfig, list[str]]:
        """Return the search with the length power that scores best on validation data, and its translations."""
        given = self.config.decoding
        powers = [given.length_power]
        if self.config.training.tune_length and given.beam > 1 and not given.sample:
            powers += [power for power in LENGTH_POWERS if power != given.length_power]
        tried = []
        for power in powers:
            began = time.monotonic()
            decoding = replace(given, length_power=power)
            said = evaluator.translations(count, decoding)
            tried.append((bleu(said, self.valid.texts.target[:count]), decoding, said))
            if 2 * time.monotonic() - began > self.deadline and len(tried) < len(powers):
                say(f"the time is up: {len(tried)} of {len(powers)} length powers were tried")
                break
        _, decoding, said = max(tried, key=lambda one: one[0])  # the first of equals: the given one
        if len(tried) > 1:
            told = ", ".join(f"{one.length_power:g}: {found:.2f}" for found, one, _ in tried)
            say(f"length power {decoding.length_power:g} is best on validation data (BLEU by power {told})")
        return decoding, said
