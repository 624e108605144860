"""Choice of the backend, engine or torch, and models in the engine that have a torch model for what it lacks.

The choice is made once, when a model is loaded. Gradients, and what a call requests that the engine cannot do, are left
to a torch model with the same weights, which is built when it is first needed. No trace or ablation needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from regard.attention.intervention import active_intervention
from regard.backends import DecoderBackend, EncoderBackend, Floats, PositionCodes
from regard.checkpoint.source import CausalSource, EncoderSource, ModelSource, PackedWeights, TranslatorSource
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.decoding.generator import LanguageModel, ScoringGenerator
from regard.engine import layout
from regard.engine.backend_timing import choose_by_timing, has_only_portable_kernels
from regard.engine.base import check_precision
from regard.engine.causal import CausalEngine
from regard.engine.encoder import EncoderEngine
from regard.engine.folder import unsupported_reason
from regard.engine.library import unavailable_reason
from regard.engine.translator import TranslatorEngine
from regard.errors import ConfigError, UsageError, nearest
from regard.hardware import ForkSafeLock, available_cores
from regard.packed_tokens import Ids, Tokens

if TYPE_CHECKING:
    from regard.models.base import EncoderDecoder
    from regard.models.bert import Bert
    from regard.models.gpt import Gpt

BACKENDS = ("auto", "engine", "torch")
T = TypeVar("T")
HybridT = TypeVar("HybridT", "HybridEncoder", "HybridCausalLM", "HybridTranslator")
CausalBackend = DecoderBackend[GptConfig, LanguageModel[Any], "Gpt"]
TranslatorBackend = DecoderBackend[Any, ScoringGenerator[Any], "EncoderDecoder"]


# ---- models in the engine, with a torch model


class Lazy(Generic[T]):
    """A value that is built on first use, once, by whichever thread comes first.

    >>> value = Lazy(lambda: "built")
    >>> value.is_built, value.get(), value.is_built
    (False, 'built', True)
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._lock = ForkSafeLock()
        self._values: list[T] = []

    @property
    def is_built(self) -> bool:
        """Whether the value exists."""
        return bool(self._values)

    def get(self) -> T:
        """The value."""
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(self._build())
        return self._values[0]


class HybridEncoder:
    """An encoder in the engine, and in torch for gradients (`EncoderBackend`)."""

    def __init__(self, engine: EncoderEngine, torch_model: Lazy[Bert]) -> None:
        self.engine = engine
        self._torch_model = torch_model

    @property
    def config(self) -> BertConfig:
        return self.engine.config

    @property
    def makes_batches(self) -> bool:
        return self.engine.makes_batches

    @property
    def backend_name(self) -> str:
        return self.engine.backend_name

    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Hidden states of all tokens."""
        return self.engine.encode(tokens, token_types)

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:
        """Embedding of each text."""
        return self.engine.embed_texts(tokens, pooling)

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Logits of the head, of texts or of tokens."""
        return self.engine.logits(tokens, token_types)

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        return self.engine.attention_sites()

    def position_codes(self, count: int) -> PositionCodes | None:
        """Codes of the first positions; None where positions are neither embedded nor rotated."""
        return self.engine.position_codes(count)

    def torch_model(self) -> Bert:
        """The encoder in torch, built on first use."""
        return self._torch_model.get()


class HybridCausalLM:
    """A causal language model in the engine, and in torch for gradients (`DecoderBackend`)."""

    def __init__(self, engine: CausalEngine, torch_model: Lazy[Gpt]) -> None:
        self.engine = engine
        self._torch_model = torch_model

    @property
    def config(self) -> GptConfig:
        return self.engine.config

    def generator(self, *, with_attention: bool = False) -> LanguageModel[Any]:
        """The engine; torch where the search needs attention."""
        return self._torch_model.get() if with_attention else self.engine

    def torch_model(self) -> Gpt:
        """The model in torch, built on first use."""
        return self._torch_model.get()


