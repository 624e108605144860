"""A small translator that really translates: a made language whose words are turned around and renamed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.pipeline.translation import TranslationPipeline
from regard.text.train import train_tokenizer
from regard.tokens import Tokens

LEFT = ["dog", "cat", "bird", "house", "tree", "river", "stone", "cloud", "apple", "bread", "child", "garden"]
RIGHT = ["Hund", "Katze", "Vogel", "Haus", "Baum", "Fluss", "Stein", "Wolke", "Apfel", "Brot", "Kind", "Garten"]
MOST = 64  # tokens of a row


class Toy:
    """The made language: `pairs` of texts, and a pipeline that was trained on some."""

    left, right, most = LEFT, RIGHT, MOST

    def pairs(self, count: int, seed: int, longest: int = 5) -> list[tuple[str, str]]:
        chance = np.random.default_rng(seed)
        made = []
        for _ in range(count):
            words = chance.integers(0, len(LEFT), chance.integers(1, longest + 1)).tolist()
            mark = "?" if chance.random() < 0.2 else "."
            made.append((" ".join(LEFT[word] for word in words) + mark, self.translated(words, mark)))
        return made

    def translated(self, words: list[int], mark: str) -> str:
        return " ".join(RIGHT[word] for word in reversed(words)) + mark

    def trained(self, seed: int, steps: int) -> TranslationPipeline:
        rows = self.pairs(3000, 1)
        tokenizer = train_tokenizer([text for row in rows for text in row], TokenizerConfig(kind="bpe", vocab_size=345))
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
        source = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch([left for left, _ in rows])]
        target = tokenizer.encode_batch([right for _, right in rows])
        optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
        chance = np.random.default_rng(seed)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 5e-3 * min((step + 1) / 30, 1, 2 * (steps - step) / steps)
            chosen = chance.integers(0, len(rows), 40).tolist()
            batch = Tokens.from_rows([target[number] for number in chosen])
            loss, _ = model.loss(Tokens.from_rows([source[number] for number in chosen]), batch)
            optimizer.zero_grad()
            (loss / len(batch.ids)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        decoding = DecodingConfig(beam=4)
        return TranslationPipeline([model], tokenizer, tokenizer, decoding=decoding, task={"max_length": MOST})


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="session")
def pipeline(toy: Toy) -> TranslationPipeline:
    torch.set_num_threads(1)
    return toy.trained(seed=1, steps=220)
