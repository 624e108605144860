"""Base classes of all models (conversion to tensors, packing for inference, initialisation) and of encoder–decoders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Learned
from regard.backends import PositionCodes
from regard.errors import UsageError
from regard.models.layers.block import TransformerBlock, linear_parts
from regard.models.layers.losses import RANKING_CHUNK, target_logprobs, top_tokens, vocabulary_loss
from regard.models.layers.prepacked import PrepackedLinear, can_prepack, prepack_linears
from regard.packed_tokens import Candidates, Tokens

TOKEN_MULTIPLE = 128  # training batches have a multiple of this many tokens
RECURRENT_PARTS = {  # linear layers of recurrent cells that are several in one matrix → how many
    "lstm_input": 4,
    "lstm_hidden": 4,
    "lstm_feed": 4,
    "gru_input": 3,
    "gru_hidden": 3,
    "gru_feed": 3,
}
OUTPUT_LAYERS = ("lm_head", "mlm_head_output", "next_sentence", "classifier")  # their rows stand for tokens or labels


class ModelConfig(Protocol):
    """Config of a model of any family."""

    @property
    def family(self) -> str: ...
    def summary(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


class Model(nn.Module):
    """A config and a composition of layers; the only place where NumPy arrays become tensors."""

    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def to_tensors(self, tokens: Tokens, multiple: int = 1) -> tuple[Tensor, PackedBatch]:
        """Token ids [N] and their layout as tensors; N is rounded up to a multiple of `multiple`."""
        batch = PackedBatch.from_tokens(tokens, self.device(), multiple)
        ids = np.append(tokens.ids.astype(np.int64), np.zeros(batch.num_padding, dtype=np.int64))
        return torch.from_numpy(ids).to(self.device()), batch

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        return {
            module.site: module.num_heads
            for module in self.modules()
            if isinstance(module, SelfAttention | CrossAttention)
        }

    @property
    def backend_name(self) -> str:
        """What computes the model, and in which precision (`backends`)."""
        dtype = next(self.parameters()).dtype
        return f"torch {'bf16' if dtype == torch.bfloat16 else str(dtype).removeprefix('torch.')}"

    def position_codes(self, count: int) -> PositionCodes | None:
        """Scheme and codes of the first positions, [positions, width]; None if it neither embeds nor rotates."""
        return None

    def torch_model(self) -> Self:
        """The model itself, which computes in torch (`backends`)."""
        return self

    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def hidden_matrices(self) -> dict[str, list[tuple[int, int]]]:
        """Hidden-to-hidden weights by name, each with the shapes of the matrices that it fuses, for Muon.

        Embeddings and output layers are not among them: their rows stand for tokens or labels, not for directions of a
        space.
        """
        rows = fused_rows(self)
        return {
            f"{name}.weight": [(num_rows, module.in_features) for num_rows in rows[name]]
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear) and name not in OUTPUT_LAYERS
        }


def to_arrays(tensors: Iterable[Tensor]) -> list[NDArray[np.float32]]:
    """Convert tensors to float32 arrays."""
    return [tensor.float().cpu().numpy() for tensor in tensors]


class _SkipInitialization(TorchFunctionMode):
    """Skips the functions with which layers initialise their weights."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "zeros_", "ones_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def uninitialized() -> Iterator[None]:
    """Build models whose weights are loaded next; what is no weight, such as fixed positional codes, is computed."""
    with _SkipInitialization():
        yield


@contextmanager
def meta_device() -> Iterator[None]:
    """Build models with shapes only: instantly and without memory.

    >>> with meta_device():
    ...     layer = nn.Linear(100_000, 100_000)
    >>> layer.weight.shape, layer.weight.device.type
    (torch.Size([100000, 100000]), 'meta')
    """
    with torch.device("meta"), _SkipInitialization():
        yield


ModelT = TypeVar("ModelT", bound=Model)


def move_to_device(model: ModelT, device: str, dtype: torch.dtype = torch.float32) -> ModelT:
    """Move a model to a device and dtype; raise a clear error if the device is not available."""
    try:
        return model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"the model cannot be put on the device {device!r}: {reason}") from None


