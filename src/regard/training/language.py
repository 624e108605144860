"""Training a language model on running text: documents, a tokenizer, the model's size, and what is kept in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.checkpoint.reader_folder import LoadedReader, load_reader, save_reader
from regard.config.model import ELMO_PRESETS, ElmoConfig
from regard.config.run import RunConfig
from regard.data.documents import Documents, read_documents
from regard.data.order import chance
from regard.errors import UsageError
from regard.models import build
from regard.models.elmo import Elmo
from regard.tasks.features import ROW
from regard.tasks.language import LanguageTask, Stream, language_scores
from regard.text.learn import learn
from regard.text.tokenizer import Tokenizer
from regard.training.job import rejection_notes, started
from regard.training.keeping import KeepingJob, Measured, ModelEvaluator, chosen_size
from regard.training.tokenizing import kept_tokenizer
from regard.training.trivial import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

TASK = "language"
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 200_000  # of the text, in characters at most
BATCH_TOKENS = 2048  # rows of many steps are slow to read and cheap to put together: many small updates teach more
SIZES = ((100_000, "micro"), (1_000_000, "tiny"), (20_000_000, "small"))  # tokens up to which a preset is chosen


@dataclass(frozen=True)
class Texts:
    """Running text to learn and to measure on, and what is to be said of it."""

    train: Documents
    valid: Documents
    notes: list[str]

    @property
    def digests(self) -> dict[str, str]:
        """Of the data."""
        return {"train": self.train.digest, "valid": self.valid.digest}

    def line(self, train: Stream, valid: Stream, around: int = 0) -> str:
        """Say how much there is; `around` special tokens stand around a row."""
        return (
            f"data: {len(self.train):,} documents, {len(train.ids):,} tokens in rows of {train.length + around}; "
            f"validation {len(self.valid):,} documents, {len(valid.ids):,} tokens"
        )


def read_texts(config: RunConfig) -> Texts:
    """Return the texts of a run; where no validation text is given, some documents are held out."""
    notes: list[str] = []

    def read(files: Sequence[str], name: str) -> Documents:
        found = read_documents(files, config.data.read, config.language.document)
        notes.extend(rejection_notes(found, name))
        return found

    train = read(config.data.train, "training")
    if config.data.valid:
        return Texts(train, read(config.data.valid, "validation"), notes)
    train, valid = hold_out(train, config.training.seed)
    notes.append(f"validation: {len(valid):,} of the documents are held out (chosen by the seed)")
    return Texts(train, valid, notes)


class LanguageJob(KeepingJob[ElmoConfig, "LanguageEvaluator"]):
    """Running text and the recurrent language models that learn it."""

    name, concludes = TASK, False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        texts = read_texts(config)
        self.notes, self.digests = texts.notes, texts.digests
        self.start: LoadedReader[ElmoConfig] | None = None
        if config.start_from:
            self.start = load_reader(config.start_from, ElmoConfig, TASK)
        self.goes_on = self.start is not None
        self.tokenizer = kept_tokenizer(folder, lambda: self._tokenizer(texts.train.texts))
        self.texts = texts
        row = config.language.row or ROW
        train, self.valid = (Stream.of(part, self.tokenizer, row) for part in (texts.train, texts.valid))
        self.task = LanguageTask(train, seed=config.training.seed)
        self.tokens = len(train.ids)
        self.model_config, self.reason = self._model_config()
        self.width = self.model_config.width
        self.wishes: dict[str, float] = {"batch_tokens": max(BATCH_TOKENS, row)}

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        return learn(texts, self.config.tokenizer) if self.start is None else self.start.tokenizer

    def _model_config(self) -> tuple[ElmoConfig, str]:
        """Return the model for this data and why it was chosen."""
        if self.start is not None:
            return self.start.config, f"as in {self.config.start_from}"
        given = self.config.elmo
        preset, reason = chosen_size(
            self.config.preset,
            ELMO_PRESETS,
            amount=self.tokens,
            sizes=SIZES,
            largest="base",
            where="with --arch elmo",
        )
        if preset is not None:
            given = given.override({"width": preset.width})
        return given.override({"vocabulary": self.tokenizer.size, "boundary": self.tokenizer.end}), reason

    # ---- what a run asks

    def model(self) -> Elmo:
        """Return the model with its first weights."""
        weights = self.start.weights if self.start is not None else None
        return started(build(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, share: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.first(share)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> LanguageEvaluator:
        """Return what measures weights."""
        return LanguageEvaluator(self.model_config, self.valid, device)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [
            self.texts.line(self.task.train, self.valid),
            f"tokens: {self.config.tokenizer.kind}, {self.tokenizer.size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def facts(self, evaluator: LanguageEvaluator) -> dict[str, Any]:
        """Return what must be known to read running text as in training."""
        return {"row": self.task.train.length}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        return [token_frequencies(unigram_perplexity([self.task.train.ids], [self.valid.ids], self.tokenizer.size))]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        tokenizer = self.tokenizer
        save_reader(self.folder, self.model_config, weights, tokenizer=tokenizer, task=TASK, facts=facts, card=card)

    def kept(self) -> LoadedReader[ElmoConfig]:
        """Return the run's model as it was written."""
        return load_reader(self.folder, ElmoConfig, TASK)


class LanguageEvaluator(ModelEvaluator[Elmo]):
    """Measures language models from both ends on held-out text."""

    def __init__(self, config: ElmoConfig, valid: Stream, device: str) -> None:
        super().__init__(build(config), device)
        self.valid = valid

    def measured(self) -> Measured:
        """Return loss and perplexity of held-out text, from the left and from the right."""
        found = language_scores(self.model, self.valid)
        return found, (-found["loss"],), []


def hold_out(documents: Documents, seed: int) -> tuple[Documents, Documents]:
    """Return the documents without a small share of the text, and that share; equal texts are wholly on one side."""
    sizes: dict[str, int] = {}
    for text in documents.texts:
        sizes[text] = sizes.get(text, 0) + len(text)
    if len(sizes) < 2:
        raise UsageError("one document cannot be split: give validation text with --valid, or set --document line")
    texts = sorted(sizes)
    drawn = chance(seed=seed, epoch=0, digest=documents.digest, purpose=2).permutation(len(texts))
    grown = np.cumsum([sizes[texts[number]] for number in drawn])
    most = min(HELD_OUT_MOST, HELD_OUT_SHARE * grown[-1])
    count = min(max(1, int(np.searchsorted(grown, most))), len(texts) - 1)
    held = {texts[number] for number in drawn[:count]}
    kept = [number for number, text in enumerate(documents.texts) if text not in held]
    away = [number for number, text in enumerate(documents.texts) if text in held]
    return documents.chosen(kept), documents.chosen(away)
