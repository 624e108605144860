"""A small translation model trained on an artificial language: words are replaced, and their order is reversed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.pipeline.translation import TranslationPipeline
from regard.text.train import train_tokenizer

SOURCE_WORDS = ["dog", "cat", "bird", "house", "tree", "river", "stone", "cloud", "apple", "bread", "child", "garden"]
TARGET_WORDS = ["Hund", "Katze", "Vogel", "Haus", "Baum", "Fluss", "Stein", "Wolke", "Apfel", "Brot", "Kind", "Garten"]
MAX_LENGTH = 64  # tokens of a source


class Toy:
    """The artificial language: random `pairs` of source and target, and a pipeline trained on them."""

    source_words = SOURCE_WORDS
    max_length = MAX_LENGTH

    def pairs(self, count: int, seed: int, max_words: int = 5) -> list[tuple[str, str]]:
        rng = np.random.default_rng(seed)
        pairs = []
        for _ in range(count):
            word_ids = rng.integers(0, len(SOURCE_WORDS), rng.integers(1, max_words + 1)).tolist()
            mark = "?" if rng.random() < 0.2 else "."
            source = " ".join(SOURCE_WORDS[word_id] for word_id in word_ids) + mark
            target = " ".join(TARGET_WORDS[word_id] for word_id in reversed(word_ids)) + mark
            pairs.append((source, target))
        return pairs

    def train(self, seed: int, steps: int) -> TranslationPipeline:
        """Train a small Transformer on 3000 pairs."""
        pairs = self.pairs(3000, 1)
        texts = itertools.chain.from_iterable(pairs)
        tokenizer = train_tokenizer(list(texts), TokenizerConfig(kind="bpe", vocab_size=345))
        stack = StackConfig(num_layers=2, num_heads=4, feed_forward_size=96)
        config = TransformerConfig(
            source_vocab_size=tokenizer.vocab_size,
            target_vocab_size=tokenizer.vocab_size,
            hidden_size=48,
            encoder=stack,
            decoder=stack,
            dropout=0.0,
            max_positions=96,
        )
        model = build_model(config)
        initialize_weights(model, seed)
        source_ids = tokenizer.encode_batch([source for source, _ in pairs])
        sources = [[*ids, tokenizer.eos_id] for ids in source_ids]
        targets = tokenizer.encode_batch([target for _, target in pairs])
        optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
        rng = np.random.default_rng(seed)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 5e-3 * min((step + 1) / 30, 1, 2 * (steps - step) / steps)
            indices = rng.integers(0, len(pairs), 40).tolist()
            source_batch = Tokens.from_rows([sources[index] for index in indices])
            target_batch = Tokens.from_rows([targets[index] for index in indices])
            loss, _ = model.loss(source_batch, target_batch)
            optimizer.zero_grad()
            (loss / len(target_batch.ids)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        decoding = DecodingConfig(beam=4)
        return TranslationPipeline([model], tokenizer, tokenizer, decoding=decoding, task={"max_length": MAX_LENGTH})


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="session")
def pipeline(toy: Toy) -> TranslationPipeline:
    torch.set_num_threads(1)
    return toy.train(seed=1, steps=220)
