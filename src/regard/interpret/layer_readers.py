"""Hidden states of every layer at words, of any family that has them: what probes read.

Encoders, causal language models, ELMo and the encoders of translation models are read as frozen features
(`tasks.frozen_features`); recurrent classifiers and taggers with their own preprocessor; the decoder of a Transformer
as it reads a target. A word's state is the mean over its subwords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.checkpoint import atomic
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, resolve_model_path
from regard.checkpoint.model_dir import load_translator
from regard.checkpoint.model_types import native_type
from regard.config.rnn_models import RnnClassifierConfig, RnnTaggerConfig
from regard.data.batching import length_sorted_batches
from regard.errors import UsageError
from regard.models import build_model
from regard.models.inference import check_ablation, configure_torch, prepare_for_inference
from regard.models.rnn_text import RnnTextModel
from regard.models.text_classifier import TextBatch
from regard.models.transformer import Transformer
from regard.packed_tokens import Tokens
from regard.pipeline.classification import TextModelClassifier
from regard.pipeline.load import load
from regard.pipeline.story_readers import TextModelStoryReader
from regard.pipeline.tagging import RecurrentTagger
from regard.tasks.feature_models import AnyFeatures, load_frozen_features
from regard.tasks.frozen_features import UNLIMITED, FeatureLayers, Spans, pool_spans
from regard.tasks.text_model import TextPreprocessor
from regard.tasks.windows import BATCH_TOKENS
from regard.text.tokenizer import Tokenizer

States = NDArray[np.float32]  # [words, D]
SIDES = ("encoder", "decoder")
RNN_TYPES = tuple(native_type(config.family) for config in (RnnClassifierConfig(), RnnTaggerConfig()))


class LayerReader(Protocol):
    """A model whose layers are probed."""

    @property
    def backend_name(self) -> str:
        """What computes the states, and in which precision."""
        ...

    @property
    def layer_sizes(self) -> list[int]:
        """Width of each layer; the first are the embeddings."""
        ...

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        """States of some layers at the words of all texts, end to end."""
        ...


@dataclass(frozen=True)
class FeatureReader:
    """A model that serves as frozen features."""

    features: AnyFeatures

    @property
    def backend_name(self) -> str:
        """What computes the states, and in which precision."""
        return str(self.features.model.backend_name)

    @property
    def layer_sizes(self) -> list[int]:
        """Width of each layer; the first are the embeddings."""
        return [states.shape[1] for states in self.features.model.layer_states(Tokens.from_rows([[0]]))]

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        """States of layers of equal width at the words of all texts, end to end."""
        size = self.layer_sizes[layers[0]]
        features = replace(self.features, selection=FeatureLayers("mix", tuple(layers), size=size))
        states = np.concatenate(list(features.extract(texts, spans)))  # [words, layers, D]
        return [np.ascontiguousarray(states[:, layer]) for layer in range(len(layers))]


@dataclass(frozen=True)
class RnnReader:
    """A recurrent classifier or tagger with its own vocabulary."""

    model: RnnTextModel
    preprocessor: TextPreprocessor

    @property
    def backend_name(self) -> str:
        """What computes the states, and in which precision."""
        return self.model.backend_name

    @property
    def layer_sizes(self) -> list[int]:
        """Width of each layer; the first are the embeddings."""
        _, batch = next(self.preprocessor.encode(["a"]).batches())
        return [states.shape[1] for states in self.model.layer_states(batch)]

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        """States of some layers at the words of all texts, end to end."""
        encoded = replace(self.preprocessor, max_length=UNLIMITED).encode(texts)

        def batches() -> Iterator[tuple[NDArray[np.int64], Tokens, list[States]]]:
            for indices, batch in encoded.batches():
                yield indices, batch.tokens, self._layer_states(batch, layers)

        return _pool_words(batches(), encoded.spans, spans)

    def _layer_states(self, batch: TextBatch, layers: Sequence[int]) -> list[States]:
        states = self.model.layer_states(batch)
        return [states[layer] for layer in layers]


@dataclass(frozen=True)
class DecoderReader:
    """The decoder of a Transformer that translates: it reads a text as a target, and a source text beside it."""

    model: Transformer
    source_tokenizer: Tokenizer
    tokenizer: Tokenizer
    sources: dict[str, str]  # source of each text, where there are sources; otherwise it is empty

    @property
    def backend_name(self) -> str:
        """What computes the states, and in which precision."""
        return self.model.backend_name

    @property
    def layer_sizes(self) -> list[int]:
        """Width of each layer; the first are the embeddings."""
        return [self.model.config.hidden_size] * (1 + self.model.config.decoder.num_layers)

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        """States of some layers at the words of all texts, end to end."""
        encodings = [self.tokenizer.encode(text) for text in texts]
        sources = [self._encode_source(text) for text in texts]
        longest = max(max(1 + len(encoding.ids) for encoding in encodings), max(map(len, sources)))
        if longest > self.model.config.max_positions:
            raise UsageError(
                f"a sentence has {longest} tokens but the model takes {self.model.config.max_positions}: leave it out"
            )
        lengths = np.array([[len(encoding.ids)] for encoding in encodings], dtype=np.int64)

        def batches() -> Iterator[tuple[NDArray[np.int64], Tokens, list[States]]]:
            for indices in length_sorted_batches(lengths, max_tokens=BATCH_TOKENS):
                target = Tokens.from_rows([encodings[index].ids for index in indices])
                source = Tokens.from_rows([sources[index] for index in indices])
                states = self.model.decoder_layer_states(source, target)
                bos = target.offsets[:-1] + np.arange(len(target))  # of each row, among the decoder's inputs
                yield indices, target, [np.delete(states[layer], bos, axis=0) for layer in layers]

        return _pool_words(batches(), [encoding.spans for encoding in encodings], spans)

    def _encode_source(self, text: str) -> list[int]:
        ids = self.source_tokenizer.encode(self.sources[text]).ids if text in self.sources else []
        return [*ids, self.source_tokenizer.eos_id]


def _pool_words(
    batches: Iterator[tuple[NDArray[np.int64], Tokens, list[States]]],
    token_spans: Sequence[Spans],
    word_spans: Sequence[Spans],
) -> list[States]:
    """Mean states of the subwords of each word, by layer, from batches of indices, tokens and states by layer."""
    pooled: list[list[States]] = [[] for _ in word_spans]  # by text and layer
    for indices, tokens, layers in batches:
        by_layer = [np.split(states, tokens.offsets[1:-1]) for states in layers]
        for row, index in enumerate(indices):
            subwords = token_spans[index] or [(0, 1)]
            pooled[index] = [pool_spans(rows[row], subwords, word_spans[index]) for rows in by_layer]
    return [np.concatenate(states) for states in zip(*pooled, strict=True)]


def load_layer_reader(
    folder: str | Path,
    *,
    side: str = "encoder",
    sources: dict[str, str] | None = None,
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 0,
) -> LayerReader:
    """Open a model for probes; `side` chooses the encoder or the decoder of a translation model.

    `sources` has the source of each text that the decoder reads; by default it is empty.
    """
    dtype = configure_torch(precision, threads)
    if side not in SIDES:
        raise UsageError(f"side must be one of {', '.join(SIDES)}, not {side!r}")
    if side == "decoder":
        return _load_decoder(folder, sources or {}, device, dtype)
    if sources:
        raise UsageError("sources are for the decoder: set the side to decoder")
    fields = atomic.read_json(resolve_model_path(resolve_model(folder)) / CONFIG)
    if fields.get("model_type") in RNN_TYPES:
        return _load_rnn(folder, device, precision, threads)
    features = load_frozen_features(folder, "last", device=device, dtype=dtype)
    check_ablation(features.model)
    return FeatureReader(replace(features, is_isolated=False))


def _load_rnn(folder: str | Path, device: str, precision: str, threads: int) -> LayerReader:
    pipeline: Any = load(folder, device=device, precision=precision, threads=threads, backend="torch")
    names = ("classifier", "tagger", "reader")
    text_model: Any = next(getattr(pipeline, name) for name in names if hasattr(pipeline, name))
    assert isinstance(text_model, TextModelClassifier | RecurrentTagger | TextModelStoryReader)
    assert isinstance(text_model.model, RnnTextModel)
    return RnnReader(text_model.model, text_model.preprocessor)


def _load_decoder(folder: str | Path, sources: dict[str, str], device: str, dtype: torch.dtype) -> LayerReader:
    source = load_translator(resolve_model(folder))
    build: Callable[[Any], Any] = build_model
    model = build(source.config)
    if not isinstance(model, Transformer):
        raise UsageError(f"{folder}: the side decoder is for Transformers that translate")
    model.load_state_dict(source.weights)
    frozen = prepare_for_inference(model, device, dtype).requires_grad_(False)
    return DecoderReader(frozen, source.source, tokenizer=source.target, sources=sources)
