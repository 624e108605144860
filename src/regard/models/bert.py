"""Transformer encoders: BERT (Devlin et al. 2019) and its relatives.

DistilBERT (no token types, no pooler), RoBERTa and XLM-R (positions from 2, other heads), BigBird (block-sparse
attention), ELECTRA (small embeddings), ALBERT (small embeddings and shared layers) and ModernBERT (rotary positions,
local attention, gated feed-forward layers) are configs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise, apply_dropout, drop_tokens
from regard.attention.multihead import SelfAttention
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import (
    NO_POSITIONS,
    Learned,
    Positions,
    Rotary,
    build_positions,
    position_codes,
    sinusoids,
)
from regard.attention.sites import POOLING_SITE
from regard.backends import PositionCodes
from regard.config.description import LayerDescription, bert_stack
from regard.config.models import BertConfig
from regard.errors import UsageError
from regard.models.base import Packable, to_arrays
from regard.models.layers.activations import ACTIVATIONS
from regard.models.layers.block import FeedForward
from regard.models.layers.layer_spec import BlockSparsity, LayerSpec
from regard.models.layers.pooling import Pooling
from regard.models.layers.stack import TransformerStack
from regard.packed_tokens import Ids, Tokens

POSITION_INIT_SCALE = 2 * 2**0.5  # position embeddings start with twice the deviation of token embeddings
EMBEDDING_INIT_STD = 0.02  # initial standard deviation of published models' embeddings
FIXED_CODES = ("sinusoidal", "interleaved", "concatenated")  # positions whose codes are not weights
NORM_EPS_FLOOR = 1e-6  # epsilon of a norm that is negligible beside the variance of usual embeddings


class MaskedLMHead(nn.Module):
    """Transform before the tied output embedding (dense, activation, norm); before any head with `head_transform`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.hidden_size, config.embedding_dim, bias=config.bias)
        self.norm = nn.LayerNorm(config.embedding_dim, config.norm_eps, bias=config.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # [M, D] → [M, E]
        transformed: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(hidden)))
        return transformed


