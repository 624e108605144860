"""A Transformer encoder (Devlin et al. 2019): a state for each token of a text, seen from both sides.

DistilBERT (no types, no pooler), RoBERTa and XLM-R (places from 2, other heads), BigBird (long rows in blocks), ELECTRA
(narrow tables of words), ALBERT (layers that share weights besides) and ModernBERT (turned places, layers that look
near, gates) are configs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask
from regard.attention.multihead import SelfAttention
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import Learned, Positions, Rotary, sinusoids
from regard.attention.sparse import BlockSparseMask, big_bird
from regard.config.models import BertConfig
from regard.errors import UsageError
from regard.models.base import Packable
from regard.models.layers.block import ACTIVATIONS, BlockConfig, FeedForward, LayerMask
from regard.models.layers.block import Encoder as EncoderStack
from regard.models.layers.packed import PackedStack
from regard.models.layers.pooling import Pooling
from regard.tokens import Ids, Tokens

POSITION_INIT_SCALE = 2 * 2**0.5  # of places: twice the deviation that words begin with
EMBEDDING_INIT_STD = 0.02  # deviation that the words of published models begin with
NORM_EPS_FLOOR = 1e-6  # added to a variance: next to nothing beside that of words of the usual size
NO_POSITIONS = Positions()  # places are in the states, attention needs no more of them


class MaskedLMHead(nn.Module):
    """Turns states into ones that the table of words can score, or any head of a model with `transform`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.hidden_size, config.embedding_dim, bias=config.bias)
        self.norm = nn.LayerNorm(config.embedding_dim, config.norm_eps, bias=config.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # [M, D]
        made: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(hidden)))
        return made


