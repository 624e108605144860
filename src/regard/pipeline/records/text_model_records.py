"""Records of models with their own vocabulary, such as RNN text encoders: attention, pooling and layer mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.attention.sites import POOLING_SITE, site_kind
from regard.config.inference import RecordConfig
from regard.models.rnn_text import RnnTextModel
from regard.models.text_classifier import TextClassifierModel
from regard.pipeline.records.trace_records import Axes, capture_text, collect_attention, collect_qkv
from regard.tasks.text_model import PreprocessedTexts, TextPreprocessor
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import HeadQKV, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

POOLING_AXES = {POOLING_SITE: Axes("label", "source", is_generated=True)}


class TextModelRecorder:
    """Records what a model with its own vocabulary, such as an RNN, makes of a text."""

    def __init__(self, model: RnnTextModel | TextClassifierModel, preprocessor: TextPreprocessor) -> None:
        self.model = model
        self.preprocessor = preprocessor

    def record(self, text: str, config: RecordConfig, *, task: str, label: str = "", **parts: Any) -> Record:
        """Record the attention, where there is any, and the mix of the frozen layers."""
        encoded = self.preprocessor.encode([text])
        texts: dict[str, RecordText] = {"source": self._build_text(text, encoded), **parts.pop("texts", {})}
        attention: tuple[AttentionRecord, ...] = ()
        if isinstance(self.model, TextClassifierModel):
            attention, qkv = self._collect_attention(self.model, encoded, config)
            parts["qkv"] = qkv
            if any(kind.rows == "label" for kind in attention):
                texts["label"] = RecordText.from_labels(label, [label])
        layer_weights, _ = self.model.mix_weights()
        if layer_weights:
            features = self.preprocessor.features
            layers = None if features is None else features.selection.layers
            mix, mix_texts = layer_mix_attention(layer_weights, layers)
            attention = (*attention, mix)
            texts |= mix_texts
        return Record(text, texts, attention, task=task, omissions=self._list_omissions(encoded), **parts)

    def _collect_attention(
        self, model: TextClassifierModel, encoded: PreprocessedTexts, config: RecordConfig
    ) -> tuple[tuple[AttentionRecord, ...], tuple[HeadQKV, ...]]:
        """Attention of the pooling, or of tokens to tokens, and queries, keys and values of the heads in the config."""
        sites = model.attention_sites()
        if config.store_qkv == "best":
            is_self = bool(sites) and POOLING_SITE not in sites
            config = config.override({"store_qkv": f"{[*sites][-1]}:0" if is_self else ""})
        axes = {site_kind(site): POOLING_AXES.get(site, Axes("source", "source")) for site in sites}
        length = len(encoded.rows[0])
        batch = encoded.batch(np.arange(1))
        with capture_text(config, sites, length, length) as captured:
            model.probabilities(batch)
        return collect_attention([captured.trace], axes, model.config), collect_qkv(captured)

    def _build_text(self, text: str, encoded: PreprocessedTexts) -> RecordText:
        tokenizer = self.preprocessor.tokenizer
        ids = encoded.rows[0].tolist()
        word_ids = tokenizer.encode(text).word_ids[: len(ids)] or [-1] * len(ids)
        return RecordText.from_subwords(text, tokenizer.subwords(ids), word_ids, spans=encoded.spans[0])

    def _list_omissions(self, encoded: PreprocessedTexts) -> tuple[Omission, ...]:
        truncated = encoded.truncated[0]
        if not truncated:
            return ()
        reason = f"the text has {len(encoded.rows[0]) + truncated:,} tokens, more than the model reads"
        return (Omission(reason, f"its last {truncated:,} tokens"),)


def layer_mix_attention(
    layer_weights: Sequence[float], layers: Sequence[int] | None = None
) -> tuple[AttentionRecord, dict[str, RecordText]]:
    """Scalar mix of layers as attention of one row over the layers, and the texts of both axes.

    `layers` are their numbers, by default from 0 on; several in one weight are concatenated.
    """
    layer_numbers = range(len(layer_weights)) if layers is None else layers
    if len(layer_numbers) > len(layer_weights):
        labels = [f"layers {layer_numbers[0]}–{layer_numbers[-1]}"]
    else:
        labels = [f"layer {layer}" if layer else "words" for layer in layer_numbers]
    texts = {"mix": RecordText.from_labels("mix", ["mix"]), "layers": RecordText.from_labels("layers", labels)}
    weights = np.asarray(layer_weights, dtype=np.float32)[None, None, None]  # [1 layer, 1 head, 1 row, layers]
    return AttentionRecord("mix", "mix", columns="layers", stored=weights, layers=(0,)), texts
