"""What all models share: their door between NumPy and tensors, and their first weights.

What all models that read one text and write another share: words, the output, shifted rows, the search's face.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from regard.errors import UsageError
from regard.models.layers.losses import CHUNK, target_logprobs, top_tokens, vocabulary_loss
from regard.models.layers.packed import PackedLinear, can_pack
from regard.tokens import Candidates, Tokens

LSTM = dict.fromkeys(("lstm_input", "lstm_state", "lstm_feed"), 4)
GRU = dict.fromkeys(("gru_input", "gru_state", "gru_feed"), 3)
FUSED = {"qkv": 3, "key_value": 2, **LSTM, **GRU}  # names of linear layers that are several in one, and how many


class Model(nn.Module):
    """A config and a composition of blocks; NumPy becomes tensors here and nowhere else."""

    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def to_tensors(self, tokens: Tokens, multiple: int = 1) -> tuple[Tensor, PackedBatch]:
        """Return token numbers [N] and their layout as tensors; N is rounded up to a multiple of `block`."""
        rows = PackedBatch.from_tokens(tokens, self.device(), multiple)
        ids = np.append(tokens.ids.astype(np.int64), np.zeros(rows.num_padding, dtype=np.int64))
        return torch.from_numpy(ids).to(self.device()), rows

    def attention_sites(self) -> dict[str, int]:
        """Return every place where this model looks, first layer first, each with the number of its heads."""
        looking = (one for one in self.modules() if isinstance(one, SelfAttention | CrossAttention))
        return {one.site: one.heads for one in looking}

    def num_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())

    def hidden_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the weights that map states to states, by name, with the shape of one of their parts.

        Tables of words and the output are not among them: their rows stand for words, not for directions of a space.
        """
        return {
            f"{name}.weight": (module.out_features // _parts(name), module.in_features)
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear) and name != "output"
        }


class _SkipInitialization(TorchFunctionMode):
    """Leaves tensors as they are where a layer would fill them with its first numbers."""

    def __torch_function__(self, function: Any, token_types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "zeros_", "ones_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def meta_device() -> Iterator[None]:
    """Make models that have shapes only: at once, without memory.

    >>> with meta_device():
    ...     layer = nn.Linear(100_000, 100_000)
    >>> layer.weight.shape, layer.weight.device.type
    (torch.Size([100000, 100000]), 'meta')
    """
    with torch.device("meta"), _SkipInitialization():
        yield


Placed = TypeVar("Placed", bound=Model)


def move_to_device(model: Placed, device: str, dtype: torch.dtype = torch.float32) -> Placed:
    """Return the model where it is to compute, in a number format; a device that is not there is refused."""
    try:
        return model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"the model cannot be put on the device {device!r}: {reason}") from None


def _parts(name: str) -> int:
    return FUSED.get(name.rpartition(".")[2], 1)


def initialize_weights(model: nn.Module, seed: int) -> None:
    """Fill all matrices of linear layers by Glorot's rule, biases with zero, embeddings by width; a function of seed.

    Fused projections (query, key and value in one matrix) start as the separate ones would.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in sorted(model.named_modules()):
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features / _parts(name))) ** 0.5
            with torch.no_grad():
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
        elif isinstance(module, nn.Embedding | Learned):
            with torch.no_grad():
                module.weight.normal_(0, module.weight.shape[1] ** -0.5, generator=generator)


def top_candidates(logits: Tensor, k: int, vocab_size: int, eos_id: int) -> Candidates:
    """Return the k likeliest tokens of each row, likeliest first; for k = 0 all of them in their own order.

    Columns from `vocabulary` on stand for nothing.

    >>> top_candidates(torch.tensor([[-3.0, -1.0, -2.0]]), 2, 3, eos_id=0).ids.tolist()
    [[1, 2]]
    """
    logits = logits.float()
    if k == 0:
        ids = np.broadcast_to(np.arange(vocab_size, dtype=np.int32), (len(logits), vocab_size))
        return Candidates(ids, torch.log_softmax(logits[:, :vocab_size], dim=-1).cpu().numpy())
    found, logp = top_tokens(logits, min(k, vocab_size))
    ending = logits[:, eos_id] - logits.gather(1, found[:, :1])[:, 0] + logp[:, 0]
    return Candidates(found.cpu().numpy().astype(np.int32), logp.cpu().numpy(), ending.cpu().numpy())


class Packable(Model):
    """A model whose parts can be laid out for fast use."""

    def prepare_for_inference(self, pack: bool) -> Any:
        """Return the parts that decoding uses; packed, they keep the weights of the moment."""
        raise NotImplementedError

    def pack(self) -> Self:
        """Lay out the weights for fast decoding on this processor; they must not change by hand from now on."""
        with torch.inference_mode(False), torch.no_grad():
            self.__dict__["packed"] = self.prepare_for_inference(pack=True)
        return self

    def used(self) -> Any:
        """Return the packed parts, or parts that follow the weights."""
        return self.__dict__.get("packed") or self.prepare_for_inference(pack=False)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Take other weights; what was packed is forgotten."""
        self.__dict__.pop("packed", None)
        return super().load_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self.__dict__.pop("packed", None)
        return super()._apply(*arguments, **options)


def output_product(weight: Tensor, bias: Tensor | None, pack: bool) -> PackedLinear:
    """Return the way from hidden states to logits; packed, in whole chunks: what is added is never likely."""
    spare = -len(weight) % CHUNK if pack and can_pack(weight) else 0
    if spare:
        weight = torch.cat([weight, weight.new_zeros(spare, weight.shape[1])])
        given = weight.new_zeros(len(weight) - spare) if bias is None else bias
        bias = torch.cat([given, weight.new_full((spare,), -torch.inf)])
    return PackedLinear(weight, bias, pack)


