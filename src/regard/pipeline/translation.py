"""`TranslationPipeline`: texts to translations, and given translations to scores and alignments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import active_intervention
from regard.attention.trace import is_tracing, trace
from regard.config.inference import DecodingConfig, RecordConfig
from regard.decoding.batch_search import batch_by_length, search_in_batches
from regard.decoding.beams import BeamTree
from regard.decoding.constraints import Constraints, PhraseTokenizer
from regard.decoding.ensemble import Ensemble, mean_logprobs
from regard.decoding.generator import Generator
from regard.decoding.search import Hypothesis, hypothesis_score
from regard.engine.folder import LazyProxy
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.pipeline.sentence_pairs import (
    TranslatedSentence,
    encode_source,
    pair_sentences,
    split_into_sentences,
    split_pair,
)
from regard.tasks.alignment import to_pharaoh
from regard.text.sentences import Sentences
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.models.base import EncoderDecoder
    from regard.pipeline.records.translation import Links, TranslationRecorder

WINDOW = 1024  # texts of a stream that are sorted by length together


@dataclass(frozen=True)
class TranslationScore:
    """How likely a given translation is to the model."""

    score: float  # as the search ranks translations
    logprob: float  # log-probability, the end included
    num_tokens: int  # the end included

    @classmethod
    def combine(cls, scores: Sequence[TranslationScore]) -> TranslationScore:
        """Return the score of a text of several sentences: the mean of their scores, the sum of the rest."""
        score = sum(part.score for part in scores) / len(scores) if scores else 0.0
        return cls(score, sum(part.logprob for part in scores), sum(part.num_tokens for part in scores))


@dataclass(frozen=True)
class _ScoredText:
    """What was found for one sentence, and its text."""

    text: str
    found: Hypothesis

    def anew(self, ids: list[int], score: TranslationScore) -> _ScoredText:
        """Return the same text in other tokens."""
        return _ScoredText(self.text, Hypothesis(ids, score.score, score.logprob, self.found.finished))


@dataclass(frozen=True)
class _TranslationRequest:
    """How a sentence was to be translated."""

    config: DecodingConfig
    constraints: Constraints
    prefix: str


class Translation(PipelineResult, str):
    """A translation: a text that knows its source, its score, its alternatives and where the model looked.

    The score of a text of several sentences is the mean of theirs, its total their sum.
    """

    source: str
    score: float
    logprob: float
    finished: bool  # False: a sentence was ended by its limit, not by the model
    sentences: list[TranslatedSentence]
    alternatives: list[Translation]  # the next best, best first
    _looker: TranslationRecorder

    @classmethod
    def from_hypotheses(
        cls,
        text: str,
        source: str,
        sentences: list[TranslatedSentence],
        hypotheses: Sequence[Hypothesis],
        recorder: TranslationRecorder,
    ) -> Translation:
        """Return the translation that these hypotheses, one a part, make."""
        made = cls(text)
        made.source, made.sentences, made.alternatives, made._looker = source, sentences, [], recorder
        whole = TranslationScore.combine(
            [TranslationScore(one.score, one.logprob, len(one.ids) + 1) for one in hypotheses]
        )
        made.score, made.logprob = whole.score, whole.logprob
        made.finished = all(one.finished for one in hypotheses)
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what is stored or sent elsewhere is the text alone

    @property
    def tokens(self) -> list[str]:
        """The pieces that were written."""
        return [piece for part in self.sentences for piece in self._looker.target.subwords(part.ids)]

    @cached_property
    def alignment(self) -> Links:
        """Which source word each target word comes from; words are what white space parts, counted from 0."""
        return self._looker.align(self.sentences)

    @property
    def pharaoh(self) -> str:
        """The alignment in Pharaoh form: `0-0 1-2`."""
        return to_pharaoh(self.alignment)

    def record(self, title: str = "", languages: tuple[str, str] = ("", ""), **asked: Any) -> Record:
        """Return what pictures of this translation are drawn from; settings are those of `SeeingConfig`."""
        made = super().record(title, **asked)
        named = zip(("source", "target", "given"), (*languages, languages[1]), strict=True)
        spoken = dict(named)
        return replace(made, texts={side: replace(one, language=spoken[side]) for side, one in made.texts.items()})


class TranslationPipeline:
    """Translates texts with one model, or with several that decide together."""

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        source: Tokenizer,
        target: Tokenizer,
        *,
        decoding: DecodingConfig | None = None,
        task: Mapping[str, Any] | None = None,
        workers: int = 1,
        engines: Sequence[TranslatorEngine] = (),
    ) -> None:
        """Take models that share tokenizers, the settings of their search and what their `task.json` says.

        `workers` batches are computed at a time, each on a core of its own. `engines` are the same models compiled:
        they write and score wherever nobody asks where the model looked.
        """
        self.workers = WorkerPool(workers)
        facts = task or {}
        self.models, self.source, self.target = [model.eval() for model in models], source, target
        self.decoding = decoding or DecodingConfig()
        self.generator: Generator[Any] = _together(self.models)
        self.engines = list(engines)
        self.engine_generator: Generator[Any] | None = _together(self.engines) if self.engines else None
        places = min(model.settings.max_positions for model in self.models)
        self.max_source_length = min(
            places, int(facts.get("max_length") or places)
        )  # tokens of a source, the end included
        self.max_target_length = places - 1  # tokens of a translation
        self.phrase_tokenizer = PhraseTokenizer(target)
        self.recorder = _looker(self.models, source, target, facts.get("align"))

    @overload
    def __call__(self, text: str, **settings: Any) -> Translation: ...

    @overload
    def __call__(self, text: Sequence[str], **settings: Any) -> list[Translation]: ...

    def __call__(self, text: str | Sequence[str], **settings: Any) -> Translation | list[Translation]:
        """Return the translation of a text, or those of a list; settings are those of `translate`."""
        return self.translate([text], **settings)[0] if isinstance(text, str) else self.translate(text, **settings)

    def translate(
        self,
        texts: Sequence[str],
        *,
        split: bool = True,
        constraints: Constraints | None = None,
        prefixes: Sequence[str] | None = None,
        **settings: Any,
    ) -> list[Translation]:
        """Return the translations of texts, in their order.

        Texts are split into sentences and put together again with the white space between them; `split=False` takes
        each line as one sentence. A text with a prefix or with words to force is one sentence. Settings are those of
        `DecodingConfig`; what is not given is as saved with the model.
        """
        if isinstance(texts, str):
            raise UsageError("translate takes a list of texts: call the pipeline itself with a single one")
        config, wishes = self._settings(settings), constraints or Constraints()
        starts = list(prefixes) if prefixes is not None else [""] * len(texts)
        if len(starts) != len(texts):
            raise UsageError(f"prefixes ({len(starts)}) must be as many as texts ({len(texts)})")
        whole = [bool(start.strip() or wishes.force) for start in starts]
        drafts, rows = split_into_sentences(texts, self.source, self.max_source_length, split=split, keep_whole=whole)
        sentences = [sentence for draft in drafts for sentence in draft.sentences]
        begun = [start for draft, start in zip(drafts, starts, strict=True) for _ in draft.sentences]
        said: list[list[_ScoredText]] = [[] for _ in sentences]
        texts_of = [number for number, draft in enumerate(drafts) for _ in draft.sentences]
        firsts = list(itertools.accumulate((len(draft.sentences) for draft in drafts), initial=0))
        left = [len(draft.sentences) for draft in drafts]

        def joined(number: int) -> Translation:
            some = said[firsts[number] : firsts[number + 1]]
            return self._joined(
                texts[number], drafts[number], some, _TranslationRequest(config, wishes, starts[number])
            )

        made = {number: joined(number) for number, count in enumerate(left) if not count}
        for place, some in self._search(
            sentences, rows, [_TranslationRequest(config, wishes, start) for start in begun]
        ):
            said[place], number = some, texts_of[place]
            left[number] -= 1
            if not left[number]:
                made[number] = joined(number)
        return [made[number] for number in range(len(texts))]

    def stream(
        self,
        texts: Iterable[str],
        *,
        split: bool = True,
        constraints: Constraints | None = None,
        prefix: str = "",
        window: int = WINDOW,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Return the translations of texts without end, in their order; `window` texts are read at a time."""
        self._settings(settings)  # a wrong one is told before the first text is read
        return self._windows(
            iter(texts), max(1, window), prefix, {"split": split, "constraints": constraints, **settings}
        )

    def _windows(
        self, texts: Iterator[str], window: int, prefix: str, settings: dict[str, Any]
    ) -> Iterator[Translation]:
        while some := list(itertools.islice(texts, window)):
            yield from self.translate(some, prefixes=[prefix] * len(some), **settings)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, split: bool = True, **settings: Any
    ) -> list[TranslationScore]:
        """Return how likely each target text is as a translation of its source, scored as the search scores.

        Where both texts have the same number of sentences, the sentences are scored one by one, as they would be
        translated; with `split=False` and elsewhere the whole texts are. A `Translation` is scored by the very tokens
        that were written.
        """
        config, pairs = self._settings(settings), self._pairs(sources, targets, split)
        scored = iter(self._score([part for parts in pairs for part in parts], config))
        return [TranslationScore.combine(list(itertools.islice(scored, len(parts)))) for parts in pairs]

    def align(self, sources: Sequence[str], targets: Sequence[str], *, split: bool = True) -> list[Links]:
        """Return the word alignment of each pair of texts; sentences are taken as by `score`."""
        return [self.recorder.align(parts) for parts in self._pairs(sources, targets, split)]

    def _settings(self, given: Mapping[str, Any]) -> DecodingConfig:
        return self.decoding.override(given) if given else self.decoding

    def _is_compiled(self, config: DecodingConfig) -> bool:
        """Whether the engines answer: not while someone watches or heads are off, nor where coverage counts."""
        if self.engine_generator is None or config.coverage_penalty:
            return False
        return not is_tracing() and active_intervention() is None

    def _writing(self, config: DecodingConfig) -> Generator[Any]:
        """Return what writes; models that have only been read so far are first laid out for it."""
        if self.engine_generator is not None and self._is_compiled(config):
            return self.engine_generator
        return self._laid_out()

    def _laid_out(self) -> Generator[Any]:
        """Return the models, laid out for writing."""
        for model in self.models if self.engines else ():
            if "packed" not in model.__dict__:
                model.pack()
        return self.generator

    def _search(
        self, sentences: Sequence[str], rows: Sequence[list[int]], asked: Sequence[_TranslationRequest]
    ) -> Iterator[tuple[int, list[_ScoredText]]]:
        """Yield the number of each sentence and what can be said for it, best first; without tokens it says nothing.

        What was found becomes text batch by batch, while others are still searched.
        """
        config = asked[0].config if asked else self.decoding
        nothing = [Hypothesis([], 0.0, 0.0, True)]
        yield from ((number, [_ScoredText("", nothing[0])]) for number, row in enumerate(rows) if not row)
        odd: list[tuple[int, list[_ScoredText], list[list[int]]]] = []
        for numbers, found in self._found(self._writing(config), sentences, rows, asked):
            said = [
                [_ScoredText(self.target.decode(one.ids).strip(), one) for one in some or nothing] for some in found
            ]
            own = iter(self.target.encode_batch([one.text for some in said for one in some]))
            for number, some in zip(numbers, said, strict=True):
                cut = list(itertools.islice(own, len(some)))
                if any(map(self._is_odd, some, cut)):
                    odd.append((number, some, cut))
                else:
                    yield number, _best_first(some)
        yield from self._in_own_tokens(sentences, odd, config)

    def _is_odd(self, said: _ScoredText, own: list[int]) -> bool:
        """Whether the tokenizer cuts a text into other tokens than the search had, and they can be scored."""
        return own != said.found.ids and len(own) <= self.max_target_length

    def _found(
        self,
        generator: Generator[Any],
        sentences: Sequence[str],
        rows: Sequence[list[int]],
        asked: Sequence[_TranslationRequest],
        tree: BeamTree | None = None,
    ) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        """Yield the numbers of sentences and what a generator finds for each; one without tokens is left out."""
        if not sentences:
            return
        config, wishes, prefixes = asked[0].config, asked[0].constraints, [one.prefix for one in asked]
        real = [number for number, row in enumerate(rows) if row]
        starts = self.target.encode_batch([prefixes[number].rstrip() for number in real]) if any(prefixes) else None
        phrases = [wishes.phrases_for(sentences[number]) for number in real]
        forced = (
            [self.phrase_tokenizer.force(some, self.generator.vocab_size) for some in phrases] if any(phrases) else None
        )
        for place, number in enumerate(real):
            needed = (len(starts[place]) if starts else 0) + (forced[place].num_tokens if forced else 0)
            if needed > self.max_target_length:
                raise UsageError(
                    f"{needed} tokens are forced upon {sentences[number]!r:.60}, but {self.max_target_length} fit"
                )
        found = search_in_batches(
            generator,
            [[*rows[number], self.source.eos_id] for number in real],
            config,
            max_length=self.max_target_length,
            rules=self.phrase_tokenizer.forbid(wishes.forbid),
            prefixes=starts,
            forced=forced,
            map_batches=self.workers.map,
            tree=tree,
        )
        for places, hypotheses in found:
            yield [real[place] for place in places], hypotheses

    def _in_own_tokens(
        self,
        sentences: Sequence[str],
        said: Sequence[tuple[int, list[_ScoredText], list[list[int]]]],
        config: DecodingConfig,
    ) -> Iterator[tuple[int, list[_ScoredText]]]:
        """Yield what was said in the tokens that the tokenizer cuts it into, scored anew where the search had others.

        So a text has one score however it was found, the one that `score` gives for it.
        """
        odd = [
            TranslatedSentence(sentences[number], one.text, ids, 0, 0)
            for number, some, cut in said
            for one, ids in zip(some, cut, strict=True)
            if self._is_odd(one, ids)
        ]
        scored = iter(self._score(odd, config))
        for number, some, cut in said:
            pairs = zip(some, cut, strict=True)
            anew = [one.anew(ids, next(scored)) if self._is_odd(one, ids) else one for one, ids in pairs]
            yield number, _best_first(anew)

    def _joined(
        self, source: str, draft: Sentences, said: list[list[_ScoredText]], asked: _TranslationRequest
    ) -> Translation:
        """Return the text made of each sentence's best, with the texts made of their second best, … beside it."""
        said = said if asked.config.sample else [_unlike(some) for some in said]
        made: list[Translation] = []
        for place in range(max(map(len, said), default=1)):
            chosen = [some[min(place, len(some) - 1)] for some in said]
            found = [one.found for one in chosen]
            written = draft.replace([one.text for one in chosen])
            parts = pair_sentences(draft, written, [one.ids for one in found])
            text = written.text() if said else ""
            translation = Translation.from_hypotheses(text, source, parts, found, self.recorder)
            made.append(attach_recorder(translation, partial(self._recorded, source, text, parts, asked)))
        made[0].alternatives = made[1:]
        return made[0]

    def _recorded(
        self,
        source: str,
        text: str,
        parts: Sequence[TranslatedSentence],
        asked: _TranslationRequest,
        seeing: RecordConfig,
    ) -> Record:
        """Return the record of a translation; the tree of its beams is that of a second search."""
        branches = asked.config.beam > 1 and not asked.config.sample
        trees = partial(self._tree, asked) if branches else None
        return self.recorder.record(source, text, parts, seeing, trees=trees)

    def _tree(self, asked: _TranslationRequest, part: TranslatedSentence) -> BeamTree:
        tree = BeamTree()
        rows = self.source.encode_batch([part.source])
        for _ in self._found(self._laid_out(), [part.source], rows, [asked], tree):
            pass
        return tree

    def _pairs(self, sources: Sequence[str], targets: Sequence[str], split: bool) -> list[list[TranslatedSentence]]:
        """Return given pairs of texts as parts that the model can read."""
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} source texts and {len(targets)} target texts do not go together")
        made = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            known = isinstance(target, Translation) and target.source == source
            parts = target.sentences if known else split_pair(source, target, self.target, split=split)  # type: ignore[attr-defined]
            made.append(parts)
            for part in parts:
                read, written = len(self.recorder.source_ids(part)), len(part.ids)
                if read > self.max_source_length or written > self.max_target_length:
                    raise UsageError(
                        f"pair {number} has {read:,} source and {written:,} target tokens, but the model takes "
                        f"{self.max_source_length:,} and {self.max_target_length:,}: shorten it"
                    )
        return made

    def _score(self, parts: Sequence[TranslatedSentence], config: DecodingConfig) -> list[TranslationScore]:
        rows = [self.recorder.source_ids(part) for part in parts]
        lengths = np.array([(len(row), len(part.ids) + 1) for row, part in zip(rows, parts, strict=True)], np.int64)
        made = [TranslationScore(0.0, 0.0, 0)] * len(parts)
        for numbers in batch_by_length(lengths.reshape(-1, 2), config):
            chosen = numbers.tolist()
            source = Tokens.from_rows([rows[number] for number in chosen])
            target = Tokens.from_rows([parts[number].ids for number in chosen])
            writers: Sequence[EncoderDecoder | TranslatorEngine] = (
                self.engines if self._is_compiled(config) else self.models
            )
            found = [_forced(model, source, target, bool(config.coverage_penalty)) for model in writers]
            for place, number in enumerate(chosen):
                logp = mean_logprobs([logps[place] for logps, _ in found])
                total = float(logp.sum(dtype=np.float64))
                covered = np.mean([looked[place] for _, looked in found], axis=0) if config.coverage_penalty else None
                made[number] = TranslationScore(hypothesis_score(total, len(logp), config, covered), total, len(logp))
        return made


