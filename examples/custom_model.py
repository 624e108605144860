"""A custom model learns to reverse sequences within seconds: model, training loop, search and trace.

It is a causal language model over `source SEPARATOR reversed-source END`. The trace shows the head that reads the
source backwards.
"""

import random

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.nn import (
    Noise,
    PackedBatch,
    TrainingLoop,
    TransformerBlock,
    build_positions,
    causal,
    pack_sequences,
    vocabulary_loss,
)
from regard.search import PrefixGenerator, beam_search

END = 0
SEPARATOR = 1
VOCAB_SIZE = 12  # tokens 2 to 11 are letters
MAX_LENGTH = 6
WIDTH = 64


class Reverser(nn.Module):
    """Two Transformer blocks with learned positions and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.positions = build_positions("learned", 2 * MAX_LENGTH + 2, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH, 4, 2 * WIDTH, dropout=0.05) for _ in range(2))

    def forward(self, sequences: list[list[int]], noise: Noise | None = None) -> tuple[Tensor, PackedBatch]:
        """Hidden states of all tokens, packed, and their layout."""
        ids, batch = pack_sequences(sequences)
        hidden = self.positions.embed(self.embedding(ids), batch.positions)
        mask = batch.bind(causal())
        for block in self.blocks:
            hidden = block(hidden, batch, mask=mask, noise=noise)
        return hidden, batch

    @torch.no_grad()
    def next_logits(self, sources: list[list[int]], prefixes: np.ndarray) -> Tensor:
        """Logits of the token after each source and prefix."""
        hidden, batch = self([[*source, *prefix] for source, prefix in zip(sources, prefixes.tolist(), strict=True)])
        return hidden[batch.lengths.cumsum(0) - 1] @ self.embedding.weight.T


def random_sources(count: int, seed: int) -> list[list[int]]:
    """Random sequences of random lengths."""
    generator = random.Random(seed)
    return [generator.choices(range(2, VOCAB_SIZE), k=generator.randint(1, MAX_LENGTH)) for _ in range(count)]


def train(model: Reverser, steps: int) -> None:
    """Train on random sequences, a function of the step."""
    loop = TrainingLoop(model, steps, learning_rate=3e-3)
    for noise in loop:
        sources = random_sources(64, seed=noise.step)
        hidden, _ = model([[*source, SEPARATOR, *source[::-1]] for source in sources], noise)
        targets, _ = pack_sequences([[*source[1:], SEPARATOR, *source[::-1], END] for source in sources])
        loss, _ = vocabulary_loss(hidden, model.embedding.weight, None, targets)
        loop.update(loss / len(targets))


def backward_reading(model: Reverser, source: list[int]) -> dict[str, float]:
    """Share of the output tokens for which a head attends most to the token that it copies, by head."""
    with torch.no_grad(), regard.trace() as captured:
        model([[*source, SEPARATOR, *source[::-1]]])
    copied = np.arange(len(source))[::-1]
    shares = {}
    for site in captured:
        attended = captured[site].weights[0, :, len(source) : -1].argmax(-1)  # [heads, output tokens]
        for head, share in enumerate((attended == copied).mean(axis=1).tolist()):
            shares[f"{site}:{head}"] = share
    return shares


if __name__ == "__main__":
    torch.manual_seed(1)
    model = Reverser()
    train(model, steps=400)
    sources = random_sources(200, seed=-1)
    generator = PrefixGenerator(model.next_logits, vocab_size=VOCAB_SIZE, bos_id=SEPARATOR, eos_id=END)
    outputs = [hypotheses[0].ids for hypotheses in beam_search(generator, sources, max_length=MAX_LENGTH, beam=2)]
    num_correct = sum(output == source[::-1] for source, output in zip(sources, outputs, strict=True))
    print(f"reversed correctly: {num_correct} of {len(sources)}")
    shares = backward_reading(model, [2, 3, 4, 5, 6, 7])
    head = max(shares, key=shares.__getitem__)
    print(f"{head} reads the source backwards: {shares[head]:.0%} of the tokens")