def fused_rows(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Rows of the matrices that each linear layer fuses, by the layer's name: query, key and value, or gates."""
    rows: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, TransformerBlock):
            for path, parts in linear_parts(module).items():
                rows[f"{name}.{path}".removeprefix(".")] = tuple(parts.values())
        elif isinstance(module, nn.Linear) and name not in rows:
            num_parts = RECURRENT_PARTS.get(name.rpartition(".")[2], 1)
            rows[name] = (module.out_features // num_parts,) * num_parts
    return rows


def initialize_weights(model: nn.Module, seed: int) -> None:
    """Initialise linear layers by Glorot's rule, biases with zero, embeddings by their width; a function of the seed.

    Fused projections (query, key and value in one matrix) are initialised as separate ones would be.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = fused_rows(model)
    for name, module in model.named_modules():  # in order of definition
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                for matrix in module.weight.split(rows[name]):
                    bound = (6 / (module.in_features + len(matrix))) ** 0.5
                    matrix.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
        elif isinstance(module, nn.Embedding | Learned):
            with torch.no_grad():
                module.weight.normal_(0, module.weight.shape[1] ** -0.5, generator=generator)


def top_candidates(logits: Tensor, k: int, vocab_size: int, eos_id: int) -> Candidates:
    """Top-k tokens of each row, most likely first; with k = 0, all tokens in vocabulary order.

    Columns from `vocab_size` on are padding.

    >>> top_candidates(torch.tensor([[-3.0, -1.0, -2.0]]), 2, 3, eos_id=0).ids.tolist()
    [[1, 2]]
    """
    logits = logits.float()
    if k == 0:
        all_ids = np.broadcast_to(np.arange(vocab_size, dtype=np.int32), (len(logits), vocab_size))
        return Candidates(all_ids, torch.log_softmax(logits[:, :vocab_size], dim=-1).cpu().numpy())
    ids, logprobs = top_tokens(logits, min(k, vocab_size))
    top_logits = logits.gather(1, ids[:, :1])[:, 0]
    eos_logprobs = logits[:, eos_id] - top_logits + logprobs[:, 0]
    return Candidates(
        ids.cpu().numpy().astype(np.int32), logprobs.cpu().numpy(), eos_logprobs=eos_logprobs.cpu().numpy()
    )


class Packable(Model):
    """A model whose weights can be prepacked for inference."""

    packed_output: PrepackedLinear | None = None  # prepacked output projection; not a submodule
    is_packed = False

    def pack(self) -> Self:
        """Prepack the weights for fast inference on this processor; they must not be changed in place afterwards."""
        with torch.inference_mode(False), torch.no_grad():
            for module in self.modules():
                if isinstance(module, TransformerBlock):
                    prepack_linears(module)
            self.__dict__["packed_output"] = self.pack_output()
        self.is_packed = True
        return self

    def pack_output(self) -> PrepackedLinear | None:
        """Prepack the projection from hidden states to logits; None for a model that predicts no tokens."""
        return None

    def unpack(self) -> None:
        """Forget the prepacked output projection; prepacked layers forget their own when their weights change."""
        self.__dict__["packed_output"] = None
        self.is_packed = False

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load other weights; prepacked ones are discarded."""
        self.unpack()
        return super().load_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self.unpack()
        return super()._apply(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed_output": None, "is_packed": False}  # a copy is not prepacked


def prepack_output_projection(weight: Tensor, bias: Tensor | None) -> PrepackedLinear | None:
    """Prepack the projection from hidden states to logits, padded to whole ranking chunks with logits of -∞."""
    if not can_prepack(weight):
        return None
    num_padding = -len(weight) % RANKING_CHUNK
    if num_padding:
        vocab_size = len(weight)
        weight = torch.cat([weight, weight.new_zeros(num_padding, weight.shape[1])])
        if bias is None:
            bias = weight.new_zeros(vocab_size)
        bias = torch.cat([bias, weight.new_full((num_padding,), -torch.inf)])
    bias_parameter = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return PrepackedLinear(nn.Parameter(weight, requires_grad=False), bias_parameter)


class EncoderDecoderConfig(Protocol):
    """Settings that every encoder–decoder has."""

    @property
    def source_vocab_size(self) -> int: ...
    @property
    def target_vocab_size(self) -> int: ...
    @property
    def share_embeddings(self) -> bool: ...
    @property
    def tie_embeddings(self) -> bool: ...
    @property
    def output_bias(self) -> bool: ...
    @property
    def scale_embedding(self) -> bool: ...
    @property
    def dropout(self) -> float: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def bos_id(self) -> int: ...


class EncoderDecoder(Packable):
    """Reads a source text and generates a target text."""

    config: Any  # of the family
    settings: EncoderDecoderConfig

    def build_embeddings(self, config: EncoderDecoderConfig, embedding_size: int, output_size: int) -> None:
        """Build the source and target embeddings and the output projection of hidden states of `output_size`."""
        self.settings = config
        if config.share_embeddings:
            self.token_embedding = nn.Embedding(config.target_vocab_size, embedding_size)
        else:
            self.source_embedding = nn.Embedding(config.source_vocab_size, embedding_size)
            self.target_embedding = nn.Embedding(config.target_vocab_size, embedding_size)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(output_size, config.target_vocab_size, bias=False)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.target_vocab_size)) if config.output_bias else None

    # what a search needs (`decoding.generator.Generator`)
    def generator(self, *, with_attention: bool = False) -> Self:
        """The model itself, which also returns its cross-attention."""
        return self

    @property
    def vocab_size(self) -> int:
        return self.settings.target_vocab_size

    @property
    def bos_id(self) -> int:
        return self.settings.bos_id

    @property
    def eos_id(self) -> int:
        return self.settings.eos_id

    @property
    def pad_id(self) -> int:
        return self.settings.pad_id

    def start(self, source: Tokens, max_length: int) -> Any:
        """State before the first token: one row per source sentence."""
        raise NotImplementedError

    def step(self, tokens: NDArray[np.int32], state: Any, k: int) -> tuple[Candidates, Any]:
        """Append one token to each row; return the top-k next tokens, with k = 0 all log-probabilities."""
        raise NotImplementedError

    def keep_attention(self, state: Any) -> None:
        """Store the cross-attention of the following steps in the state."""
        if not self.cross_attention_sites():
            raise UsageError("a model without attention has no coverage: set coverage to 0")
        state.should_keep_attention = True

    def last_attention(self, state: Any) -> NDArray[np.float32]:
        """Cross-attention of each row in the last step, [R, S]: the mean over the heads of the last layer."""
        if state.last_attention is None:
            raise UsageError("the last step kept no attention: call keep_attention(state) before it")
        weights: NDArray[np.float32] = state.last_attention
        return weights

    def cross_attention_sites(self) -> dict[str, int]:
        """Sites that attend to the source, first layer first, with their number of heads."""
        raise NotImplementedError

    # embeddings and output
    @property
    def output_weight(self) -> Tensor:
        """Matrix of the output projection, [V, D]."""
        return self.embedding("target").weight if self.settings.tie_embeddings else self.lm_head.weight

    def embedding(self, side: str) -> nn.Embedding:
        """Embedding of a side, `source` or `target`."""
        if self.settings.share_embeddings:
            return self.token_embedding
        return self.source_embedding if side == "source" else self.target_embedding

    def embed_tokens(self, ids: Tensor, side: str) -> Tensor:
        """Token embeddings of a side, scaled by √width if the config says so."""
        embedding = self.embedding(side)
        hidden: Tensor = embedding(ids)
        return hidden * math.sqrt(embedding.embedding_dim) if self.settings.scale_embedding else hidden

    def embedding_dropout(self, hidden: Tensor, side: str, noise: Noise | None) -> Tensor:
        """Dropout after the embedding."""
        return apply_dropout(hidden, self.settings.dropout, noise, f"{side}.embedding")

    @staticmethod
    def token_multiple(noise: Noise | None) -> int:
        """Multiple to which training rounds token counts up, so that oneDNN caches few matmul shapes."""
        return 1 if noise is None else TOKEN_MULTIPLE

    def shift_targets(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Decoder input (bos in front of each sequence) and labels (eos at its end)."""
        input_ids = np.insert(target.ids, target.offsets[:-1], self.settings.bos_id)
        label_ids = np.insert(target.ids, target.offsets[1:], self.settings.eos_id)
        offsets = (target.offsets + np.arange(len(target) + 1)).astype(np.int32)
        return Tokens(input_ids, offsets), Tokens(label_ids, offsets)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over all target tokens and eos."""
        decoder_input, labels = self.shift_targets(target)
        hidden = self(source, decoder_input, noise)
        targets, batch = self.to_tensors(labels, self.token_multiple(noise))
        return vocabulary_loss(hidden, self.output_weight, self.lm_head_bias, targets, smoothing, batch.num_tokens)

    @torch.no_grad()
    def target_logprobs(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Log-probability of every target token and of eos, by sequence."""
        decoder_input, labels = self.shift_targets(target)
        hidden = self(source, decoder_input)
        targets, _ = self.to_tensors(labels)
        logprobs = target_logprobs(hidden, self.output_weight, self.lm_head_bias, targets)
        return np.split(logprobs.cpu().numpy(), labels.offsets[1:-1])

    @torch.no_grad()
    def next_token_logprobs(self, source: Tokens, target: Tokens) -> NDArray[np.float32]:
        """Full distributions before every target token and before eos, as log-probabilities, [N, V]."""
        decoder_input, _ = self.shift_targets(target)
        hidden = self(source, decoder_input)
        logits = nn.functional.linear(hidden, self.output_weight, self.lm_head_bias)
        return torch.log_softmax(logits.float(), dim=-1).cpu().numpy()

    def pack_output(self) -> PrepackedLinear | None:
        """Prepack the projection from hidden states to logits."""
        return prepack_output_projection(self.output_weight, self.lm_head_bias)

    def output_logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states in inference, [N, V]; padded columns may follow."""
        if self.packed_output is not None:
            return self.packed_output(hidden)
        return nn.functional.linear(hidden, self.output_weight, self.lm_head_bias)


def sentences_of_rows(rows: NDArray[np.int64], num_rows: int, num_sentences: int) -> NDArray[np.int64]:
    """Source sentences whose keys and values the selected rows need; all sentences have equally many of `num_rows`.

    If every sentence keeps equally many rows, each is needed once; otherwise, one sentence per row is returned.

    >>> sentences_of_rows(np.array([0, 1, 4, 5]), num_rows=6, num_sentences=3).tolist()
    [0, 2]
    >>> sentences_of_rows(np.array([0, 4, 5]), num_rows=6, num_sentences=3).tolist()
    [0, 2, 2]
    """
    sentences = rows // max(1, num_rows // max(1, num_sentences))
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    counts = np.diff(np.append(starts, len(sentences)))
    is_even = len(counts) > 0 and bool((counts == counts[0]).all())
    return sentences[starts] if is_even else sentences