def _looker(
    models: Sequence[EncoderDecoder], source: Tokenizer, target: Tokenizer, align: object
) -> TranslationRecorder:
    """Return what shows where models look; of models that are not made yet, when someone wants to see it."""

    def made() -> TranslationRecorder:
        from regard.pipeline.records.translation import AligningHead, TranslationRecorder

        real = [one.materialize() if isinstance(one, LazyProxy) else one for one in models]
        return TranslationRecorder(real, source, target, AligningHead.recorded(align, real[0]))

    if not isinstance(models[0], LazyProxy):
        return made()
    return cast(
        "TranslationRecorder", LazyProxy(made, source=source, target=target, row=partial(encode_source, source))
    )


def _together(models: Sequence[Generator[Any]]) -> Generator[Any]:
    return Ensemble(models) if len(models) > 1 else models[0]


def _forced(
    model: EncoderDecoder | TranslatorEngine, source: Tokens, target: Tokens, watched: bool
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float64]]]:
    """Return each row's log-probabilities and, if watched, how much each source token was looked at in all."""
    if not watched or isinstance(model, TranslatorEngine):
        return model.target_logprobs(source, target), []
    site = [*model.cross_attention_sites()][-1]  # where a search looks, too
    with trace(site, full_precision=True) as seen:
        logp = model.target_logprobs(source, target)
    looked = seen[site].weights.mean(axis=1)  # [B, Q, K]
    sizes = zip(source.lengths, target.lengths + 1, strict=True)
    return logp, [looked[row, :written, :read].sum(0, dtype=np.float64) for row, (read, written) in enumerate(sizes)]


def _best_first(said: Sequence[_ScoredText]) -> list[_ScoredText]:
    return sorted(said, key=lambda one: -one.found.score)


def _unlike(said: Sequence[_ScoredText]) -> list[_ScoredText]:
    """Return the best of each text."""
    kept: dict[str, _ScoredText] = {}
    for one in said:
        kept.setdefault(one.text, one)
    return list(kept.values())
