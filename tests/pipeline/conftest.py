"""A small translation model that really translates: an artificial language with renamed words in reverse order."""

from __future__ import annotations

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

LEFT = ["dog", "cat", "bird", "house", "tree", "river", "stone", "cloud", "apple", "bread", "child", "garden"]
RIGHT = ["Hund", "Katze", "Vogel", "Haus", "Baum", "Fluss", "Stein", "Wolke", "Apfel", "Brot", "Kind", "Garten"]
MAX_LENGTH = 64  # tokens of a source


class Toy:
    """The artificial language: `pairs` of texts, and a pipeline trained on some."""

    left = LEFT
    right = RIGHT
    max_length = MAX_LENGTH

    def pairs(self, count: int, seed: int, max_words: int = 5) -> list[tuple[str, str]]:
        rng = np.random.default_rng(seed)
        pairs = []
        for _ in range(count):
            words = rng.integers(0, len(LEFT), rng.integers(1, max_words + 1)).tolist()
            mark = "?" if rng.random() < 0.2 else "."
            pairs.append((" ".join(LEFT[word] for word in words) + mark, self.translate(words, mark)))
        return pairs

    def translate(self, words: list[int], mark: str) -> str:
        return " ".join(RIGHT[word] for word in reversed(words)) + mark

    def train(self, seed: int, steps: int) -> TranslationPipeline:
        pairs = self.pairs(3000, 1)
        tokenizer = train_tokenizer(
            [text for pair in pairs for text in pair], TokenizerConfig(kind="bpe", vocab_size=345)
        )
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
        source = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch([left for left, _ in pairs])]
        target = tokenizer.encode_batch([right for _, right in pairs])
        optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
        rng = np.random.default_rng(seed)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 5e-3 * min((step + 1) / 30, 1, 2 * (steps - step) / steps)
            indices = rng.integers(0, len(pairs), 40).tolist()
            batch = Tokens.from_rows([target[index] for index in indices])
            loss, _ = model.loss(Tokens.from_rows([source[index] for index in indices]), batch)
            optimizer.zero_grad()
            (loss / len(batch.ids)).backward()
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
