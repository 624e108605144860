"""`GenerationPipeline`: a text in, its continuation out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from regard.attention.positions import Rotary
from regard.config.inference import DecodingConfig, GenerationConfig, RecordConfig
from regard.data.documents import Documents
from regard.decoding.rules import ForbidSequences, History, Rule
from regard.decoding.search import Hypothesis, search
from regard.errors import UsageError
from regard.models.gpt import Gpt
from regard.pipeline.records.attention import Axes, collect_attention, collect_qkv, decoding_steps, position_codes
from regard.pipeline.records.attention import capture_text as watched
from regard.pipeline.records.translation import token_word_ids
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.causal_lm import causal_lm_scores
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.tokens import Candidates, Tokens
from regard.view.record.parts import DecodingStep, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

AXES = {"decoder.self": Axes("target", "source", produced=True, causal=True)}
HALF = "\ufffd"  # shown for a character whose bytes are not all there yet
Hear = Callable[[str], object]


class Generation(PipelineResult, str):
    """A continuation: a text that knows what it continues."""

    prompt: str
    ids: list[int]  # of the continuation
    logprob: float  # sum of the log-probabilities of its tokens, and of the end where there is one
    finished: bool  # whether the model ended it, not the limit
    truncated: int  # tokens at the prompt's beginning that were not read
    unknown: int  # tokens of the prompt that the model does not know

    @property
    def full_text(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self

    @property
    def steps(self) -> tuple[DecodingStep, ...]:
        """The tokens that were produced, each with its probability and what else was thought of."""
        every = super().steps
        produced = len(self.ids) + self.finished
        return every[len(every) - produced :]


class TextStreamer:
    """A rule that forbids nothing and tells the text as it is written."""

    def __init__(self, text: Callable[[Sequence[int]], str], hear: Hear) -> None:
        self.text, self.on_text = text, hear
        self.num_reported = 0

    def extra_candidates(self, length: int) -> int:
        return 0

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        self.report(self.text(history.tokens[0].tolist()))
        return candidates

    def report(self, text: str, *, last: bool = False) -> None:
        """Tell what is new; half a character waits for the rest of it."""
        if len(text) > self.num_reported and (last or not text.endswith(HALF)):
            self.on_text(text[self.num_reported :])
            self.num_reported = len(text)


class GenerationPipeline:
    """Texts in, continuations out."""

    def __init__(self, model: Gpt, tokenizer: Tokenizer, task: dict[str, Any]) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task
        known = set(range(tokenizer.vocab_size)) - tokenizer.special_ids
        self._never = sorted(set(range(model.config.vocab_size)) - known - {model.eos_id})
        # where documents were lines or paragraphs a text begins one; in a whole file it stands somewhere
        self._begins = task.get("document", "file") != "file"

    def __call__(self, prompt: str = "", **settings: Any) -> Generation:
        """Return one continuation of a text; settings are those of `GenerationConfig`."""
        return self.generate([prompt], GenerationConfig(**settings))[0][0]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        hear: Hear | None = None,
        rules: Sequence[Rule] = (),
    ) -> list[list[Generation]]:
        """Return the continuations of each text; those of one text differ by their draws alone.

        `hear` is told a single continuation of a single text bit by bit, while it is written. `rules` forbid tokens
        beyond those that are never written.
        """
        config = config or GenerationConfig()
        if hear is not None and (len(prompts) != 1 or config.samples != 1):
            raise UsageError("only one continuation of one text can be heard while it is written")
        read = [self._read(prompt) for prompt in prompts]
        every_rule: list[Rule] = [ForbidSequences([[token] for token in self._never])] if self._never else []
        every_rule += rules
        heard = None
        if hear is not None:
            heard = TextStreamer(lambda ids: self._text(read[0], ids), hear)
            every_rule.append(heard)
        found = self._search(read, config, every_rule)
        made = [
            [self._generated(prompt, ids, one) for one in some]
            for prompt, ids, some in zip(prompts, read, found, strict=True)
        ]
        if heard is not None:
            heard.report(made[0][0], last=True)
        return made

    def _read(self, prompt: str) -> list[int]:
        (ids,) = self.tokenizer.encode_batch([prompt])
        return ids if ids and not self._begins else [*self._boundary(), *ids]

    def _boundary(self) -> list[int]:
        if self.model.config.eos_id < 0:
            raise UsageError("this model has no token that begins a text: give a text to continue")
        return [self.model.config.eos_id]

    def _search(
        self, rows: Sequence[list[int]], config: GenerationConfig, rules: Sequence[Rule]
    ) -> list[list[Hypothesis]]:
        """Return what is written after each row; rows of one length are written together."""
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
        found: list[list[Hypothesis]] = [[]] * len(rows)
        lengths = np.array([len(row) for row in rows])
        for length in sorted(set(lengths.tolist())):
            numbers = np.flatnonzero(lengths == length).tolist()
            tokens = Tokens.from_rows([rows[number] for number in numbers])
            limits = [config.max_new_tokens] * len(numbers)
            for number, some in zip(
                numbers, search(self.model, tokens, decoding, max_lengths=limits, rules=rules), strict=True
            ):
                found[number] = some
        return found

    def _text(self, given: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of tokens that follow others."""
        return self.tokenizer.decode([*given, *ids])[len(self.tokenizer.decode(given)) :]

    def _generated(self, prompt: str, given: list[int], found: Hypothesis) -> Generation:
        made = Generation(self._text(given, found.ids))
        made.prompt, made.ids, made.logprob, made.finished = prompt, found.ids, found.logprob, found.finished
        places = self.model.config.max_positions
        made.truncated = len(given) - places // 2 if len(given) > places else 0
        made.unknown = given.count(self.tokenizer.unk_id)
        return attach_recorder(made, partial(self._recorded, made, given))

    def _recorded(self, made: Generation, given: list[int], seeing: RecordConfig) -> Record:
        """Return where the model looked, row by row: each is named after the token that it told.

        Of what is longer than the model reads at a time, the last tokens are read again at once.
        """
        ends = [self.model.eos_id] if made.finished and self.model.config.eos_id >= 0 else []
        whole = [*given, *made.ids, *ends]
        places = self.model.config.max_positions
        left_out = max(0, len(whole) - 1 - places)
        shown = whole[left_out:]
        if len(shown) < 2:
            raise UsageError("nothing was read and nothing written: there is nothing to see")
        read, told = shown[:-1], shown[1:]
        sites = self.model.attention_sites()
        config = seeing.override({"store_qkv": f"{[*sites][-1]}:0"}) if seeing.store_qkv == "best" else seeing
        with watched(config, sites, len(read), len(read)) as seen:
            logits = self.model.logits(Tokens.from_rows([read])).float()
        logp = logits.log_softmax(-1).cpu().numpy()
        cut: tuple[Omission, ...] = ()
        if left_out:
            why = f"the text has {len(whole):,} tokens, the model reads {places:,} at a time"
            cut = (Omission(why, f"the first {left_out:,}, which were read while the text was shorter"),)
        words = self._words(made, given, ends)
        sides = {
            "source": RecordText.from_subwords(made.full_text, self.tokenizer.subwords(read), words[left_out:-1]),
            "target": RecordText.from_subwords(made.full_text, self.tokenizer.subwords(told), words[left_out + 1 :]),
        }
        scheme, width = self.model.positions, self.model.config.hidden_size
        turned = width // self.model.config.stack.num_heads if isinstance(scheme, Rotary) else width
        return Record(
            made.prompt or made.full_text,
            sides,
            collect_attention([seen.trace], AXES),
            task="generate",
            steps=decoding_steps(logp, told, self.tokenizer.subwords, seeing.top_k),
            places=position_codes(scheme, turned, max(len(read), 32)),
            inside=collect_qkv(seen),
            cut=cut,
        )

    def _words(self, made: Generation, given: list[int], ends: list[int]) -> list[int]:
        """Return the word of the whole text that each token is of."""
        special = self.tokenizer.special_ids
        opening = len(given) - sum(number not in special for number in given)
        content = [*given[opening:], *made.ids]
        return [*[-1] * opening, *token_word_ids(self.tokenizer, made.full_text, content), *[-1] * len(ends)]

    def scores(self, documents: Documents) -> dict[str, Any]:
        """Return the loss of running text in nats, a token and a character, and the perplexity of a token."""
        if self.tokenizer.eos_id < 0:
            raise UsageError("this model has no token between documents: its loss over documents means nothing")
        text = TokenStream.of(documents, self.tokenizer, self.model.config.max_positions - 1)
        characters = sum(map(len, documents.texts))
        facts: dict[str, Any] = {"documents": len(documents), "tokens": len(text.ids), "characters": characters}
        return {**facts, **causal_lm_scores(self.model, text, characters)}
