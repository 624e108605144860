"""Continuing texts: prompts alone and in company, draws, what is heard, rules and limits."""

from __future__ import annotations

import pytest
import torch

from regard.config.data import TokenizerConfig
from regard.config.inference import GenerationConfig
from regard.config.models import GptConfig, StackConfig
from regard.decoding.rules import ForbidSequences
from regard.errors import ConfigError, UsageError
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.pipeline.generation import GenerationPipeline
from regard.text.train import train_tokenizer

TEXTS = ["the cat sat on the mat\n", "a dog ran – naïve – over the hill 日本\n"]


def pipeline(
    kind: str = "bpe", positions: str = "learned", texts: list[str] | None = None, **task: object
) -> GenerationPipeline:
    tokenizer = train_tokenizer((texts or TEXTS) * 9, TokenizerConfig(kind=kind)).without_special_tokens()
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
    config = GptConfig(
        vocab_size=tokenizer.vocab_size + 2,
        hidden_size=12,
        stack=stack,
        max_positions=64,
        eos_id=tokenizer.eos_id,
        positions=positions,
    )
    model = Gpt(config)
    initialize_weights(model, 2)
    with torch.no_grad():
        model.words.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    return GenerationPipeline(model.eval().pack(), tokenizer, dict(task))


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_a_text_in_company_is_the_same_as_alone(kind: str) -> None:
    writer, config = pipeline(kind), GenerationConfig(max_new_tokens=20, samples=2)
    prompts = ["the cat", "a", "over the hill", "a dog"]
    together = writer.generate(prompts, config)
    assert together == [writer.generate([prompt], config)[0] for prompt in prompts]
    assert all(len(one.ids) <= 20 for some in together for one in some)
    assert together[0][0] != together[0][1]


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    writer = pipeline()
    first, again, other = (writer("the cat", max_new_tokens=30, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert writer("the cat", max_new_tokens=30, greedy=True) == writer("the cat", max_new_tokens=30, top_k=1, seed=9)


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_what_is_heard_bit_by_bit_is_the_text(kind: str) -> None:
    writer, heard = pipeline(kind), list[str]()
    ((made,),) = writer.generate(["the"], GenerationConfig(max_new_tokens=60), hear=heard.append)
    assert "".join(heard) == made
    assert len(heard) > 5
    assert made.full_text == "the" + made


def test_special_tokens_and_numbers_without_text_are_never_written() -> None:
    writer = pipeline()
    with torch.no_grad():  # what must not be written is by far the likeliest
        for number in (writer.tokenizer.pad_id, writer.tokenizer.unk_id, writer.tokenizer.vocab_size + 1):
            writer.model.words.weight[number] *= 50
    writer.model.pack()
    for seed in range(5):
        made = writer("the cat", max_new_tokens=20, seed=seed)
        assert not {*made.ids} & (
            {*writer.tokenizer.special_ids} | {writer.tokenizer.vocab_size, writer.tokenizer.vocab_size + 1}
        )


def test_rules_of_the_caller_hold_beside_those_of_the_pipeline() -> None:
    writer = pipeline("characters")
    allowed = {token for tokens in writer.tokenizer.encode_batch(["a", "t"]) for token in tokens}
    only_these = ForbidSequences([[token] for token in range(writer.model.vocab_size) if token not in allowed])
    (continuations,) = writer.generate(["the cat"], GenerationConfig(max_new_tokens=20, samples=3), rules=[only_these])
    assert [len(continuation.ids) for continuation in continuations] == [20, 20, 20]  # the end is forbidden, too
    assert all(set(continuation) <= {"a", "t"} for continuation in continuations)


def test_a_document_begins_at_a_boundary_where_documents_are_lines() -> None:
    somewhere, beginning = pipeline(document="file"), pipeline(document="line")
    assert somewhere._encode_prompt("a dog") == beginning._encode_prompt("a dog")[1:]
    assert beginning._encode_prompt("a dog")[0] == beginning.model.config.eos_id == somewhere._encode_prompt("")[0]


def test_what_of_a_long_or_strange_prompt_was_not_read_is_told() -> None:
    writer = pipeline("characters")
    made = writer("the cat " * 20, max_new_tokens=3)
    assert made.truncated == 160 - 32
    assert writer("the XXX", max_new_tokens=3).unknown == 3


def test_what_is_refused() -> None:
    writer = pipeline()
    with pytest.raises(UsageError, match="only one continuation of one text"):
        writer.generate(["a", "b"], GenerationConfig(), hear=print)
    with pytest.raises(ConfigError, match="drop --greedy or --samples"):
        GenerationConfig(greedy=True, samples=2)
