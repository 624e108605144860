"""Small models of Llama-like and T5-like blocks learn to copy a sequence, and decode it with a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.cache import CrossKeyValues
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import RelativeBias, Rotary
from regard.config.block import BiasConfig, BlockConfig
from regard.models.layers.layer_spec import same_layers
from regard.models.layers.stack import TransformerStack
from tests.scale import scaled

VOCAB_SIZE = 11
BOS = 0
LENGTH = scaled(6, 4)
HIDDEN_SIZE = 48
BATCH_SIZE = 64
LEARNING_RATE = 5e-3
NUM_TESTS = 100


def random_texts(rng: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(rng.integers(1, VOCAB_SIZE, (count, LENGTH)))


def rectangle(num_rows: int, length: int, position_offset: int = 0) -> PackedBatch:
    return PackedBatch(np.full(num_rows, length), position_offset=position_offset)


class LlamaLike(nn.Module):
    """Copies the first half of a sequence into the second: RMS norm, gated SiLU, grouped heads, rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        config = BlockConfig(
            hidden_size=HIDDEN_SIZE,
            num_heads=4,
            num_kv_heads=2,
            feed_forward_size=96,
            activation="silu",
            gated=True,
            norm="rms",
            bias=BiasConfig.uniform(False),
        )
        self.embedding = nn.Embedding(VOCAB_SIZE, HIDDEN_SIZE)
        self.stack = TransformerStack(config, same_layers(2, Rotary(), is_causal=True), "decoder")
        self.output = nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False)

    def loss(self, texts: Tensor) -> Tensor:
        bos = texts.new_full((len(texts), 1), BOS)
        ids = torch.cat([texts, bos, texts], dim=1)
        batch = rectangle(len(texts), 2 * LENGTH)
        logits = self.output(self.stack(self.embedding(ids[:, :-1].flatten()), batch))
        copied = logits.unflatten(0, (len(texts), -1))[:, LENGTH:]
        return functional.cross_entropy(copied.flatten(0, 1), texts.flatten())

    def copy(self, texts: Tensor) -> Tensor:
        """Copies by cached greedy decoding."""
        num_rows = len(texts)
        cache = self.stack.empty_cache(num_rows, capacity=4)
        self.stack(self.embedding(texts.flatten()), rectangle(num_rows, LENGTH), cache=cache)
        ids = texts.new_full((num_rows,), BOS)
        copied = []
        for _ in range(LENGTH):
            batch = rectangle(num_rows, 1, cache.length)
            ids = self.output(self.stack(self.embedding(ids), batch, cache=cache)).argmax(1)
            copied.append(ids)
        return torch.stack(copied, dim=1)


class T5Like(nn.Module):
    """Encoder and decoder: RMS norm, relative bias, unscaled scores, no biases."""

    def __init__(self) -> None:
        super().__init__()
        config = BlockConfig(
            hidden_size=HIDDEN_SIZE,
            num_heads=4,
            feed_forward_size=96,
            norm="rms",
            attention_scale=1.0,
            bias=BiasConfig.uniform(False),
        )
        self.embedding = nn.Embedding(VOCAB_SIZE, HIDDEN_SIZE)
        self.encoder_positions = RelativeBias(4, num_buckets=16, max_distance=16)
        self.decoder_positions = RelativeBias(4, is_causal=True, num_buckets=16, max_distance=16)
        self.encoder = TransformerStack(config, same_layers(2, self.encoder_positions))
        decoder_config = config.override({"cross_attention": True})
        decoder_layers = same_layers(2, self.decoder_positions, is_causal=True)
        self.decoder = TransformerStack(decoder_config, decoder_layers, "decoder")
        self.output = nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("qkv.weight", "query.weight")):  # scores are not scaled, so queries are small (T5)
                nn.init.normal_(parameter[:HIDDEN_SIZE], 0, (HIDDEN_SIZE * 12) ** -0.5)

    def encode(self, texts: Tensor) -> list[CrossKeyValues]:
        """Keys and values of the texts between two boundaries: relative positions need something to be relative to."""
        ids = functional.pad(texts, (1, 1), value=BOS)
        batch = rectangle(len(texts), LENGTH + 2)
        return self.decoder.precompute_keys_values(self.encoder(self.embedding(ids.flatten()), batch), batch)

    def loss(self, texts: Tensor) -> Tensor:
        sources = self.encode(texts)
        shifted = functional.pad(texts[:, :-1], (1, 0), value=BOS)
        batch = rectangle(len(texts), LENGTH)
        logits = self.output(self.decoder(self.embedding(shifted.flatten()), batch, sources=sources))
        return functional.cross_entropy(logits, texts.flatten())

    def copy(self, texts: Tensor) -> Tensor:
        """Copies by cached greedy decoding."""
        num_rows = len(texts)
        sources = self.encode(texts)
        cache = self.decoder.empty_cache(num_rows, capacity=4)
        ids = texts.new_full((num_rows,), BOS)
        copied = []
        for _ in range(LENGTH):
            step = rectangle(num_rows, 1, cache.length)
            ids = self.output(self.decoder(self.embedding(ids), step, cache=cache, sources=sources)).argmax(1)
            copied.append(ids)
        return torch.stack(copied, dim=1)


def exact_match(build: Callable[[], LlamaLike | T5Like], num_steps: int) -> float:
    """Share of new texts that a model copies exactly after training."""
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, num_steps, pct_start=0.2)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model.loss(random_texts(rng, BATCH_SIZE)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    texts = random_texts(np.random.default_rng(2), NUM_TESTS)
    with torch.inference_mode():
        return (model.copy(texts) == texts).all(1).float().mean().item()


def test_a_llama_like_model_learns_to_copy() -> None:
    assert exact_match(LlamaLike, scaled(500, 250)) >= 0.98


@pytest.mark.slow
def test_a_t5_like_model_learns_to_copy() -> None:
    assert exact_match(T5Like, scaled(500, 300)) >= 0.98
