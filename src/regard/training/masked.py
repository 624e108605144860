"""Training an encoder on running text with hidden words: documents, a tokenizer, the model's size, what is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_folder import LoadedEncoder, load_encoder, save_encoder
from regard.config.model import ENCODER_PRESETS, EncoderConfig
from regard.config.run import RunConfig
from regard.errors import ConfigError, DataError, UsageError
from regard.models import build
from regard.models.encoder import Encoder, start_near, with_usual_tables
from regard.tasks.filling import Word, best_words, gap_text
from regard.tasks.language import Stream, even_rows
from regard.tasks.masking import COUNTS, Layout, MaskedTask, fixed_batches, masked_scores, token_counts, unigram_loss
from regard.tasks.metrics import perplexity
from regard.tasks.vocabulary import carried
from regard.text.framing import Framing
from regard.text.tokenizer import Tokenizer
from regard.text.wordpieces import learn_masked
from regard.tokens import Tokens
from regard.training.job import started
from regard.training.keeping import KeepingJob, Measured, ModelEvaluator, chosen_size
from regard.training.language import read_texts
from regard.training.looked import LENGTH, Looked, Shown
from regard.training.tokenizing import kept_tokenizer
from regard.training.trivial import token_frequencies
from regard.training.verdict import TrivialBaseline

TASK = "fill"  # what the folder's model does
ROW = 128  # tokens of a row, where the user sets no number
BATCH_TOKENS = 4096
USUAL_RATE, USUAL_WIDTH = 0.01, 0.5  # of the table of words: faster, it keeps a model from looking at what is around
ALL_TOKENS = 40_000_000  # read in all where the user sets no length
SIZES = ((300_000, "tiny"), (30_000_000, "mini"), (300_000_000, "small"))  # tokens up to which a preset is chosen
LETTERS = 4  # of a token, about: the vocabulary is not known yet
SAMPLES, BEST = 3, 3  # gaps that are shown at each evaluation, and words for each


class MaskedJob(KeepingJob[EncoderConfig, "MaskedEvaluator"]):
    """Running text and the encoder that learns to tell its hidden words."""

    name, concludes = TASK, False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.texts = read_texts(config)
        self.notes, self.digests = self.texts.notes, self.texts.digests
        self.head = "pretraining" if config.masking.next_sentence else "masked"
        self.start: LoadedEncoder | None = None
        if config.start_from:
            self.start = load_encoder(config.start_from, head=self.head, seed=config.training.seed)
            self.notes += self.start.report.lines()
        self.goes_on = self.start is not None
        self.tokenizer = kept_tokenizer(folder, self._tokenizer)
        self.layout = Layout.of(self.tokenizer, config.masking)
        self.model_config, self.reason = self._model_config()
        self.width = self.model_config.width
        train, self.valid = (self._stream(part) for part in (self.texts.train, self.texts.valid))
        self.counts = token_counts(train, self.tokenizer.size)
        self.task = MaskedTask(train, self.layout, seed=config.training.seed)
        self.tokens = max(1, round(config.masking.rate * len(train.ids)))
        self.wishes: dict[str, float] = {
            "batch_tokens": max(BATCH_TOKENS, train.length),
            "usual_rate": min(USUAL_RATE, USUAL_WIDTH / self.width),
            "epochs": max(3, min(40, round(ALL_TOKENS / len(train.ids)))),
        }

    def _tokenizer(self) -> Tokenizer:
        if self.start is not None and self.config.masking.words == "kept":
            return self.start.tokenizer
        return learn_masked(self.texts.train.texts, self.config.tokenizer)

    def _stream(self, documents: Any) -> Stream:
        row, most = self.config.language.row or min(ROW, self.model_config.places), self.model_config.places
        if not self.layout.room + 2 <= row <= most:
            raise ConfigError(f"language.row ({row}) must be between {self.layout.room + 2} and {most}, all it reads")
        made = Stream.of(documents, self.tokenizer, row - self.layout.room)
        if not self.layout.masking.ordinary[made.ids].any():
            raise DataError("no word in it is known to the tokenizer", advice="give text in the model's own language")
        return made

    def _model_config(self) -> tuple[EncoderConfig, str]:
        """Return the model for this data, as it is written, and why it was chosen."""
        sizes = {"vocabulary": self.tokenizer.size, "head": self.head}
        if self.start is not None:
            config = self.start.config
            if self.config.masking.next_sentence and config.types < 2:
                raise UsageError(f"{self.config.start_from} does not tell the texts of a pair apart: no next sentences")
            if self.tokenizer.digest == self.start.tokenizer.digest:
                return config, f"as in {self.config.start_from}"
            return config.override(sizes | {"pad": self.tokenizer.pad}), f"as in {self.config.start_from}, new words"
        given = self.config.bert
        preset, reason = chosen_size(
            self.config.preset,
            ENCODER_PRESETS,
            amount=sum(map(len, self.texts.train.texts)),
            sizes=[(LETTERS * most, size) for most, size in SIZES],
            largest="base",
            what="letters",
            where="with --arch bert",
        )
        if preset is not None:
            given = given.override({"width": preset.width, "stack": preset.stack.to_dict()})
        return given.override(sizes | {"pad": self.tokenizer.pad}), reason

    # ---- what a run asks

    def model(self) -> Encoder:
        """Return the model with its first weights; while it learns it has a dropout of its own."""
        dropout = self.config.masking.dropout
        config = self.model_config.override({"dropout": dropout, "attention_dropout": dropout})
        weights = self._weights()
        made: Encoder = started(build(config), self.config.training.seed, weights)
        if weights is None:
            start_near(made)
        return made

    def _weights(self) -> Mapping[str, Tensor] | None:
        if self.start is None or self.tokenizer.digest == self.start.tokenizer.digest:
            return None if self.start is None else self.start.weights
        return carried(self.start.weights, self.start.tokenizer, self.tokenizer)

    def limit_validation(self, share: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.first(share)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> MaskedEvaluator:
        """Return what measures weights."""
        return MaskedEvaluator(self.model_config, self.tokenizer, self.layout, self.valid, self.counts, device)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        masking = self.config.masking
        hidden = f"{100 * masking.rate:.3g} % of the {'words' if masking.whole_words else 'tokens'} are hidden"
        return [
            self.texts.line(self.task.train, self.valid, self.layout.room) + f"; {hidden}",
            f"tokens: {self.tokenizer.size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def facts(self, evaluator: MaskedEvaluator) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        return {"row": self.task.train.length + self.layout.room}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of hidden tokens by their training frequencies."""
        return [token_frequencies(perplexity(unigram_loss(self.counts, self.valid, self.layout), 1))]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        origin: dict[str, Any] = {} if self.start is None else {"kind": self.start.kind, "fields": self.start.fields}
        save_encoder(
            self.folder,
            self.model_config,
            weights if self.start is not None else with_usual_tables(weights, self.model_config),
            tokenizer=self.tokenizer,
            task=TASK,
            facts=facts,
            card=card,
            besides={COUNTS: json.dumps(self.counts.tolist()).encode()},
            **origin,
        )

    def kept(self) -> LoadedEncoder:
        """Return the run's model as it was written."""
        return load_encoder(self.folder)


