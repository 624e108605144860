"""Text generation: batches, sampling, streaming, rules and limits."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.config.data import TokenizerConfig
from regard.config.inference import GenerationConfig
from regard.config.models import GptConfig, StackConfig
from regard.decoding.rules import ForbidSequences
from regard.errors import ConfigError, UsageError
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.pipeline.generation import GenerationPipeline
from regard.text.train import train_tokenizer

TEXTS = ["the cat sat on the mat\n", "a dog ran – naïve – over the hill 日本\n"]


def build_pipeline(kind: str = "bpe", **task: object) -> GenerationPipeline:
    """Pipeline of a small random model with a tokenizer of this kind; `task` is its metadata."""
    tokenizer = train_tokenizer(TEXTS * 9, TokenizerConfig(kind=kind)).without_special_tokens()
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
    config = GptConfig(
        vocab_size=tokenizer.vocab_size + 2,
        hidden_size=12,
        stack=stack,
        max_positions=64,
        eos_id=tokenizer.eos_id,
        positions="learned",
    )
    model = Gpt(config)
    initialize_weights(model, 2)
    with torch.no_grad():
        model.token_embedding.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    return GenerationPipeline(model.eval().pack(), tokenizer, dict(task))


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_continuations_do_not_depend_on_the_batch(kind: str) -> None:
    pipeline = build_pipeline(kind)
    config = GenerationConfig(max_new_tokens=20, samples=2)
    prompts = ["the cat", "a", "over the hill", "a dog"]
    batch = pipeline.generate(prompts, config)
    alone = [pipeline.generate([prompt], config)[0] for prompt in prompts]
    assert batch == alone
    assert all(len(continuation.ids) <= 20 for continuation in itertools.chain.from_iterable(batch))
    first, second = batch[0]
    assert first != second


def test_the_same_seed_gives_the_same_sample_and_another_does_not() -> None:
    pipeline = build_pipeline()
    sample = pipeline("the cat", max_new_tokens=30, seed=1)
    assert pipeline("the cat", max_new_tokens=30, seed=1) == sample
    assert pipeline("the cat", max_new_tokens=30, seed=2) != sample


def test_greedy_search_is_sampling_from_the_most_probable_token() -> None:
    pipeline = build_pipeline()
    greedy = pipeline("the cat", max_new_tokens=30, greedy=True)
    assert pipeline("the cat", max_new_tokens=30, top_k=1, seed=9) == greedy


@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram"])
def test_streamed_text_adds_up_to_the_continuation(kind: str) -> None:
    pipeline = build_pipeline(kind)
    fragments: list[str] = []
    ((continuation,),) = pipeline.generate(["the"], GenerationConfig(max_new_tokens=60), on_text=fragments.append)
    assert "".join(fragments) == continuation
    assert len(fragments) > 5
    assert continuation.full_text == "the" + continuation


@pytest.mark.parametrize("has_eos", [True, False])
def test_the_logprob_of_a_text_cut_by_the_limit_is_that_of_its_tokens(has_eos: bool) -> None:
    pipeline = build_pipeline()
    model = pipeline.model.torch_model()
    if not has_eos:
        model = Gpt(model.config.override({"eos_id": -1}))
        model.load_state_dict(pipeline.model.torch_model().state_dict())
        pipeline = GenerationPipeline(model.eval(), pipeline.tokenizer, {})
    generation = pipeline("the cat", max_new_tokens=5, seed=1)
    assert not generation.finished and len(generation.ids) == 5
    (prompt_ids,) = pipeline.tokenizer.encode_batch(["the cat"])
    ids = [*prompt_ids, *generation.ids]
    logprobs = model.logits(Tokens.from_rows([ids[:-1]])).log_softmax(-1)
    expected = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])][-5:].sum().item()
    assert generation.logprob == pytest.approx(expected, abs=1e-4)


def test_special_tokens_and_unused_ids_are_never_generated() -> None:
    generator = build_pipeline()
    with torch.no_grad():  # what must not be generated is by far the most probable
        for token_id in (generator.tokenizer.pad_id, generator.tokenizer.unk_id, generator.tokenizer.vocab_size + 1):
            generator.model.token_embedding.weight[token_id] *= 50
    generator.model.pack()
    unused_ids = {generator.tokenizer.vocab_size, generator.tokenizer.vocab_size + 1}
    for seed in range(5):
        continuation = generator("the cat", max_new_tokens=20, seed=seed)
        assert len(continuation.ids) > 0
        assert not set(continuation.ids) & set(generator.tokenizer.special_ids)
        assert not set(continuation.ids) & unused_ids


def test_rules_of_the_caller_hold_beside_those_of_the_pipeline() -> None:
    pipeline = build_pipeline("characters")
    allowed_ids = set(pipeline.tokenizer.encode("at").ids)
    forbidden = [[token_id] for token_id in range(pipeline.model.config.vocab_size) if token_id not in allowed_ids]
    config = GenerationConfig(max_new_tokens=20, samples=3)
    (continuations,) = pipeline.generate(["the cat"], config, rules=[ForbidSequences(forbidden)])
    assert [len(continuation.ids) for continuation in continuations] == [20, 20, 20]  # the end is forbidden, too
    assert all(set(continuation) <= {"a", "t"} for continuation in continuations)


def test_a_prompt_begins_with_eos_where_documents_are_lines() -> None:
    of_files = build_pipeline(document="file")
    of_lines = build_pipeline(document="line")
    eos_id = of_lines.model.config.eos_id
    assert of_lines._encode_prompt("a dog") == [eos_id, *of_files._encode_prompt("a dog")]
    assert of_files._encode_prompt("a dog")[0] != eos_id
    assert of_files._encode_prompt("")[0] == eos_id


def test_truncated_and_unknown_tokens_of_a_prompt_are_counted() -> None:
    pipeline = build_pipeline("characters")
    assert pipeline("the cat " * 20, max_new_tokens=3).truncated == 160 - 32
    assert pipeline("the XXX", max_new_tokens=3).unknown == 3


def test_streaming_several_texts_and_several_greedy_samples_are_rejected() -> None:
    pipeline = build_pipeline()
    with pytest.raises(UsageError, match="only one continuation of one text"):
        pipeline.generate(["a", "b"], GenerationConfig(), on_text=print)
    with pytest.raises(ConfigError, match="drop --greedy or --samples"):
        GenerationConfig(greedy=True, samples=2)
