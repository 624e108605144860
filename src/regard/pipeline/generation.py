"""`GenerationPipeline`: continues texts with a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np

from regard.attention.trace import is_tracing, suspend_traces
from regard.config.inference import DecodingConfig, GenerationConfig, RecordConfig
from regard.data.documents import Documents
from regard.decoding.generator import LanguageModel
from regard.decoding.rules import ForbidSequences, History, Rule
from regard.decoding.search import Hypothesis, search
from regard.engine.backend import CausalBackend
from regard.errors import UsageError
from regard.packed_tokens import Candidates, Tokens
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.trace_records import (
    Axes,
    capture_text,
    collect_attention,
    collect_qkv,
    decoding_steps,
    position_encodings,
)
from regard.pipeline.records.translation_records import token_word_ids
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.predictions import PredictedNextTokens
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.view.record.parts import DecodingStep, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

TASK = "causal-lm"
MIN_BLOCKS = 100  # of a test set, where it has as many rows
AXES = {"decoder.self": Axes("target", "source", is_generated=True, is_causal=True)}
INCOMPLETE_CHARACTER = "\ufffd"  # what decoding gives for a character whose bytes are not all generated yet
OnText = Callable[[str], object]


class GenerationDict(TypedDict):
    """JSON form of a `Generation`."""

    prompt: str
    text: str  # of the continuation
    ids: list[int]  # of the continuation
    logprob: float  # in nats
    finished: bool  # whether the model, not the limit, ended it
    truncated: int  # tokens at the beginning of the prompt that were not read
    unknown: int  # unknown tokens of the prompt
    backend: str  # what computed it, and in which precision: engine int8


class Generation(PipelineResult, str):
    """A continuation: a str with its prompt, tokens and log-probability."""

    prompt: str
    ids: list[int]  # of the continuation
    logprob: float  # sum over its tokens, and eos where the model generated it
    finished: bool  # whether the model, not the limit, ended it
    truncated: int  # tokens at the beginning of the prompt that were not read
    unknown: int  # unknown tokens of the prompt

    @property
    def full_text(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self

    def to_dict(self) -> GenerationDict:
        """JSON form of the continuation and its prompt."""
        return {
            "prompt": self.prompt,
            "text": str(self),
            "ids": list(self.ids),
            "logprob": round(self.logprob, 6),
            "finished": self.finished,
            "truncated": self.truncated,
            "unknown": self.unknown,
            "backend": self.backend,
        }

    @property
    def steps(self) -> tuple[DecodingStep, ...]:
        """The generated tokens, each with its probability and the most probable candidates."""
        all_steps = super().steps
        num_generated = len(self.ids) + self.finished
        return all_steps[len(all_steps) - num_generated :]


class TextStreamer:
    """Rule that forbids nothing and reports the text as it is generated."""

    def __init__(self, decode: Callable[[Sequence[int]], str], on_text: OnText) -> None:
        self.decode = decode
        self.on_text = on_text
        self.num_reported = 0  # characters

    def extra_candidates(self, length: int) -> int:
        return 0

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        self.report(self.decode(history.tokens[0].tolist()))
        return candidates

    def report(self, text: str, *, is_last: bool = False) -> None:
        """Report what is new; an incomplete character waits for its remaining bytes."""
        if len(text) > self.num_reported and (is_last or not text.endswith(INCOMPLETE_CHARACTER)):
            self.on_text(text[self.num_reported :])
            self.num_reported = len(text)


class GenerationPipeline(PicklablePipeline):
    """Continues texts.

    **Traces.** Generating is never traced: an open `trace` receives, once a call has its answers, the attention of the
    backend that answered over each prompt and its continuation, at the sites `decoder.N.self`,
    [texts, heads, queries, keys]. It has one row for each continuation, in the order of the prompts; rows that are
    shorter than others end in zeros. Queries are all tokens that the model read: each one predicted the next. Of a text
    that is longer than the model's positions, they are the last ones, read in one pass.
    """

    task_name = TASK

    def __init__(self, model: CausalBackend, tokenizer: Tokenizer, task: dict[str, Any]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        text_ids = set(range(tokenizer.vocab_size)) - tokenizer.special_ids
        self._forbidden_ids = sorted(set(range(model.config.vocab_size)) - text_ids - {model.config.eos_id})
        # a prompt begins a document where documents were lines or paragraphs; in whole files it may stand anywhere
        self._starts_document = task.get("document", "file") != "file"

    def __call__(self, prompt: str = "", **settings: Any) -> Generation:
        """Generate one continuation of a text; settings are those of `GenerationConfig`."""
        return self.generate([prompt], GenerationConfig(**settings))[0][0]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        on_text: OnText | None = None,
        rules: Sequence[Rule] = (),
    ) -> list[list[Generation]]:
        """Generate `config.samples` continuations of each prompt, which differ by their random draws alone.

        `hear` receives a single continuation of a single prompt as it is generated. `rules` are applied after the
        pipeline's own, which forbids special tokens and unused ids.
        """
        config = config or GenerationConfig()
        model = self.model.generator()
        if on_text is not None and (len(prompts) != 1 or config.samples != 1):
            raise UsageError("only one continuation of one text can be streamed while it is generated")
        prompt_ids = [self._encode_prompt(prompt) for prompt in prompts]
        all_rules: list[Rule] = []
        if self._forbidden_ids:
            all_rules.append(ForbidSequences([[token_id] for token_id in self._forbidden_ids]))
        all_rules += rules
        streamer = None
        if on_text is not None:
            streamer = TextStreamer(partial(self._decode_continuation, prompt_ids[0]), on_text)
            all_rules.append(streamer)
        with suspend_traces():
            hypotheses = self._search(model, prompt_ids, config, all_rules)
        generations = []
        for prompt, ids, prompt_hypotheses in zip(prompts, prompt_ids, hypotheses, strict=True):
            continuations = [self._build_generation(prompt, ids, hypothesis) for hypothesis in prompt_hypotheses]
            generations.append(continuations)
        if streamer is not None:
            streamer.report(generations[0][0], is_last=True)
        self._trace(model, prompt_ids, hypotheses)
        return generations

    def _trace(
        self,
        model: LanguageModel[Any],
        prompt_ids: Sequence[list[int]],
        hypotheses: Sequence[Sequence[Hypothesis]],
    ) -> None:
        """Give the open traces the attention over each prompt and its continuations."""
        if not is_tracing() or not prompt_ids:
            return
        max_positions = self.model.config.max_positions
        rows = []
        for ids, prompt_hypotheses in zip(prompt_ids, hypotheses, strict=True):
            rows += [[*ids, *hypothesis.ids][-max_positions:] for hypothesis in prompt_hypotheses]
        model.read(Tokens.from_rows(rows))

    def _encode_prompt(self, prompt: str) -> list[int]:
        (ids,) = self.tokenizer.encode_batch([prompt])
        if ids and not self._starts_document:
            return ids
        if self.model.config.eos_id < 0:
            raise UsageError("this model has no token that begins a text: give a text to continue")
        return [self.model.config.eos_id, *ids]

    def _search(
        self,
        model: LanguageModel[Any],
        prompt_ids: Sequence[list[int]],
        config: GenerationConfig,
        rules: Sequence[Rule],
    ) -> list[list[Hypothesis]]:
        """Search continuations of each prompt; prompts of the same length form a batch."""
        decoding = DecodingConfig(
            beam=1,
            nbest=config.samples,
            sample=not config.greedy,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            no_repeat_ngram=config.no_repeat_ngram,
            seed=config.seed,
        )
        hypotheses: list[list[Hypothesis]] = [[]] * len(prompt_ids)
        lengths = np.array([len(ids) for ids in prompt_ids])
        for length in sorted(set(lengths.tolist())):
            indices = np.flatnonzero(lengths == length).tolist()
            tokens = Tokens.from_rows([prompt_ids[index] for index in indices])
            max_lengths = [config.max_new_tokens] * len(indices)
            batch = search(model, tokens, decoding, max_lengths=max_lengths, rules=rules)
            for index, prompt_hypotheses in zip(indices, batch, strict=True):
                hypotheses[index] = prompt_hypotheses
        return hypotheses

    def _decode_continuation(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """Decode tokens together with the prompt, as white space may depend on it; return what follows the prompt."""
        return self.tokenizer.decode([*prompt_ids, *ids])[len(self.tokenizer.decode(prompt_ids)) :]

    def _build_generation(self, prompt: str, prompt_ids: list[int], hypothesis: Hypothesis) -> Generation:
        max_positions = self.model.config.max_positions
        generation = Generation(self._decode_continuation(prompt_ids, hypothesis.ids))
        generation.prompt = prompt
        generation.ids = hypothesis.ids
        generation.logprob = hypothesis.logprob
        generation.finished = hypothesis.finished
        generation.backend = self.model.generator().backend_name
        generation.truncated = len(prompt_ids) - max_positions // 2 if len(prompt_ids) > max_positions else 0
        generation.unknown = prompt_ids.count(self.tokenizer.unk_id)
        return attach_recorder(generation, partial(self._build_record, generation, prompt_ids))

    def _build_record(self, generation: Generation, prompt_ids: list[int], config: RecordConfig) -> Record:
        """Record the attention over the full text; each row is named after the token that it predicts.

        Of a text longer than the model's positions, the last tokens are read in one pass.
        """
        has_eos = generation.finished and self.model.config.eos_id >= 0
        eos_ids = [self.model.config.eos_id] if has_eos else []
        full_ids = [*prompt_ids, *generation.ids, *eos_ids]
        max_positions = self.model.config.max_positions
        num_omitted = max(0, len(full_ids) - 1 - max_positions)
        visible_ids = full_ids[num_omitted:]
        if len(visible_ids) < 2:
            raise UsageError("nothing was read and nothing generated: there is no attention to show")
        source_ids = visible_ids[:-1]
        target_ids = visible_ids[1:]
        model = self.model.generator()
        sites = model.attention_sites()
        if config.store_qkv == "best":
            last_site = [*sites][-1]
            config = config.override({"store_qkv": f"{last_site}:0"})
        with capture_text(config, sites, len(source_ids), len(source_ids)) as captured:
            logprobs = model.next_token_logprobs(Tokens.from_rows([source_ids]))
        omissions: tuple[Omission, ...] = ()
        if num_omitted:
            reason = f"the text has {len(full_ids):,} tokens, the model reads {max_positions:,} at a time"
            omissions = (Omission(reason, f"the first {num_omitted:,}, read while the text was shorter"),)
        text = generation.full_text
        word_ids = self._word_ids(generation, prompt_ids, len(eos_ids))[num_omitted:]
        subwords = self.tokenizer.subwords
        texts = {
            "source": RecordText.from_subwords(text, subwords(source_ids), word_ids[:-1]),
            "target": RecordText.from_subwords(text, subwords(target_ids), word_ids[1:]),
        }
        return Record(
            generation.prompt or text,
            texts,
            collect_attention([captured.trace], AXES, model.config),
            task=TASK,
            steps=decoding_steps(logprobs, target_ids, subwords, config.candidates),
            positions=position_encodings(model, len(source_ids)),
            qkv=collect_qkv(captured),
            omissions=omissions,
        )

    def _word_ids(self, generation: Generation, prompt_ids: list[int], num_eos: int) -> list[int]:
        """Word of the full text that each token belongs to; -1 for special tokens."""
        special_ids = self.tokenizer.special_ids
        num_special = sum(token_id in special_ids for token_id in prompt_ids)
        content_ids = [*prompt_ids[num_special:], *generation.ids]
        content_words = token_word_ids(self.tokenizer, generation.full_text, content_ids)
        return [*[-1] * num_special, *content_words, *[-1] * num_eos]

    def predict_examples(self, examples: Documents) -> PredictedNextTokens:
        """Predict the tokens of running text, in blocks; the result is the argument of every metric."""
        return self._predict(examples, min_blocks=MIN_BLOCKS)

    def _predict(self, documents: Documents, min_blocks: int = 1) -> PredictedNextTokens:
        from regard.tasks.causal_lm import predict_next_tokens

        if self.tokenizer.eos_id < 0:
            raise UsageError("this model has no token between documents: it cannot be evaluated on documents")
        stream = TokenStream.from_documents(documents, self.tokenizer, self.model.config.max_positions - 1)
        num_characters = sum(map(len, documents.texts))
        return predict_next_tokens(self.model.generator(), stream, num_characters, min_blocks=min_blocks)

    def evaluate(self, documents: Documents, *, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """Loss of running text in nats, per token and per character, perplexity of a token, and metrics by name."""
        predictions = self._predict(documents)
        assert predictions.blocks is not None
        return {
            "documents": len(documents),
            "tokens": int(predictions.blocks.tokens.sum()),
            "characters": sum(map(len, documents.texts)),
            **Scoring(self.task_name, tuple(metrics)).compute_final(predictions),
        }
