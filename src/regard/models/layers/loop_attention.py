"""Attention of a recurrent decoder whose steps need the one before: computed step by step (input feeding)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.cache import CrossKeyValues
from regard.attention.capture import AttentionCall, capture
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.scores import (
    Additive,
    Bilinear,
    Dot,
    Normalize,
    ReinforceSample,
    Score,
    additive_scores,
    dot_product_scale,
)
from regard.attention.trace import active_trace
from regard.models.layers.cells import LoopMatrix, to_accumulation_dtype

if TYPE_CHECKING:
    from regard.models.layers.recurrent import RecurrentDecoder

DECODER_ATTENTION_SITE = "decoder.attention"  # site of the decoder's attention to the source


class LoopAttention:
    """Attention to the source in each step of a loop.

    `attend` gets the identity matrix as values, so that it returns attention weights. The loop itself multiplies them
    with the values, whose gradient is then computed once for all steps. A trace captures the values that the readout
    receives, as it does without input feeding.
    """

    def __init__(
        self,
        decoder: RecurrentDecoder,
        source: CrossKeyValues,
        mask: BoundMask | None,
        noise: Noise | None,
        position: int,
    ) -> None:
        self.decoder = decoder
        self.key = source.key
        self.mask = mask
        self.noise = noise
        sentences, _, num_keys, _ = source.key.shape
        identity = torch.eye(num_keys, dtype=source.key.dtype, device=source.key.device)
        self.identity = identity.expand(sentences, 1, -1, -1)
        self.value = source.value.squeeze(1)  # [S, K, V]
        self.score = _LoopScore(decoder.attention_score, source.key)
        self.log_probs: list[Tensor] = []  # log-probabilities of the keys sampled in each step
        self.step_index = 0
        self.position = position  # of the next token

    def __call__(self, hidden: Tensor) -> Tensor:
        """Attention weights of states [R, D], [S, rows of a sentence, K]."""
        query = to_accumulation_dtype(hidden).view(len(self.key), 1, -1, hidden.shape[1])
        normalize = self.decoder.normalize(self.noise, self.step_index)
        mask = self._step_mask()
        weights = attend(
            query,
            self.key,
            self.identity,
            mask=mask,
            score=self.score,
            normalize=normalize,
            site=DECODER_ATTENTION_SITE,
            is_traced=False,
        )
        self._capture(query, mask, normalize)
        if isinstance(normalize, ReinforceSample):
            self.log_probs.append(normalize.log_prob)
        self.step_index += 1
        self.position += 1
        return weights.squeeze(1)

    def _capture(self, query: Tensor, mask: BoundMask | None, normalize: Normalize) -> None:
        """Give an active trace the attention of a step."""
        trace = active_trace(DECODER_ATTENTION_SITE)
        if trace is None:
            return
        readout_size = self.decoder.readout.out_features
        call = AttentionCall(
            query,
            self.key,
            value=self.value[:, None, :, -readout_size:],
            mask=mask,
            bias=None,
            score=self.score,
            normalize=normalize,
        )
        capture(trace, DECODER_ATTENTION_SITE, call)

    def _step_mask(self) -> BoundMask | None:
        """The mask of this step: with local attention, its window."""
        if self.mask is None or not self.decoder.config.attention_window:
            return self.mask
        position = torch.full((1, 1), self.position, device=self.mask.key.device)
        return BoundMask(self.mask.mask, position, self.mask.key)


class _LoopScore:
    """A score in a loop: where a matrix multiplies its queries, that is a loop matrix."""

    def __init__(self, score: Score, key: Tensor) -> None:
        self.score = score
        if isinstance(score, Additive):
            self.query_matrix = LoopMatrix(score.query.weight.t())
            self.v = score.v.weight[0].to(key.dtype)
        elif isinstance(score, Dot | Bilinear):
            self.query_matrix = LoopMatrix(key.squeeze(1).mT)

    def prepare(self, key: Tensor) -> Tensor:
        return self.score.prepare(key)

    def dot_product_scale(self, head_size: int) -> float | None:
        return dot_product_scale(self.score, head_size)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, 1, Q, K]."""
        if isinstance(self.score, Additive):
            projected = self.query_matrix.matmul(query.flatten(0, 2)).view(*query.shape[:3], -1)
            return additive_scores(projected, key, self.v)
        if isinstance(self.score, Dot | Bilinear):
            return self.query_matrix.matmul(query.squeeze(1)).unsqueeze(1)
        return self.score(query, key)
