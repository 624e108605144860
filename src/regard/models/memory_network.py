"""The end-to-end memory network (Sukhbaatar et al. 2015).

A question is a vector; each hop compares it with every sentence of its story under one embedding, takes a mix of the
sentences under another and adds what it found. The answer is the word whose embedding fits the last vector best.

Several networks of one shape can stand side by side, their weights on an axis of their own: training from ten starts
then costs little more than training from one. They share the sentences that they read and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise
from regard.attention.scores import softmax, unnormalized
from regard.config.rnn_models import MemoryNetworkConfig
from regard.errors import ConfigError, UsageError
from regard.models.base import Model
from regard.models.layers.memory import BagOfWords, memory_hop, position_encoding_factors, story_mask
from regard.tokens import Tokens

Numbers = NDArray[np.int64]
INIT_STD = 0.1  # standard deviation of the first weights


@dataclass(frozen=True)
class StoryBatch:
    """Questions, each with the sentences told before it, as word numbers."""

    questions: Tokens  # B rows
    sentences: Tokens  # N rows: those of all stories end to end, in the order told
    ages: Numbers  # [N], how long ago each was told; 0: the last one before the question
    counts: Numbers  # [B], sentences of each story

    def __len__(self) -> int:
        return len(self.counts)


class MemoryNetwork(Model):
    """Reads sentences and a question, answers with one of its words.

    >>> model = MemoryNetwork(MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=4, embedding_size=5, hops=2))
    >>> told = StoryBatch(Tokens.from_rows([[0, 1]]), Tokens.from_rows([[2, 3], [4, 5, 6]]), np.array([1, 0]), np.array([2]))
    >>> model(told).shape, model.logits(model(told)).shape
    (torch.Size([1, 1, 5]), torch.Size([1, 1, 7]))
    """

    def __init__(self, config: MemoryNetworkConfig, members: int = 1) -> None:
        super().__init__()
        if not (config.vocab_size and config.max_sentence_words and config.embedding_size):
            raise ConfigError("vocabulary, longest and width come from the training stories: none may be 0 in a model")
        self.config, self.members = config, members
        self.size = config.vocab_size + (
            config.memory_size if config.temporal_encoding else 0
        )  # words, then one for each age
        tied = config.tying == "adjacent"
        # which table holds the question, each hop's keys and values, and the answer
        self.hops = [(number, number + 1) if tied else (1, 2) for number in range(config.hops)]
        self.answer = config.hops if tied else 3
        shape = self.size, members, config.embedding_size
        self.tables = nn.ParameterList(nn.Parameter(torch.empty(shape)) for _ in range(self.answer + 1))
        self.turn = None if tied else nn.Parameter(torch.empty(members, config.embedding_size, config.embedding_size))
        tilt, places = position_encoding_factors(
            config.embedding_size, config.max_sentence_words + int(config.temporal_encoding)
        )
        self.register_buffer("tilt", tilt if config.sentence_encoding == "position" else None, persistent=False)
        self.places = places.numpy()
        if not self.tables[0].is_meta:
            self.initialize(seed=0)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Give every network its first weights: number m those of seed + m."""
        for member in range(self.members):
            drawn = Noise(seed + member, step=0)
            for name, weights in self.named_parameters():
                one = weights[member] if name == "turn" else weights[:, member]
                first = drawn.generator(name).standard_normal(tuple(one.shape), dtype=np.float32)
                one.copy_(torch.from_numpy(first) * INIT_STD)

    @torch.no_grad()
    def restart(self, index: int) -> MemoryNetwork:
        """Return one of the networks as a model of its own."""
        alone = MemoryNetwork(self.config)
        for (name, weights), (_, whole) in zip(alone.named_parameters(), self.named_parameters(), strict=True):
            weights.copy_(whole[index : index + 1] if name == "turn" else whole[:, index : index + 1])
        return alone.to(self.device())

    def attention_sites(self) -> dict[str, int]:
        """Return every hop, with a head for each network."""
        return {f"hop.{number}": self.members for number in range(len(self.hops))}

    def forward(self, told: StoryBatch, *, linear: bool = False) -> Tensor:
        """Return each network's state after the last hop, [M, B, d]; `linear` leaves out the softmax of every hop."""
        config, device = self.config, self.device()
        asked, facts = self._bags(told)
        tilt: Tensor | None = self.tilt  # type: ignore[assignment]
        used = sorted({table for pair in self.hops for table in pair})
        memory = {table: facts.matmul(self.tables[table], tilt) for table in used}  # each [N, M, d]
        mask = story_mask(told.counts, num_shared=int(config.empty_memories), device=device)
        bias = self._emptiness(told) if config.empty_memories and not linear else None
        state = asked.matmul(self.tables[0], tilt).transpose(0, 1)[None]  # [1, M, B, d]
        for number, (key, value) in enumerate(self.hops):
            found = memory_hop(
                state,
                memory[key],
                memory[value],
                mask=mask,
                bias=bias,
                normalize=unnormalized if linear else softmax,
                site=f"hop.{number}",
            )
            state = found + (state if self.turn is None else state @ self.turn)
        return state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return how well each word answers, [M, B, V]."""
        answers = self.tables[self.answer][: self.config.vocab_size]  # [V, M, d]
        return hidden @ answers.permute(1, 2, 0)

    def loss(self, told: StoryBatch, answers: Numbers, *, linear: bool = False) -> tuple[Tensor, NDArray[np.bool_]]:
        """Return each network's summed loss, [M], and which questions it answers right, [M, B]."""
        logits = self.logits(self(told, linear=linear))
        wanted = torch.from_numpy(answers).to(logits.device)
        picked = logits.gather(2, wanted.expand(self.members, -1)[:, :, None])[:, :, 0]
        right = (logits.argmax(-1) == wanted).cpu().numpy()
        return (logits.logsumexp(-1) - picked).sum(1), right

    def _emptiness(self, told: StoryBatch) -> Tensor:
        """Return what stands for the memories that are empty: one that all look at, as often as there are such."""
        bias = torch.zeros(1, 1, len(told), len(told.ages) + 1, device=self.device())
        empty = np.maximum(self.config.memory_size - told.counts, 0)
        bias[0, 0, :, -1] = torch.from_numpy(np.log(np.maximum(empty, 1e-30), dtype=np.float32))
        return bias

    def _bags(self, told: StoryBatch) -> tuple[BagOfWords, BagOfWords]:
        """Return the words of questions and sentences with their places; the age is a sentence's last word."""
        config = self.config
        self._check(told)
        words = told.sentences
        if config.temporal_encoding:
            ids = np.insert(words.ids, words.offsets[1:], config.vocab_size + told.ages)
            words = Tokens(ids, words.offsets + np.arange(len(words) + 1))
        slots = np.arange(len(words.ids)) - np.repeat(words.offsets[:-1], words.lengths)
        if config.temporal_encoding:
            slots[words.offsets[1:] - 1] = config.max_sentence_words
        if config.empty_memories:
            words = Tokens(words.ids, np.append(words.offsets, words.offsets[-1]))
        asked = told.questions
        places = np.arange(len(asked.ids)) - np.repeat(asked.offsets[:-1], asked.lengths)
        device = self.device()
        return (
            BagOfWords(asked, self.places[places], self.size, device),
            BagOfWords(words, self.places[slots], self.size, device),
        )

    def _check(self, told: StoryBatch) -> None:
        for name, rows in (("question", told.questions), ("sentence", told.sentences)):
            longest = int(rows.lengths.max(initial=0))
            if longest > self.config.max_sentence_words:
                raise UsageError(
                    f"a {name} has {longest} words but the model holds {self.config.max_sentence_words}: shorten it"
                )
        if int(told.counts.max(initial=0)) > self.config.memory_size:
            raise UsageError(
                f"a story has {told.counts.max()} sentences but the model remembers {self.config.memory_size}"
            )