class MaskedEvaluator(ModelEvaluator[Encoder]):
    """Measures how well hidden words of held-out text are told."""

    def __init__(
        self,
        config: EncoderConfig,
        tokenizer: Tokenizer,
        layout: Layout,
        valid: Stream,
        counts: NDArray[np.int64],
        device: str,
    ) -> None:
        super().__init__(build(config), device)
        self.tokenizer, self.layout, self.valid = tokenizer, layout, valid
        self.unigram = perplexity(unigram_loss(counts, valid, layout), 1)
        self.gaps = _gaps(valid, layout)

    def measured(self) -> Measured:
        """Return loss and perplexity of hidden words of held-out text, beside what their counts alone would give."""
        found = masked_scores(self.model, self.valid, self.layout)
        metrics = {"loss": found.loss, "perplexity": perplexity(found.loss, 1), "perplexity_unigram": self.unigram}
        if found.together is not None:
            metrics["next_accuracy"] = found.together
        return metrics, (-found.loss,), self.samples()

    def looked(self) -> Looked | None:
        """Return where the model looks while it reads the beginning of the held-out text, nothing hidden."""
        start = self.valid.ids[:LENGTH].tolist()
        ids, types = Framing(self.tokenizer).frame(start)
        with trace() as seen:
            self.model.encode(Tokens.from_rows([ids]), np.array(types, dtype=np.int32))
        return Looked.of(seen, Shown.of(self.tokenizer, self.tokenizer.decode(start).strip(), ids))

    def samples(self) -> list[tuple[str, str, str]]:
        """Return some gaps, what stood there and what the model would put there."""
        made = []
        for row, place in self.gaps:
            ids = row.copy()
            ids[0, place] = self.layout.masking.mask
            found, chances = best_words(self.model, even_rows(ids), np.array([place]), BEST)
            said = [
                f"{Word.of(self.tokenizer, int(number)).text} {100 * chance:.0f} %"
                for number, chance in zip(found[0], chances[0], strict=True)
            ]
            wanted = Word.of(self.tokenizer, int(row[0, place])).text
            made.append(
                (gap_text(self.tokenizer, row[0].tolist(), place, self.layout.masking.mask), wanted, ", ".join(said))
            )
        return made


def _gaps(text: Stream, layout: Layout) -> list[tuple[NDArray[np.int32], int]]:
    """Return rows without anything hidden, each [1, T], and in the middle of each a word that is one token."""
    batch = next(fixed_batches(text, layout))
    ids = batch.rows.ids.copy()
    ids[batch.places] = batch.targets
    width, made = int(batch.rows.lengths[0]), []
    for number in range(min(SAMPLES, len(batch.rows))):
        row = ids[number * width : (number + 1) * width][None]
        inner = layout.masking.continues[row[0]]
        places = np.flatnonzero(layout.masking.ordinary[row[0]] & ~inner & ~np.roll(inner, -1))
        if len(places):
            made.append((row, int(places[len(places) // 2])))
    return made
