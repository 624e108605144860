"""Evaluation while training: the averaged weights, float32, on validation data, in a model of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.config.decoding import DecodingConfig
from regard.config.model import WritingConfig
from regard.models import build
from regard.models.writer import Writer
from regard.tasks.alignment import choose_head
from regard.tasks.metrics import bleu, exact_match, perplexity
from regard.tasks.translation import Examples, Languages, mean_loss, translate_rows
from regard.training.keeping import Measured, ModelEvaluator
from regard.training.looked import Looked, Shown, shown_example

MOST_TRANSLATED = 1000  # validation sentences translated at each evaluation; the loss is over all of them
FEW_TRANSLATED = 50  # while the model knows next to nothing, not even when to end a text
HOPELESS = 150.0  # perplexity from which on that is so
MOST_ALIGNED = 200


class TranslationEvaluator(ModelEvaluator[Writer]):
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(self, config: WritingConfig, languages: Languages, valid: Examples, device: str) -> None:
        super().__init__(build(config), device)
        self.languages, self.valid = languages, valid
        self.greedy = DecodingConfig(beam=1, batch_size=128, batch_tokens=2048)

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        super().load(named)
        self.model.pack()

    def measured(self) -> Measured:
        """Return loss, perplexity, BLEU and exact match of greedy translations."""
        loss = mean_loss(self.model, self.valid)
        most = MOST_TRANSLATED if perplexity(loss, 1) < HOPELESS else FEW_TRANSLATED
        count = min(most, len(self.valid))
        said = self.translations(count, self.greedy)
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
        workers = torch.get_num_threads() if self.model.device().type == "cpu" else 1
        found = translate_rows(self.model, self.valid.source[:count], decoding, workers)
        return [self.languages.target.decode(hypotheses[0].ids) for hypotheses in found]

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
        (said,) = translate_rows(self.model, [self.valid.source[number]], self.greedy)
        return Looked.of(
            seen,
            Shown.of(self.languages.source, texts.source[number], batch.source.ids.tolist()),
            Shown.of(self.languages.target, texts.target[number], [*batch.target.ids.tolist(), end]),
            self.languages.target.decode(said[0].ids),
        )

    @torch.no_grad()
    def aligning_head(self) -> dict[str, Any] | None:
        """Return the cross-attention head that aligns words best on validation sentences, for `task.json`."""
        if not self.model.looks():
            return None
        count = min(MOST_ALIGNED, len(self.valid))
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