TOKEN_MULTIPLE = 128  # training batches have a multiple of this many tokens


class EncoderDecoderConfig(Protocol):
    """The settings that every writer has."""

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
    """Reads a source text, writes a target text; how, its kinds say."""

    settings: EncoderDecoderConfig

    def build_embeddings(self, config: EncoderDecoderConfig, embedding_size: int, output_size: int) -> None:
        """Make tables of words of a width, and the output from states of width `written`."""
        self.settings = config
        if config.share_embeddings:
            self.words = nn.Embedding(config.target_vocab_size, embedding_size)
        else:
            self.source_words = nn.Embedding(config.source_vocab_size, embedding_size)
            self.target_words = nn.Embedding(config.target_vocab_size, embedding_size)
        if not config.tie_embeddings:
            self.output = nn.Linear(output_size, config.target_vocab_size, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocab_size)) if config.output_bias else None

    # the generator's face: what a search needs to know
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
        """Return the state before the first token: one row for each source sentence."""
        raise NotImplementedError

    def step(self, tokens: NDArray[np.int32], state: Any, k: int) -> tuple[Candidates, Any]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        raise NotImplementedError

    def keep_attention(self, state: Any) -> None:
        """Let each following step keep where it looked."""
        if not self.cross_attention_sites():
            raise UsageError("a model without attention looks nowhere: set coverage to 0")
        state.watched = True

    def last_attention(self, state: Any) -> NDArray[np.float32]:
        """Return where each row looked in the last step, [R, S]: the last layer's heads averaged."""
        if state.last_attention is None:
            raise UsageError("call watch(state) before the step whose attention is asked for")
        looked: NDArray[np.float32] = state.last_attention
        return looked

    def cross_attention_sites(self) -> dict[str, int]:
        """Return the sites where what is written looks at the source, first layer first, each with its heads."""
        raise NotImplementedError

    # words and output
    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.embedding("target").weight if self.settings.tie_embeddings else self.output.weight

    def embedding(self, side: str) -> nn.Embedding:
        """Return the table of words of a side, source or target."""
        if self.settings.share_embeddings:
            return self.words
        return self.source_words if side == "source" else self.target_words

    def embed_tokens(self, ids: Tensor, side: str) -> Tensor:
        """Return the words of a side, scaled where that is asked for."""
        words = self.embedding(side)
        states: Tensor = words(ids)
        return states * math.sqrt(words.embedding_dim) if self.settings.scale_embedding else states

    def embedding_dropout(self, hidden: Tensor, side: str, noise: Noise | None) -> Tensor:
        """Return embedded states with dropout."""
        return apply_dropout(hidden, self.settings.dropout, noise, f"{side}.embedding")

    @staticmethod
    def token_multiple(noise: Noise | None) -> int:
        """Training meets thousands of batches: their sizes are rounded so that products are prepared for few."""
        return 1 if noise is None else TOKEN_MULTIPLE

    def shift_targets(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Return the rows with the start in front, and the rows with the end behind."""
        given = np.insert(target.ids, target.offsets[:-1], self.settings.bos_id)
        wanted = np.insert(target.ids, target.offsets[1:], self.settings.eos_id)
        offsets = (target.offsets + np.arange(len(target) + 1)).astype(np.int32)
        return Tokens(given, offsets), Tokens(wanted, offsets)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over all target tokens and the end."""
        given, wanted = self.shift_targets(target)
        hidden = self(source, given, noise)
        targets, rows = self.to_tensors(wanted, self.token_multiple(noise))
        return vocabulary_loss(hidden, self.output_weight, self.output_bias, targets, smoothing, rows.num_tokens)

    @torch.no_grad()
    def target_logprobs(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Return the log-probability of each target token and of the end, row by row."""
        given, wanted = self.shift_targets(target)
        hidden = self(source, given)
        found = target_logprobs(hidden, self.output_weight, self.output_bias, self.to_tensors(wanted)[0])
        return np.split(found.cpu().numpy(), wanted.offsets[1:-1])

    @torch.no_grad()
    def next_token_logprobs(self, source: Tokens, target: Tokens) -> NDArray[np.float32]:
        """Return the log-probabilities of all tokens before each target token and before the end, [N, V]."""
        hidden = self(source, self.shift_targets(target)[0])
        logits = nn.functional.linear(hidden, self.output_weight, self.output_bias)
        return torch.log_softmax(logits.float(), dim=-1).cpu().numpy()

    def output_product(self, pack: bool) -> PackedLinear:
        """Return the way from hidden states to logits."""
        return output_product(self.output_weight, self.output_bias, pack)


def sentences_of_rows(rows: NDArray[np.int64], num_rows: int, num_sentences: int) -> NDArray[np.int64]:
    """Return which sentences' memories chosen rows need; `before`: rows there were, equally many a sentence.

    Where each sentence keeps equally many rows, its memory is needed once; elsewhere each row has one of its own.

    >>> sentences_of_rows(np.array([0, 1, 4, 5]), num_rows=6, num_sentences=3).tolist()
    [0, 2]
    >>> sentences_of_rows(np.array([0, 4, 5]), num_rows=6, num_sentences=3).tolist()
    [0, 2, 2]
    """
    owner = rows // max(1, num_rows // max(1, num_sentences))
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(np.append(first, len(owner)))
    even = len(counts) > 0 and bool((counts == counts[0]).all())
    return owner[first] if even else owner
