"""The end-to-end memory network (Sukhbaatar et al. 2015).

A question is a vector. Each hop compares it with every sentence of its story under one embedding and adds the attention
output over the sentences under another embedding. The answer is the word whose embedding has the largest product with
the last vector.

Several networks of one shape can be trained side by side, with an axis of their own in every weight: ten restarts cost
little more than one. They share the sentences that they read and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise
from regard.attention.positions import sinusoids
from regard.attention.scores import softmax, unnormalized
from regard.config.rnn_models import MemoryNetworkConfig
from regard.errors import ConfigError, UsageError
from regard.models.base import Model
from regard.models.layers.memory import BagOfWords, memory_hop, position_encoding_factors, story_mask
from regard.packed_tokens import Tokens

Indices = NDArray[np.int64]
INIT_STD = 0.1  # standard deviation of the initial weights
AGE_CODE_SCALE = INIT_STD * 2**0.5  # gives sinusoids the deviation of the learned embeddings that they replace


@dataclass(frozen=True)
class StoryBatch:
    """Questions, each with the sentences of its story, as word ids."""

    questions: Tokens  # B rows
    sentences: Tokens  # N rows: the sentences of all stories end to end, oldest first
    ages: Indices  # [N], age of each sentence; 0: the last one before the question
    sentence_counts: Indices  # [B], number of sentences of each story

    def __len__(self) -> int:
        return len(self.sentence_counts)


class MemoryNetwork(Model):
    """Answers a question about a story with one word of the vocabulary.

    >>> config = MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=4, embedding_size=5, hops=2)
    >>> model = MemoryNetwork(config)
    >>> sentences = Tokens.from_rows([[2, 3], [4, 5, 6]])
    >>> batch = StoryBatch(Tokens.from_rows([[0, 1]]), sentences, ages=np.array([1, 0]), sentence_counts=np.array([2]))
    >>> model(batch).shape, model.logits(model(batch)).shape
    (torch.Size([1, 1, 5]), torch.Size([1, 1, 7]))
    """

    def __init__(self, config: MemoryNetworkConfig, num_restarts: int = 1) -> None:
        super().__init__()
        if not (config.vocab_size and config.max_sentence_words and config.embedding_size):
            raise ConfigError(
                "vocab_size, max_sentence_words and embedding_size come from the training stories: "
                "none of them may be 0 in a model"
            )
        self.config = config
        self.num_restarts = num_restarts
        self.has_age_words = config.time_encoding == "learned"
        num_ages = config.memory_size if self.has_age_words else 0
        self.table_size = config.vocab_size + num_ages  # words, then one row for each age
        is_adjacent = config.tying == "adjacent"
        # which table holds the question, the keys and values of each hop, and the answers
        self.hop_tables = [(hop, hop + 1) if is_adjacent else (1, 2) for hop in range(config.hops)]
        self.answer_table = config.hops if is_adjacent else 3
        table_shape = (self.table_size, num_restarts, config.embedding_size)
        self.embeddings = nn.ParameterList(nn.Parameter(torch.empty(table_shape)) for _ in range(self.answer_table + 1))
        map_shape = (num_restarts, config.embedding_size, config.embedding_size)
        # linear map of the state between hops
        self.hop_projection = nn.Parameter(torch.empty(map_shape)) if config.has_state_map else None
        max_words = config.max_sentence_words + int(self.has_age_words)
        dimension_factors, position_factors = position_encoding_factors(config.embedding_size, max_words)
        has_position_encoding = config.sentence_encoding == "position"
        self.register_buffer(
            "dimension_factors", dimension_factors if has_position_encoding else None, persistent=False
        )
        self.position_factors = position_factors.numpy()
        has_age_codes = config.time_encoding == "sinusoidal"
        age_codes = AGE_CODE_SCALE * sinusoids(torch.arange(config.memory_size), config.embedding_size)
        self.register_buffer("age_codes", age_codes if has_age_codes else None, persistent=False)  # [ages, d]
        if not self.embeddings[0].is_meta:
            self.initialize(seed=0)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Initialise the weights of restart m as a function of seed + m."""
        for member in range(self.num_restarts):
            noise = Noise(seed + member, step=0)
            tables = [table[:, member] for table in self.embeddings]
            # the map comes last, so that the tables are the same with and without it
            maps = [] if self.hop_projection is None else [self.hop_projection[member]]
            for index, weights in enumerate([*tables, *maps]):
                initial = noise.generator(f"parameter.{index}").standard_normal(tuple(weights.shape), dtype=np.float32)
                weights.copy_(torch.from_numpy(initial) * INIT_STD)

    @torch.no_grad()
    def restart(self, index: int) -> MemoryNetwork:
        """One of the restarts as a model of its own."""
        single = MemoryNetwork(self.config)
        member = slice(index, index + 1)
        for (name, weights), (_, all_weights) in zip(single.named_parameters(), self.named_parameters(), strict=True):
            weights.copy_(all_weights[member] if name == "hop_projection" else all_weights[:, member])
        return single.to(self.device())

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model: every hop, with one head per restart."""
        return {f"hop.{hop}": self.num_restarts for hop in range(len(self.hop_tables))}

    def forward(self, batch: StoryBatch, *, linear: bool = False) -> Tensor:
        """State after the last hop, [M, B, d]; `linear` leaves out the softmax of every hop."""
        config = self.config
        questions, sentences = self._bags_of_words(batch)
        dimension_factors: Tensor | None = self.dimension_factors  # type: ignore[assignment]
        used_tables = sorted({table for tables in self.hop_tables for table in tables})
        memories = {
            table: self._add_age_codes(sentences.matmul(self.embeddings[table], dimension_factors), batch)
            for table in used_tables
        }  # [N, M, d]
        mask = story_mask(batch.sentence_counts, num_shared=int(config.empty_memories), device=self.device())
        bias = self._empty_memory_bias(batch) if config.empty_memories and not linear else None
        state = questions.matmul(self.embeddings[0], dimension_factors).transpose(0, 1)[None]  # [1, M, B, d]
        for hop, (key_table, value_table) in enumerate(self.hop_tables):
            output = memory_hop(
                state,
                memories[key_table],
                memories[value_table],
                mask=mask,
                bias=bias,
                normalize=unnormalized if linear else softmax,
                site=f"hop.{hop}",
            )
            state = output + (state if self.hop_projection is None else state @ self.hop_projection)
        return state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the words as answers, [M, B, V]."""
        answers = self.embeddings[self.answer_table][: self.config.vocab_size]  # [V, M, d]
        return hidden @ answers.permute(1, 2, 0)

    def loss(self, batch: StoryBatch, answers: Indices, *, linear: bool = False) -> tuple[Tensor, NDArray[np.bool_]]:
        """Summed cross-entropy of each restart, [M], and which questions it answers correctly, [M, B]."""
        logits = self.logits(self(batch, linear=linear))
        targets = torch.from_numpy(answers).to(logits.device)
        target_logits = logits.gather(2, targets.expand(self.num_restarts, -1)[:, :, None])[:, :, 0]
        is_correct = (logits.argmax(-1) == targets).cpu().numpy()
        return (logits.logsumexp(-1) - target_logits).sum(1), is_correct

    def _add_age_codes(self, memories: Tensor, batch: StoryBatch) -> Tensor:  # [N, M, d], empty memories at the end
        """Memories with the sinusoids of their ages, where these encode time; empty memories have no age."""
        codes: Tensor | None = self.age_codes  # type: ignore[assignment]
        if codes is None:
            return memories
        ages = torch.from_numpy(batch.ages).to(memories.device)
        return torch.cat([memories[: len(ages)] + codes[ages][:, None], memories[len(ages) :]])

    def _empty_memory_bias(self, batch: StoryBatch) -> Tensor:
        """Bias [1, 1, B, N + 1] that counts the one shared empty memory as often as a story has empty memories."""
        bias = torch.zeros(1, 1, len(batch), len(batch.ages) + 1, device=self.device())
        num_empty = np.maximum(self.config.memory_size - batch.sentence_counts, 0)
        bias[0, 0, :, -1] = torch.from_numpy(np.log(np.maximum(num_empty, 1e-30), dtype=np.float32))
        return bias

    def _bags_of_words(self, batch: StoryBatch) -> tuple[BagOfWords, BagOfWords]:
        """Questions and sentences as bags of words; a learned age is the last word of a sentence."""
        config = self.config
        self._check(batch)
        sentences = batch.sentences
        if self.has_age_words:
            ids = np.insert(sentences.ids, sentences.offsets[1:], config.vocab_size + batch.ages)
            sentences = Tokens(ids, sentences.offsets + np.arange(len(sentences) + 1))
        positions = _word_positions(sentences)
        if self.has_age_words:
            positions[sentences.offsets[1:] - 1] = config.max_sentence_words
        if config.empty_memories:
            sentences = Tokens(sentences.ids, np.append(sentences.offsets, sentences.offsets[-1]))
        questions = batch.questions
        device = self.device()
        question_weights = self.position_factors[_word_positions(questions)]
        return (
            BagOfWords(questions, question_weights, self.table_size, device),
            BagOfWords(sentences, self.position_factors[positions], self.table_size, device),
        )

    def _check(self, batch: StoryBatch) -> None:
        """Reject texts that exceed the model's sizes."""
        for name, texts in (("question", batch.questions), ("sentence", batch.sentences)):
            num_words = int(texts.lengths.max(initial=0))
            if num_words > self.config.max_sentence_words:
                raise UsageError(
                    f"a {name} has {num_words} words but the model takes {self.config.max_sentence_words}: shorten it"
                )
        if int(batch.sentence_counts.max(initial=0)) > self.config.memory_size:
            raise UsageError(
                f"a story has {batch.sentence_counts.max()} sentences but the model has {self.config.memory_size} "
                "memories: "
                "drop the oldest ones"
            )


def _word_positions(texts: Tokens) -> Indices:
    """Position of each word in its text, [N]."""
    return np.arange(len(texts.ids)) - np.repeat(texts.offsets[:-1], texts.lengths)