class Bert(Packable):
    """Transformer encoder with an optional head.

    >>> from regard.config.models import StackConfig
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> model = Bert(BertConfig(vocab_size=11, hidden_size=4, stack=stack, head="label", num_labels=3))
    >>> model.encode(Tokens.from_rows([[5, 6, 7], [8]])).shape, model.logits(Tokens.from_rows([[5, 6, 7], [8]])).shape
    ((4, 4), (2, 3))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self._build_embeddings(config)
        stack = bert_stack(config)
        self.encoder = TransformerStack(stack.block, [self._layer_spec(layer) for layer in stack.layers])
        self._build_heads(config)

    def _build_embeddings(self, config: BertConfig) -> None:
        embedding_dim = config.embedding_dim
        self.token_embedding = nn.Embedding(config.vocab_size, embedding_dim)
        self.position_embedding: Positions = NO_POSITIONS
        if config.positions == "rotary":  # by layer: global and local attention have thetas of their own
            self.global_positions: Positions = Rotary(config.rope_theta)
            self.local_positions: Positions = Rotary(config.local_rope_theta)
        else:
            self.position_embedding = build_positions(
                config.positions,
                config.position_offset + config.max_positions,
                embedding_dim,
                num_heads=config.stack.num_heads,
                is_causal=config.causal,
            )
        self.token_type_embedding = (
            nn.Embedding(config.num_token_types, embedding_dim) if config.num_token_types else None
        )
        self.embedding_norm: nn.Module = nn.Identity()
        if config.embedding_norm:
            self.embedding_norm = nn.LayerNorm(embedding_dim, config.norm_eps, bias=config.bias)
        self.embedding_projection = nn.Linear(embedding_dim, config.hidden_size) if config.embedding_size else None

    def _build_heads(self, config: BertConfig) -> None:
        hidden_size = config.hidden_size
        is_masked_lm = config.head in ("masked", "pretraining")
        has_transform = is_masked_lm or (config.head_transform and config.head != "plain")
        has_own_output = is_masked_lm and not config.tie_embeddings
        has_next_sentence = config.head in ("next", "pretraining")
        has_span_layer = config.head == "span" and config.span_feed_forward
        self.pooler = nn.Linear(hidden_size, hidden_size) if config.has_pooler else None
        self.mlm_head = MaskedLMHead(config) if has_transform else None
        self.mlm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if is_masked_lm else None
        self.mlm_head_output = (
            nn.Linear(config.embedding_dim, config.vocab_size, bias=False) if has_own_output else None
        )
        self.next_sentence = nn.Linear(hidden_size, 2) if has_next_sentence else None
        self.span_feed_forward = FeedForward(bert_stack(config).block) if has_span_layer else None
        self.span_norm = nn.LayerNorm(hidden_size, config.norm_eps) if has_span_layer else None
        self.classifier = (
            nn.Linear(hidden_size, config.num_outputs, bias=config.classifier_bias) if config.num_outputs else None
        )
        has_attention_pooling = config.head == "label" and config.pooling == "attention"
        self.pooling = Pooling("attention", hidden_size) if has_attention_pooling else None

    def forward(
        self,
        ids: Tensor,  # [N]
        batch: PackedBatch,
        token_types: Tensor | None = None,  # [N]
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:  # [N, D], or [M, D] of the selected tokens
        """Hidden states of all tokens, or of the selected ones. `token_types` defaults to zeros."""
        embedded = self.embed(ids, batch, token_types, noise)
        return self.encoder(embedded, batch, noise, selected)

    def hidden_states(
        self, ids: Tensor, batch: PackedBatch, token_types: Tensor | None = None, noise: Noise | None = None
    ) -> list[Tensor]:  # each [N, D]
        """Hidden states after each layer; the last are the output of the model."""
        embedded = self.embed(ids, batch, token_types, noise)
        return self.encoder.layer_states(embedded, batch, noise)[1:]

    def embed(self, ids: Tensor, batch: PackedBatch, token_types: Tensor | None, noise: Noise | None) -> Tensor:
        """Sum of token, position and token-type embeddings, normalised: the input of the first block, [N, D]."""
        config = self.config
        hidden = drop_tokens(self.token_embedding(ids), config.token_dropout, noise)
        if config.scale_embedding:
            hidden = hidden * math.sqrt(config.hidden_size)
        hidden = self.position_embedding.embed(hidden, batch.positions + config.position_offset)
        if self.token_type_embedding is not None:
            hidden = hidden + (
                self.token_type_embedding.weight[0] if token_types is None else self.token_type_embedding(token_types)
            )
        if config.dropout_before_norm:
            hidden = self.embedding_norm(apply_dropout(hidden, config.dropout, noise, "embedding"))
        else:
            hidden = apply_dropout(self.embedding_norm(hidden), config.dropout, noise, "embedding")
        return hidden if self.embedding_projection is None else self.embedding_projection(hidden)

    def _layer_spec(self, layer: LayerDescription) -> LayerSpec:
        """One layer: global, block-sparse on long sequences, or local within the attention window."""
        config = self.config
        is_rotary = config.positions == "rotary"
        if layer.window:
            positions = self.local_positions if is_rotary else self.position_embedding
            return LayerSpec(layer.block, positions, is_causal=layer.is_causal, window=layer.window)
        sparsity = None
        if config.attention != "full":
            sparsity = BlockSparsity(
                config.block_size,
                random_blocks=config.num_random_blocks if config.random_once else 0,
                extra_first_block=0 if config.random_once else config.num_random_blocks,
                max_full_length=config.max_full_attention,
            )
        positions = self.global_positions if is_rotary else self.position_embedding
        return LayerSpec(layer.block, positions, is_causal=layer.is_causal, sparsity=sparsity)

    def position_codes(self, count: int) -> PositionCodes | None:
        """Codes of the first positions: of the embeddings, or of a head with rotary positions."""
        is_rotary = self.config.positions == "rotary"
        offset = 0 if is_rotary else self.config.position_offset
        return position_codes(
            self.global_positions if is_rotary else self.position_embedding,
            range(offset, offset + count),
            hidden_size=self.config.embedding_dim,
            head_size=self.encoder.config.key_dim,
        )

    # heads: hidden states → logits; `config.head` determines which of them a model has
    def pool(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """One vector per text, by the kind of pooling, after the dense layer of the head, [B, D]."""
        config = self.config
        pooled: Tensor
        if self.pooling is not None:
            pooled = self.pooling(hidden, batch)
        else:
            pooled = _pool_tokens(config.pooling if config.head == "label" else "first", hidden, batch)
        if self.mlm_head is not None and self.pooler is None:
            return self.masked_lm_hidden(pooled)
        if self.pooler is None:
            return pooled
        pooled = apply_dropout(pooled, config.pooler_dropout, noise, "pooler")
        return ACTIVATIONS[config.pooler_activation](self.pooler(pooled))

    def masked_lm_hidden(self, hidden: Tensor) -> Tensor:  # [M, D]
        """Transform of the masked-LM head; logits are its product with `output_weight` plus `output_bias`."""
        assert self.mlm_head is not None
        transformed: Tensor = self.mlm_head(hidden)
        return transformed

    @property
    def output_weight(self) -> Tensor:
        """Matrix of the masked-LM output projection, [V, D]."""
        return self.token_embedding.weight if self.mlm_head_output is None else self.mlm_head_output.weight

    @property
    def output_bias(self) -> Tensor:
        """Bias of the masked-LM output projection, [V]."""
        assert self.mlm_head_bias is not None
        return self.mlm_head_bias

    def next_sentence_logits(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Logits of each pair, [B, 2]: the second text follows the first, it does not."""
        assert self.next_sentence is not None
        logits: Tensor = self.next_sentence(self.pool(hidden, batch, noise))
        return logits

    def head_logits(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Logits of a sequence head, [B, labels], or of a token or span head, [N, …]."""
        assert self.classifier is not None
        if self.config.head == "label":
            hidden = self.pool(hidden, batch, noise)
        elif self.config.head_transform:
            hidden = self.masked_lm_hidden(hidden)
        if self.span_feed_forward is not None and self.span_norm is not None:
            hidden = self.span_norm(hidden + self.span_feed_forward(hidden, noise))
        logits: Tensor = self.classifier(apply_dropout(hidden, self.config.classifier_dropout, noise, "head"))
        return logits

    def output_logits(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """Logits of whichever head the model has: of texts [B, …] (label, next) or of tokens [N, …]."""
        match self.config.head:
            case "plain":
                raise UsageError("a model without a head has hidden states, not logits")
            case "masked" | "pretraining":
                return nn.functional.linear(self.masked_lm_hidden(hidden), self.output_weight, self.output_bias)
            case "next":
                return self.next_sentence_logits(hidden, batch)
        return self.head_logits(hidden, batch)

    # NumPy in, NumPy out (`backends.EncoderBackend`)
    makes_batches = False

    @torch.inference_mode()
    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Hidden states of all tokens, [N, D]. `token_types` defaults to those of the tokens."""
        hidden, _ = self._encode_packed(tokens, token_types)
        return hidden.float().cpu().numpy()

    @torch.inference_mode()
    def layer_states(self, tokens: Tokens) -> list[NDArray[np.float32]]:
        """Embeddings of all tokens and hidden states after each layer, each [N, D]."""
        ids, batch = self.to_tensors(tokens)
        embedded = self.embed(ids, batch, self.token_type_tensor(tokens), None)
        return to_arrays(self.encoder.layer_states(embedded, batch))

    @torch.inference_mode()
    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> NDArray[np.float32]:
        """Embedding of each text, [B, D · poolings]: mean or maximum of its hidden states, or that of [CLS]."""
        hidden, batch = self._encode_packed(tokens, None)
        hidden = hidden.float()
        pooled = [_pool_tokens(kind, hidden, batch) for kind in pooling]
        embeddings = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)
        return embeddings.cpu().numpy()

    @torch.inference_mode()
    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Pooler output of each text, [B, D]."""
        hidden, batch = self._encode_packed(tokens, token_types)
        return self.pool(hidden, batch).float().cpu().numpy()

    @torch.inference_mode()
    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Logits of the head: of texts [B, …] (label, next) or of tokens [N, …] (token, span, masked)."""
        hidden, batch = self._encode_packed(tokens, token_types)
        return self.output_logits(hidden, batch).float().cpu().numpy()

    @torch.inference_mode()
    def next_sentence_probabilities(self, tokens: Tokens) -> NDArray[np.float32]:
        """Probability of each pair that the second text follows the first, [B]."""
        hidden, batch = self._encode_packed(tokens, None)
        return self.next_sentence_logits(hidden, batch).float().softmax(-1)[:, 0].cpu().numpy()

    def _encode_packed(self, tokens: Tokens, token_types: Ids | None) -> tuple[Tensor, PackedBatch]:
        """Hidden states for inference, [N, D], and their layout."""
        ids, batch = self.to_tensors(tokens)
        if batch.max_length > self.config.max_positions:
            raise UsageError(
                f"a row has {batch.max_length} tokens but the model takes {self.config.max_positions}: split it"
            )
        if token_types is not None:
            tokens = Tokens(tokens.ids, tokens.offsets, token_types)
        embedded = self.embed(ids, batch, self.token_type_tensor(tokens), None)
        return self.encoder(embedded, batch, by_length=True), batch

    def token_type_tensor(self, tokens: Tokens, padding: int = 0) -> Tensor | None:
        """Token types as a tensor, [N + padding]; None if model or tokens have none."""
        if tokens.token_types is None or self.config.num_token_types < 2:
            return None
        token_types = np.append(tokens.token_types.astype(np.int64), np.zeros(padding, dtype=np.int64))
        return torch.from_numpy(token_types).to(self.device())

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, with their number of heads; layers that share weights have separate sites."""
        stack = self.config.stack
        sites = {f"encoder.{layer}.self": stack.num_heads for layer in range(stack.num_layers)}
        return sites if self.pooling is None else {**sites, POOLING_SITE: 1}


def _pool_tokens(kind: str, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Pool the hidden states of each sequence, [B, D]."""
    if kind in ("cls", "first"):
        return hidden[batch.first_indices]
    if kind == "last":
        return hidden[batch.last_indices]
    pooled: Tensor = Pooling(kind, hidden.shape[1])(hidden, batch)
    return pooled


