"""Where readers with words of their own looked: what pooling took of a text, and the mix of frozen layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.attention.trace import trace
from regard.blocks.reading import POOLING
from regard.config.seeing import SeeingConfig
from regard.models.classifier import Classifier
from regard.pipeline.gathering import Axes, gathered
from regard.view.record import Attention, Cut, Record, Side

if TYPE_CHECKING:
    from regard.models.reader import ReadingModel
    from regard.tasks.perception import Perception, TextRows

AXES = {POOLING: Axes("label", "source", produced=True)}


class ReaderLooker:
    """Shows what a reader took of a text."""

    def __init__(self, model: ReadingModel, perception: Perception) -> None:
        self.model, self.perception = model, perception

    def record(self, text: str, config: SeeingConfig, *, task: str, label: str = "", **more: Any) -> Record:
        """Return the record of one text: where pooling looked, if it does, and how much of each frozen layer counts."""
        read = self.perception.read([text])
        texts: dict[str, Side] = {"source": self._side(text, read), **more.pop("texts", {})}
        seen: tuple[Attention, ...] = ()
        if isinstance(self.model, Classifier):
            with trace(keep=config.kept(0)) as looked:
                self.model.chances(read.batch(np.arange(1)))
            seen = gathered([looked], AXES)
            if seen:
                texts["label"] = Side.of_labels(label, [label])
        shares, _ = self.model.encoder.mixed()
        if shares:
            mix, sides = mixed_layers(shares)
            seen, texts = (*seen, mix), {**texts, **sides}
        return Record(text, texts, seen, task=task, cut=self._cut(read), **more)

    def _side(self, text: str, read: TextRows) -> Side:
        encoding = self.perception.tokenizer.encode(text)
        count = len(read.rows[0])
        pieces = self.perception.tokenizer.pieces(read.rows[0].tolist())
        words = encoding.words[:count] or [-1] * count
        return Side.of_pieces(text, pieces, words, read.spans[0])

    def _cut(self, read: TextRows) -> tuple[Cut, ...]:
        if not read.cut[0]:
            return ()
        why = f"the text has {len(read.rows[0]) + read.cut[0]:,} tokens, more than the model reads"
        return (Cut(why, f"its last {read.cut[0]:,} tokens"),)


def mixed_layers(shares: list[float]) -> tuple[Attention, dict[str, Side]]:
    """Return how much of each layer is in a mix, as attention of one row over the layers."""
    names = ["words", *(f"layer {number}" for number in range(1, len(shares)))]
    sides = {"mix": Side.of_labels("mix", ["mix"]), "layers": Side.of_labels("layers", names)}
    weights = np.asarray(shares, dtype=np.float32)[None, None, None]
    return Attention("mix", "mix", "layers", weights, (0,)), sides