class Bert(Packable):
    """Reads texts, gives a state for each token; a head makes scores of them.

    >>> from regard.config.models import StackConfig
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> model = Bert(BertConfig(vocab_size=11, hidden_size=4, stack=stack, head="label", num_labels=3))
    >>> model.encode(Tokens.from_rows([[5, 6, 7], [8]])).shape, model.logits(Tokens.from_rows([[5, 6, 7], [8]])).shape
    ((4, 4), (2, 3))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width, inner, layers = config.hidden_size, config.embedding_dim, config.stack.num_layers
        self.words = nn.Embedding(config.vocab_size, inner)
        learned = config.positions == "learned"
        self.places = Learned(config.position_offset + config.max_positions, inner) if learned else NO_POSITIONS
        self.far, self.near = (
            (NO_POSITIONS, NO_POSITIONS) if learned else (Rotary(config.rope_theta), Rotary(config.local_rope_theta))
        )
        self.types = nn.Embedding(config.num_token_types, inner) if config.num_token_types else None
        self.norm = nn.LayerNorm(inner, config.norm_eps, bias=config.bias)
        self.widening = nn.Linear(inner, width) if config.embedding_size else None
        shared = [config.layer_group(layer) for layer in range(layers)] if config.layer_groups else []
        self.stack = EncoderStack(layers, _shape(config), shared=shared)
        self.pooler = nn.Linear(width, width) if config.has_pooler else None
        masked = config.head in ("masked", "pretraining")
        self.masked = MaskedLMHead(config) if masked or (config.head_transform and config.head != "plain") else None
        self.masked_bias = nn.Parameter(torch.zeros(config.vocab_size)) if masked else None
        self.masked_output = (
            nn.Linear(inner, config.vocab_size, bias=False) if masked and not config.tie_embeddings else None
        )
        self.next = nn.Linear(width, 2) if config.head in ("next", "pretraining") else None
        spans = config.head == "span" and config.span_feed_forward
        self.span = FeedForward(_shape(config)) if spans else None
        self.span_norm = nn.LayerNorm(width, config.norm_eps) if spans else None
        self.output = nn.Linear(width, config.num_outputs) if config.num_outputs else None

    def forward(
        self,
        ids: Tensor,  # [N]
        batch: PackedBatch,
        token_types: Tensor | None = None,  # [N]
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:
        """Return a state for each token, [N, D], or for each chosen one, [M, D]; types are 0 where none are given."""
        return self.stack(self.embed(ids, batch, token_types, noise), batch, self.layer_masks(batch), noise, selected)

    def layers(
        self, ids: Tensor, batch: PackedBatch, token_types: Tensor | None = None, noise: Noise | None = None
    ) -> list[Tensor]:  # ids and types [N]
        """Return the states after each layer, each [N, D]; the last are those that the model gives."""
        *made, last = self.stack.hidden_states(
            self.embed(ids, batch, token_types, noise), batch, self.layer_masks(batch), noise
        )
        return [*made, self.stack.norm(last)]

    def embed(self, ids: Tensor, batch: PackedBatch, token_types: Tensor | None, noise: Noise | None) -> Tensor:
        """Return the states before the first block: word, place and type, normed."""
        config, words = self.config, self.words(ids)
        if config.scale_embedding:
            words = words * math.sqrt(config.hidden_size)
        states = self.places.embed(words, batch.positions + config.position_offset)
        if self.types is not None:
            states = states + (self.types.weight[0] if token_types is None else self.types(token_types))
        if config.dropout_before_norm:
            states = self.norm(apply_dropout(states, config.dropout, noise, "embedding"))
        else:
            states = apply_dropout(self.norm(states), config.dropout, noise, "embedding")
        return states if self.widening is None else self.widening(states)

    def layer_masks(self, batch: PackedBatch) -> list[LayerMask]:
        """Return what each layer is told of who may look at whom: at whole rows, or at what is near."""
        config, far = self.config, LayerMask(self._sight(batch), self.far)
        if not config.attention_window:
            return self.stack.same_for_all_layers(*far)
        close = batch.max_length <= config.attention_window + 1  # nothing is farther away
        near = LayerMask(far.mask if close else batch.local_mask(config.attention_window), self.near)
        return [near if config.is_local(layer) else far for layer in range(config.stack.num_layers)]

    def _sight(self, batch: PackedBatch) -> BoundMask:
        """Return who may look at whom: everybody at its whole row, or in long rows blocks at few blocks."""
        config = self.config
        if config.attention == "full" or batch.max_length <= config.max_full_attention:
            return batch.full_mask()
        drawn, repeats = (config.num_random_blocks, 0) if config.random_once else (0, config.num_random_blocks)
        return BlockSparseMask(
            big_bird(drawn), config.block_size, batch.lengths, longest_full=config.max_full_attention, repeats=repeats
        )

    @property
    def position_scheme(self) -> tuple[Positions, int]:
        """How places are told, and the width of what tells them: of the table, or of a head that is turned."""
        turned = self.config.positions == "rotary"
        return (
            (self.far, self.config.hidden_size // self.config.stack.num_heads)
            if turned
            else (self.places, self.config.embedding_dim)
        )

    # heads: states in, scores out; which of them a model has, `config.head` says
    def pool(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Return one state for each text, made of its first token's or of their mean, [B, D]."""
        config = self.config
        if self.pooler is None:
            return self.masked_lm_hidden(_pooled("cls" if config.pooling == "first" else config.pooling, hidden, batch))
        first = apply_dropout(hidden[batch.first_indices], config.pooler_dropout, noise, "pooler")
        return ACTIVATIONS[config.pooler_activation](self.pooler(first))

    def masked_lm_hidden(self, hidden: Tensor) -> Tensor:  # [M, D]
        """Return what is multiplied with `output_weight`, plus `output_bias`, to score words at chosen places."""
        assert self.masked is not None
        made: Tensor = self.masked(hidden)
        return made

    @property
    def output_weight(self) -> Tensor:
        """The matrix that scores words at masked places, [V, D]."""
        return self.words.weight if self.masked_output is None else self.masked_output.weight

    @property
    def output_bias(self) -> Tensor:
        """What is added to those scores, [V]."""
        assert self.masked_bias is not None
        return self.masked_bias

    def next_sentence_logits(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Return for each pair the scores of: the second text follows, it does not, [B, 2]."""
        assert self.next is not None
        made: Tensor = self.next(self.pool(hidden, batch, noise))
        return made

    def head_logits(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Return the scores of the labels: of each text with a label head, [B, labels]; else of each token, [N, …]."""
        assert self.output is not None
        if self.config.head == "label":
            hidden = self.pool(hidden, batch, noise)
        elif self.config.head_transform:
            hidden = self.masked_lm_hidden(hidden)
        if self.span is not None and self.span_norm is not None:
            hidden = self.span_norm(hidden + self.span(hidden, noise))
        made: Tensor = self.output(apply_dropout(hidden, self.config.classifier_dropout, noise, "head"))
        return made

    # NumPy in, NumPy out
    @torch.inference_mode()
    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Return a state for each token, [N, D]; types are the tokens' segments where none are given."""
        return self._states(tokens, token_types)[0].float().cpu().numpy()

    @torch.inference_mode()
    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> NDArray[np.float32]:
        """Return one vector for each text, [B, D · poolings]: the mean or maximum of its states, or the first one."""
        states, rows = self._states(tokens, None)
        states = states.float()
        made = [_pooled(kind, states, rows) for kind in pooling]
        return (made[0] if len(made) == 1 else torch.cat(made, dim=1)).cpu().numpy()

    @torch.inference_mode()
    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Return one state for each text, [B, D], of a model that has them."""
        return self.pool(*self._states(tokens, token_types)).float().cpu().numpy()

    @torch.inference_mode()
    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> NDArray[np.float32]:
        """Return the head's scores: of texts [B, …] for label and next, of tokens [N, …] for token, span, masked."""
        states, rows = self._states(tokens, token_types)
        match self.config.head:
            case "plain":
                raise UsageError("a model without a head gives states, not scores")
            case "masked" | "pretraining":
                made = nn.functional.linear(self.masked_lm_hidden(states), self.output_weight, self.output_bias)
            case "next":
                made = self.next_sentence_logits(states, rows)
            case _:
                made = self.head_logits(states, rows)
        return made.float().cpu().numpy()

    def _states(self, tokens: Tokens, token_types: Ids | None) -> tuple[Tensor, PackedBatch]:
        ids, rows = self.to_tensors(tokens)
        if rows.max_length > self.config.max_positions:
            raise UsageError(
                f"a row has {rows.max_length} tokens but the model takes {self.config.max_positions}: split it"
            )
        kinds = self.token_type_tensor(
            tokens if token_types is None else Tokens(tokens.ids, tokens.offsets, token_types)
        )
        used: PackedStack = self.used()
        return used.encode(self.embed(ids, rows, kinds, None), rows, self.layer_masks(rows)), rows

    def token_type_tensor(self, tokens: Tokens, padding: int = 0) -> Tensor | None:
        """Return the segments of tokens as a tensor, [N + spare]; nothing where there are none."""
        if tokens.token_types is None or self.config.num_token_types < 2:
            return None
        segments = np.append(tokens.token_types.astype(np.int64), np.zeros(padding, dtype=np.int64))
        return torch.from_numpy(segments).to(self.device())

    def attention_sites(self) -> dict[str, int]:
        """Return every place where this model looks; layers that share their weights look each for itself."""
        stack = self.config.stack
        return {f"encoder.{layer}.self": stack.num_heads for layer in range(stack.num_layers)}

    def prepare_for_inference(self, pack: bool) -> PackedStack:
        """Return the stack as it is used; packed, it keeps the weights of the moment."""
        return PackedStack(self.stack, NO_POSITIONS, pack, by_length=True)

    def hidden_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the weights that map states to states; what scores words, pairs or labels is not among them."""
        scoring = ("masked_output.weight", "next.weight", "output.weight")
        return {name: shape for name, shape in super().hidden_matrices().items() if name not in scoring}


def _shape(config: BertConfig) -> BlockConfig:
    return BlockConfig(
        hidden_size=config.hidden_size,
        heads=config.stack.num_heads,
        feedforward=config.stack.feed_forward_size,
        activation=config.activation,
        norm_before=config.norm == "before",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
        gated=config.gated,
        biases=config.bias,
        first_norm=config.first_attention_norm,
    )


def _pooled(kind: str, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return one state of all states of a row, [B, D]."""
    return hidden[batch.first_indices] if kind == "cls" else Pooling(kind, hidden.shape[1])(hidden, batch)


def initialize_bert(model: Bert, seed: int, std: float = EMBEDDING_INIT_STD) -> None:
    """Fill all matrices and tables with normal numbers, biases with 0, norms with 1; a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0, std, generator=generator)
            elif name.endswith("norm.weight"):
                parameter.fill_(1)
            else:
                parameter.zero_()


def initialize_local_attention(model: Bert) -> None:
    """Let a new model look at what is near from its first update on; it is the same for all seeds.

    Learned places begin as sines and cosines, so that near ones are alike, and queries as keys, so that a token looks
    at those like it: at its neighbours. From chance alone a model tells words by their counts for many updates before
    it finds that their neighbours say more.
    """
    with torch.no_grad():
        if isinstance(model.places, Learned):
            places, width = model.places.weight.shape
            model.places.weight.copy_(sinusoids(torch.arange(places), width) * POSITION_INIT_SCALE * width**-0.5)
        for module in model.modules():
            if isinstance(module, SelfAttention):
                query, key, _ = module.qkv.weight.chunk(3)
                key.copy_(query)


def rescale_embeddings(weights: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Return the same model with tables of words, places and types that are no larger than usual.

    They are normed before anything looks at them, so their size means nothing to the model, but it decides how much an
    update of given size changes them: of a model that learned at high rates they are so large that fine-tuning would
    hardly move them. Where words are scored by the same table, the norm before it makes up for the size; where other
    heads read that norm, too, or where what is added to the variance would count, the model stays as it is.

    >>> config = BertConfig(vocab_size=9, hidden_size=4, head="masked")
    >>> model = Bert(config)
    >>> made = rescale_embeddings({name: 1 + tensor for name, tensor in model.state_dict().items()}, config)
    >>> round(made["words.weight"].square().mean().sqrt().item(), 3), made["norm.weight"][0].item()
    (0.02, 2.0)
    """
    made = dict(weights)
    size = float(made["words.weight"].float().square().mean().sqrt())
    if config.head_transform or config.norm_eps > NORM_EPS_FLOOR or size <= EMBEDDING_INIT_STD:
        return made
    share = EMBEDDING_INIT_STD / size
    for table in ("words", "places", "types"):
        if f"{table}.weight" in made:
            made[f"{table}.weight"] = made[f"{table}.weight"] * share
    if config.tie_embeddings:
        for name in ("masked.norm.weight", "masked.norm.bias"):
            if name in made:
                made[name] = made[name] / share
    return made
