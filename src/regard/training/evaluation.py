"""Evaluation while training: the averaged weights, float32, on validation data, in a model of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.config.decoding import DecodingConfig
from regard.config.model import TranslatorConfig, WritingConfig
from regard.decoding.batches import search_rows
from regard.engine.library import absence
from regard.engine.translator import Engine
from regard.models import build
from regard.models.writer import Writer
from regard.tasks.alignment import choose_head
from regard.tasks.metrics import bleu, exact_match, perplexity
from regard.tasks.translation import Examples, Languages, mean_loss, translate_rows
from regard.tokens import Ids
from regard.training.keeping import Measured, ModelEvaluator
from regard.training.looked import Looked, Shown, shown_example
from regard.workers import Workers

MOST_TRANSLATED = 1000  # validation sentences translated at each evaluation; the loss is over all of them
FEW_TRANSLATED = 50  # while the model knows next to nothing, not even when to end a text
HOPELESS = 150.0  # perplexity from which on that is so
FEW_ALIGNED, MOST_ALIGNED = 40, 200  # validation sentences that choose the aligning head
MAX_RATIO, EXTRA_TOKENS = 20.0, 5  # of a greedy translation's length, beside what validation data shows


class TranslationEvaluator(ModelEvaluator[Writer]):
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(self, config: WritingConfig, languages: Languages, valid: Examples, device: str) -> None:
        super().__init__(build(config), device)
        self.languages, self.valid = languages, valid
        # no longer than what is to be written needs: a model that knows nothing yet does not know when to end
        ratios = valid.lengths[:, 1] / np.maximum(1, valid.lengths[:, 0])
        ratio = float(np.clip(ratios.max(initial=1.0), 1.0, MAX_RATIO))
        self.greedy = DecodingConfig(beam=1, batch_size=128, batch_tokens=2048, max_ratio=ratio, max_extra=EXTRA_TOKENS)
        self.uses_engine = isinstance(config, TranslatorConfig) and device == "cpu" and not absence()
        self.search_seconds = 0.0  # of the last evaluation
        self.engine: Engine | None = None  # of the weights that were loaded last

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights; the engine decodes with them where it can."""
        super().load(named)
        if not self.uses_engine:
            self.model.pack()
            return
        weights = {name: tensor.detach().float().numpy() for name, tensor in self.model.state_dict().items()}
        assert isinstance(self.model.config, TranslatorConfig)
        self.engine = Engine.of(self.model.config, weights)

    def measured(self) -> Measured:
        """Return loss, perplexity, BLEU and exact match of greedy translations."""
        loss = mean_loss(self.model, self.valid)
        most = MOST_TRANSLATED if perplexity(loss, 1) < HOPELESS else FEW_TRANSLATED
        count = min(most, len(self.valid))
        began = time.monotonic()
        said = self.translations(count, self.greedy)
        self.search_seconds = time.monotonic() - began
        source, wanted = self.valid.texts.source[:count], self.valid.texts.target[:count]
        metrics = {
            "loss": loss,
            "perplexity": perplexity(loss, 1),
            "bleu": bleu(said, wanted),
            "exact_match": exact_match(said, wanted),
        }
        samples = list(zip(source[:2], wanted[:2], said[:2], strict=True))
        return metrics, (round(metrics["bleu"], 4), -loss), samples

    def translations(self, count: int, decoding: DecodingConfig) -> list[str]:
        """Return translations of the first validation sentences."""
        return self._translate(self.valid.source[:count], decoding)

    def _translate(self, rows: Sequence[Ids], decoding: DecodingConfig) -> list[str]:
        """Decode source rows, by the engine where it can."""
        workers = torch.get_num_threads() if self.model.device().type == "cpu" else 1
        if self.engine is None or decoding.coverage:  # which needs the attention weights of every step
            hypotheses = translate_rows(self.model, rows, decoding, workers)
        else:
            longest = self.model.settings.places - 1
            hypotheses = search_rows(self.engine, rows, decoding, longest=longest, each=Workers(workers).map)
        return [self.languages.target.decode(best[0].ids) for best in hypotheses]

    @torch.no_grad()
    def looked(self) -> Looked | None:
        """Return where the model looks while it is made to write the translation of one validation sentence."""
        number = shown_example(self.valid.lengths)
        if number is None:
            return None
        batch = self.valid.batch(np.array([number]))
        with trace() as seen:
            self.model.score_tokens(batch.source, batch.target)
        texts, end = self.valid.texts, self.model.end_token
        (translation,) = self._translate([self.valid.source[number]], self.greedy)
        return Looked.of(
            seen,
            Shown.of(self.languages.source, texts.source[number], batch.source.ids.tolist()),
            Shown.of(self.languages.target, texts.target[number], [*batch.target.ids.tolist(), end]),
            translation,
        )

    @torch.no_grad()
    def aligning_head(self, most: int) -> dict[str, Any] | None:
        """Return the cross-attention head that aligns words best on the first sentences, for `task.json`."""
        if not self.model.looks():
            return None
        count = min(most, len(self.valid))
        batch = self.valid.batch(np.arange(count))
        with trace(",".join(self.model.looks()), exact=True) as seen:
            self.model.score_tokens(batch.source, batch.target)
        weights = {site: seen[site].weights for site in seen}
        source, target = (
            [tokenizer.encode(text) for text in texts[:count]]
            for tokenizer, texts in (
                (self.languages.source, self.valid.texts.source),
                (self.languages.target, self.valid.texts.target),
            )
        )
        return asdict(choose_head(weights, source, target))