def initialize_bert(model: Bert, seed: int, std: float = EMBEDDING_INIT_STD) -> None:
    """Initialise matrices and embeddings from normal(0, std), biases with 0, norms with 1; a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # in order of definition
            if parameter.dim() > 1:
                parameter.normal_(0, std, generator=generator)
            elif name.endswith("norm.weight"):
                parameter.fill_(1)
            else:
                parameter.zero_()


def initialize_local_attention(model: Bert) -> None:
    """Initialise attention to prefer neighbours, the same for all seeds.

    Learned positions start as sinusoids, so that nearby ones are similar, and keys start equal to queries, so that a
    token attends to similar ones: its neighbours. From a purely random start a model predicts tokens by their frequency
    for many updates before it discovers that their neighbours are more informative.
    """
    with torch.no_grad():
        if isinstance(model.position_embedding, Learned):
            weight = model.position_embedding.weight
            num_positions, width = weight.shape
            weight.copy_(sinusoids(torch.arange(num_positions), width) * POSITION_INIT_SCALE * width**-0.5)
        for module in model.modules():
            if isinstance(module, SelfAttention):
                query, key, _ = module.qkv.weight.split(module.config.qkv_widths)
                key.copy_(query)


def rescale_embeddings(weights: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Scale the embeddings down to the usual norm without changing the model's function.

    The sum of embeddings is normalised at once, so their scale means nothing to the model, but it determines how much
    an update of fixed size changes them: after training at high learning rates they are so large that fine-tuning
    hardly moves them. If the output projection is tied to the embedding, the norm before it compensates for the scale.
    The weights stay as they are where the scale matters: other heads use that norm, too, its epsilon is not negligible,
    embeddings have no norm, or fixed sinusoids are added to them.

    >>> config = BertConfig(vocab_size=9, hidden_size=4, head="masked")
    >>> model = Bert(config)
    >>> rescaled = rescale_embeddings({name: 1 + tensor for name, tensor in model.state_dict().items()}, config)
    >>> round(rescaled["token_embedding.weight"].square().mean().sqrt().item(), 3)
    0.02
    """
    rescaled = dict(weights)
    if not config.embedding_norm or config.positions in FIXED_CODES:
        return rescaled
    std = float(rescaled["token_embedding.weight"].float().square().mean().sqrt())
    if config.head_transform or config.norm_eps > NORM_EPS_FLOOR or std <= EMBEDDING_INIT_STD:
        return rescaled
    factor = EMBEDDING_INIT_STD / std
    for name in ("token_embedding.weight", "position_embedding.weight", "token_type_embedding.weight"):
        if name in rescaled:
            rescaled[name] = rescaled[name] * factor
    if config.tie_embeddings:
        for name in ("mlm_head.norm.weight", "mlm_head.norm.bias"):
            if name in rescaled:
                rescaled[name] = rescaled[name] / factor
    return rescaled
