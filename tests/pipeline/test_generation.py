"""Text generation: batches, sampling, streaming, rules and limits."""

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


def build_pipeline(
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
        model.token_embedding.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    return GenerationPipeline(model.eval().pack(), tokenizer, dict(task))


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_continuations_do_not_depend_on_the_batch(kind: str) -> None:
    generator = build_pipeline(kind)
    config = GenerationConfig(max_new_tokens=20, samples=2)
    prompts = ["the cat", "a", "over the hill", "a dog"]
    batch = generator.generate(prompts, config)
    assert batch == [generator.generate([prompt], config)[0] for prompt in prompts]
    assert all(len(generation.ids) <= 20 for generations in batch for generation in generations)
    assert batch[0][0] != batch[0][1]


def test_the_same_seed_gives_the_same_sample_and_another_does_not() -> None:
    generator = build_pipeline()
    first, again, other = (generator("the cat", max_new_tokens=30, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert generator("the cat", max_new_tokens=30, greedy=True) == generator(
        "the cat", max_new_tokens=30, top_k=1, seed=9
    )


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_streamed_text_adds_up_to_the_continuation(kind: str) -> None:
    generator = build_pipeline(kind)
    fragments: list[str] = []
    ((generation,),) = generator.generate(["the"], GenerationConfig(max_new_tokens=60), on_text=fragments.append)
    assert "".join(fragments) == generation
    assert len(fragments) > 5
    assert generation.full_text == "the" + generation


def test_special_tokens_and_unused_ids_are_never_generated() -> None:
    generator = build_pipeline()
    with torch.no_grad():  # what must not be generated is by far the most probable
        for token_id in (generator.tokenizer.pad_id, generator.tokenizer.unk_id, generator.tokenizer.vocab_size + 1):
            generator.model.token_embedding.weight[token_id] *= 50
    generator.model.pack()
    for seed in range(5):
        generation = generator("the cat", max_new_tokens=20, seed=seed)
        assert not {*generation.ids} & (
            {*generator.tokenizer.special_ids} | {generator.tokenizer.vocab_size, generator.tokenizer.vocab_size + 1}
        )


def test_rules_of_the_caller_hold_beside_those_of_the_pipeline() -> None:
    generator = build_pipeline("characters")
    allowed = {token for tokens in generator.tokenizer.encode_batch(["a", "t"]) for token in tokens}
    only_allowed = ForbidSequences([[token] for token in range(generator.model.vocab_size) if token not in allowed])
    (continuations,) = generator.generate(
        ["the cat"], GenerationConfig(max_new_tokens=20, samples=3), rules=[only_allowed]
    )
    assert [len(continuation.ids) for continuation in continuations] == [20, 20, 20]  # the end is forbidden, too
    assert all(set(continuation) <= {"a", "t"} for continuation in continuations)


def test_a_prompt_begins_with_eos_where_documents_are_lines() -> None:
    of_files = build_pipeline(document="file")
    of_lines = build_pipeline(document="line")
    assert of_files._encode_prompt("a dog") == of_lines._encode_prompt("a dog")[1:]
    assert of_lines._encode_prompt("a dog")[0] == of_lines.model.config.eos_id == of_files._encode_prompt("")[0]


def test_truncated_and_unknown_tokens_of_a_prompt_are_counted() -> None:
    generator = build_pipeline("characters")
    generation = generator("the cat " * 20, max_new_tokens=3)
    assert generation.truncated == 160 - 32
    assert generator("the XXX", max_new_tokens=3).unknown == 3


def test_wrong_requests_are_rejected() -> None:
    generator = build_pipeline()
    with pytest.raises(UsageError, match="only one continuation of one text"):
        generator.generate(["a", "b"], GenerationConfig(), on_text=print)
    with pytest.raises(ConfigError, match="drop --greedy or --samples"):
        GenerationConfig(greedy=True, samples=2)
