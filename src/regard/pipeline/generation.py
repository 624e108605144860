"""`GenerationPipeline`: a text in, its continuation out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from regard.attention.positions import Rotary
from regard.config.decoding import DecodingConfig
from regard.config.generation import GenerationConfig
from regard.config.seeing import SeeingConfig
from regard.data.documents import Documents
from regard.decoding.rules import Forbid, History, Rule
from regard.decoding.search import Hypothesis, search
from regard.errors import UsageError
from regard.models.gpt import Gpt
from regard.pipeline.gathering import Axes, gathered, insides, places_of
from regard.pipeline.gathering import seeing as watched
from regard.pipeline.seeable import Seeable, seen_by
from regard.pipeline.seeing import word_numbers
from regard.pipeline.steps import steps_of
from regard.tasks.causal import causal_scores
from regard.tasks.language import Stream
from regard.text.tokenizer import Tokenizer
from regard.tokens import Candidates, Tokens
from regard.view.record import Cut, Record, Side, Step

AXES = {"decoder.self": Axes("target", "source", produced=True, causal=True)}
HALF = "\ufffd"  # shown for a character whose bytes are not all there yet
Hear = Callable[[str], object]


class Generated(Seeable, str):
    """A continuation: a text that knows what it continues."""

    prompt: str
    ids: list[int]  # of the continuation
    logp: float  # sum of the log-probabilities of its tokens, and of the end where there is one
    finished: bool  # whether the model ended it, not the limit
    cut: int  # tokens at the prompt's beginning that were not read
    unknown: int  # tokens of the prompt that the model does not know

    @property
    def whole(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self

    @property
    def steps(self) -> tuple[Step, ...]:
        """The tokens that were produced, each with its probability and what else was thought of."""
        every = super().steps
        produced = len(self.ids) + self.finished
        return every[len(every) - produced :]


class Heard:
    """A rule that forbids nothing and tells the text as it is written."""

    def __init__(self, text: Callable[[Sequence[int]], str], hear: Hear) -> None:
        self.text, self.hear = text, hear
        self.told = 0

    def reach(self, length: int) -> int:
        return 0

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        self.tell(self.text(history.tokens[0].tolist()))
        return candidates

    def tell(self, text: str, *, last: bool = False) -> None:
        """Tell what is new; half a character waits for the rest of it."""
        if len(text) > self.told and (last or not text.endswith(HALF)):
            self.hear(text[self.told :])
            self.told = len(text)


class GenerationPipeline:
    """Texts in, continuations out."""

    def __init__(self, model: Gpt, tokenizer: Tokenizer, task: dict[str, Any]) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task
        known = set(range(tokenizer.size)) - tokenizer.specials
        self._never = sorted(set(range(model.config.vocabulary)) - known - {model.end_token})
        # where documents were lines or paragraphs a text begins one; in a whole file it stands somewhere
        self._begins = task.get("document", "file") != "file"

    def __call__(self, prompt: str = "", **settings: Any) -> Generated:
        """Return one continuation of a text; settings are those of `GenerationConfig`."""
        return self.generate([prompt], GenerationConfig(**settings))[0][0]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        hear: Hear | None = None,
        rules: Sequence[Rule] = (),
    ) -> list[list[Generated]]:
        """Return the continuations of each text; those of one text differ by their draws alone.

        `hear` is told a single continuation of a single text bit by bit, while it is written. `rules` forbid tokens
        beyond those that are never written.
        """
        config = config or GenerationConfig()
        if hear is not None and (len(prompts) != 1 or config.count != 1):
            raise UsageError("only one continuation of one text can be heard while it is written")
        read = [self._read(prompt) for prompt in prompts]
        every_rule: list[Rule] = [Forbid([[token] for token in self._never])] if self._never else []
        every_rule += rules
        heard = None
        if hear is not None:
            heard = Heard(lambda ids: self._text(read[0], ids), hear)
            every_rule.append(heard)
        found = self._search(read, config, every_rule)
        made = [
            [self._generated(prompt, ids, one) for one in some]
            for prompt, ids, some in zip(prompts, read, found, strict=True)
        ]
        if heard is not None:
            heard.tell(made[0][0], last=True)
        return made

    def _read(self, prompt: str) -> list[int]:
        (ids,) = self.tokenizer.encode_all([prompt])
        return ids if ids and not self._begins else [*self._boundary(), *ids]

    def _boundary(self) -> list[int]:
        if self.model.config.end < 0:
            raise UsageError("this model has no token that begins a text: give a text to continue")
        return [self.model.config.end]

    def _search(
        self, rows: Sequence[list[int]], config: GenerationConfig, rules: Sequence[Rule]
    ) -> list[list[Hypothesis]]:
        """Return what is written after each row; rows of one length are written together."""
        decoding = DecodingConfig(
            beam=1,
            nbest=config.count,
            sample=not config.greedy,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            no_repeat=config.no_repeat,
            seed=config.seed,
        )
        found: list[list[Hypothesis]] = [[]] * len(rows)
        lengths = np.array([len(row) for row in rows])
        for length in sorted(set(lengths.tolist())):
            numbers = np.flatnonzero(lengths == length).tolist()
            tokens = Tokens.from_rows([rows[number] for number in numbers])
            limits = [config.most] * len(numbers)
            for number, some in zip(
                numbers, search(self.model, tokens, decoding, limits=limits, rules=rules), strict=True
            ):
                found[number] = some
        return found

    def _text(self, given: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of tokens that follow others."""
        return self.tokenizer.decode([*given, *ids])[len(self.tokenizer.decode(given)) :]

    def _generated(self, prompt: str, given: list[int], found: Hypothesis) -> Generated:
        made = Generated(self._text(given, found.ids))
        made.prompt, made.ids, made.logp, made.finished = prompt, found.ids, found.total, found.finished
        places = self.model.config.places
        made.cut = len(given) - places // 2 if len(given) > places else 0
        made.unknown = given.count(self.tokenizer.unknown)
        return seen_by(made, partial(self._recorded, made, given))

    def _recorded(self, made: Generated, given: list[int], seeing: SeeingConfig) -> Record:
        """Return where the model looked, row by row: each is named after the token that it told.

        Of what is longer than the model reads at a time, the last tokens are read again at once.
        """
        ends = [self.model.end_token] if made.finished and self.model.config.end >= 0 else []
        whole = [*given, *made.ids, *ends]
        places = self.model.config.places
        left_out = max(0, len(whole) - 1 - places)
        shown = whole[left_out:]
        if len(shown) < 2:
            raise UsageError("nothing was read and nothing written: there is nothing to see")
        read, told = shown[:-1], shown[1:]
        sites = self.model.sites()
        config = seeing.override({"inside": f"{[*sites][-1]}:0"}) if seeing.inside == "best" else seeing
        with watched(config, sites, len(read), len(read)) as seen:
            logits = self.model.logits(Tokens.from_rows([read])).float()
        logp = logits.log_softmax(-1).cpu().numpy()
        cut: tuple[Cut, ...] = ()
        if left_out:
            why = f"the text has {len(whole):,} tokens, the model reads {places:,} at a time"
            cut = (Cut(why, f"the first {left_out:,}, which were read while the text was shorter"),)
        words = self._words(made, given, ends)
        sides = {
            "source": Side.of_pieces(made.whole, self.tokenizer.pieces(read), words[left_out:-1]),
            "target": Side.of_pieces(made.whole, self.tokenizer.pieces(told), words[left_out + 1 :]),
        }
        scheme, width = self.model.positions, self.model.config.width
        turned = width // self.model.config.stack.heads if isinstance(scheme, Rotary) else width
        return Record(
            made.prompt or made.whole,
            sides,
            gathered([seen.trace], AXES),
            task="generate",
            steps=steps_of(logp, told, self.tokenizer.pieces, seeing.top),
            places=places_of(scheme, turned, max(len(read), 32)),
            inside=insides(seen),
            cut=cut,
        )

    def _words(self, made: Generated, given: list[int], ends: list[int]) -> list[int]:
        """Return the word of the whole text that each token is of."""
        special = self.tokenizer.specials
        opening = len(given) - sum(number not in special for number in given)
        content = [*given[opening:], *made.ids]
        return [*[-1] * opening, *word_numbers(self.tokenizer, made.whole, content), *[-1] * len(ends)]

    def scores(self, documents: Documents) -> dict[str, Any]:
        """Return the loss of running text in nats, a token and a character, and the perplexity of a token."""
        if self.tokenizer.end < 0:
            raise UsageError("this model has no token between documents: its loss over documents means nothing")
        text = Stream.of(documents, self.tokenizer, self.model.config.places - 1)
        characters = sum(map(len, documents.texts))
        facts: dict[str, Any] = {"documents": len(documents), "tokens": len(text.ids), "characters": characters}
        return {**facts, **causal_scores(self.model, text, characters)}