class HybridTranslator:
    """A translation model in the engine, and in torch for gradients and coverage penalties (`DecoderBackend`)."""

    def __init__(self, engine: TranslatorEngine, torch_model: Lazy[EncoderDecoder]) -> None:
        self.engine = engine
        self._torch_model = torch_model

    @property
    def config(self) -> TransformerConfig:
        return self.engine.config

    def generator(self, *, with_attention: bool = False) -> ScoringGenerator[Any]:
        """The engine; torch where the search needs attention."""
        return self._torch_model.get() if with_attention else self.engine

    def torch_model(self) -> EncoderDecoder:
        """The model in torch, built on first use."""
        return self._torch_model.get()


# ---- choosing the backend


def _timed_tokens(source: ModelSource[Any]) -> Tokens:
    """Eight short texts, whatever they mean."""
    vocab_size = getattr(source.config, "source_vocab_size", 0) or source.config.vocab_size
    length = min(32, source.config.max_positions // 2)
    return Tokens.from_rows([[(7 * row + index) % vocab_size for index in range(length)] for row in range(8)])


def _decode_timed_tokens(backend: Any, source: ModelSource[Any]) -> None:
    """Read the texts, and generate a few tokens after them."""
    generator = backend.generator()
    tokens = _timed_tokens(source)
    state = generator.start(tokens, 4)
    last = np.full(len(tokens), generator.bos_id, np.int32)
    for _ in range(4):
        candidates, state = generator.step(last, state, 1)
        last = np.ascontiguousarray(candidates.ids[:, 0], dtype=np.int32)


@dataclass(frozen=True)
class BackendOptions:
    """What computes a model: device, precision (None: the folder's), threads (0: all cores) and backend."""

    device: str = "cpu"
    precision: str | None = None
    threads: int = 0
    backend: str = "auto"

    @property
    def num_threads(self) -> int:
        """Threads of the engine."""
        return self.threads or available_cores()

    @property
    def num_workers(self) -> int:
        """Batches computed at a time: on the CPU one core per batch is fastest."""
        return self.num_threads if self.device == "cpu" else 1

    def encoder(self, source: EncoderSource) -> EncoderBackend:
        """Encoder on the requested backend."""
        if self._uses_torch([source]):
            encoder: Bert = self._build_torch(source)
            return encoder
        packed = self._pack(source)
        engine = EncoderEngine(source.config, packed.arrays, packed.precision, threads=self.num_threads)
        hybrid = self._check_ablation(HybridEncoder(engine, self._lazy_torch(source, packed)))
        tokens = _timed_tokens(source)
        torch_encoder = self._faster_torch(source, packed, hybrid, lambda backend: backend.encode(tokens))
        return hybrid if torch_encoder is None else torch_encoder

    def causal_lm(self, source: CausalSource) -> CausalBackend:
        """Causal language model on the requested backend."""
        if self._uses_torch([source]):
            model: Gpt = self._build_torch(source)
            return model
        packed = self._pack(source)
        engine = CausalEngine(source.config, packed.arrays, packed.precision)
        hybrid = self._check_ablation(HybridCausalLM(engine, self._lazy_torch(source, packed)))
        torch_model = self._faster_torch(source, packed, hybrid, lambda backend: _decode_timed_tokens(backend, source))
        return hybrid if torch_model is None else torch_model

    def translators(self, sources: Sequence[TranslatorSource]) -> list[TranslatorBackend]:
        """Translators on the requested backend, the same for all."""
        if self._uses_torch(sources):
            return [self._build_torch(source) for source in sources]
        translators = [self._engine_translator(source) for source in sources]
        torch_model = self._faster_torch(
            sources[0],
            self._pack(sources[0]),
            translators[0],
            lambda backend: _decode_timed_tokens(backend, sources[0]),
        )
        if torch_model is None:
            return [*translators]
        return [torch_model, *(self._build_torch(source) for source in sources[1:])]

    def _engine_translator(self, source: TranslatorSource) -> HybridTranslator:
        assert isinstance(source.config, TransformerConfig)
        packed = self._pack(source)
        engine = TranslatorEngine(source.config, packed.arrays, packed.precision)
        engine.shortlist = packed.shortlist
        return self._check_ablation(HybridTranslator(engine, self._lazy_torch(source, packed)))

    def _faster_torch(
        self, source: ModelSource[Any], packed: PackedWeights, hybrid: Any, run: Callable[[Any], object]
    ) -> Any:
        """The model in torch where that is faster than the engine's portable kernels and the backend is not a wish."""
        if self.backend != "auto" or self.precision == "int8" or not has_only_portable_kernels():
            return None
        models: list[Any] = []

        def build_torch() -> Callable[[], object]:
            models.append(self._build_torch(source))
            return lambda: run(models[0])

        timing = choose_by_timing(source.config, packed.precision, self.num_threads, lambda: run(hybrid), build_torch)
        if timing.is_engine_faster:
            return None
        return models[0] if models else self._build_torch(source)

    def _check_ablation(self, backend: HybridT) -> HybridT:
        """Raise for ablated heads that the model does not have, before any text is read."""
        intervention = active_intervention()
        if intervention is not None:
            intervention.check(backend.engine.attention_sites())
        return backend

    def _uses_torch(self, sources: Sequence[ModelSource[Any]]) -> bool:
        """Whether torch computes these models; raise where only the engine could."""
        if self.backend not in BACKENDS:
            allowed = ", ".join(BACKENDS)
            suggestion = nearest(self.backend, BACKENDS)
            raise ConfigError(f"backend must be one of {allowed}, not {self.backend!r}{suggestion}")
        if self.precision is not None:
            check_precision(self.precision)
        for source in sources:
            if source.packed is not None and self.precision not in (None, source.packed.precision):
                raise UsageError(
                    f"{source.path} holds {source.packed.precision} weights, {self.precision} was requested: "
                    "leave out the precision"
                )
        reason = self._engine_obstacle(sources)
        if reason and self.backend == "engine":
            raise UsageError(f"the engine cannot be used: {reason}")
        if reason and self.precision == "int8" and any(source.packed is None for source in sources):
            raise UsageError(f"int8 is computed by the engine, which cannot be used: {reason}")
        return bool(reason)

    def _engine_obstacle(self, sources: Sequence[ModelSource[Any]]) -> str:
        """Why the engine does not compute these models; empty where it does."""
        if self.backend == "torch":
            return "the torch backend was requested"
        if self.device != "cpu":
            return f"it runs on CPUs, not on {self.device!r}"
        reasons = [unsupported_reason(source.config) for source in sources]
        return next((reason for reason in reasons if reason), "") or unavailable_reason()

    def _pack(self, source: ModelSource[Any]) -> PackedWeights:
        """Weights packed for the engine: those of an engine folder as they are."""
        if source.packed is not None:
            return source.packed
        precision = self.precision or "float32"
        return PackedWeights(precision, layout.pack_weights(source.config, source.arrays, precision))

    def _lazy_torch(self, source: ModelSource[Any], packed: PackedWeights) -> Lazy[Any]:
        """A torch model with the weights of the engine, dequantized: it shows what the engine computes."""
        config = source.config
        return Lazy(lambda: self._build(config, layout.unpack_weights(config, packed.arrays, packed.precision)))

    def _build_torch(self, source: ModelSource[Any]) -> Any:
        arrays = source.arrays
        if source.packed is not None:
            arrays = layout.unpack_weights(source.config, source.packed.arrays, source.packed.precision)
        return self._build(source.config, arrays, self.precision or "float32")

    def _build(self, config: Any, arrays: layout.Weights, precision: str = "float32") -> Any:
        from regard.models.inference import build_for_inference

        dtype = "float32" if precision == "int8" else precision
        return build_for_inference(config, arrays, device=self.device, precision=dtype, threads=self.threads)
