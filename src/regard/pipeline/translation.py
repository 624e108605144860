"""`TranslationPipeline`: translates texts, scores and aligns given translations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from regard.attention.trace import is_tracing, suspend_traces
from regard.config.inference import DecodingConfig, RecordConfig
from regard.data.pairs import ParallelTexts
from regard.decoding.batch_search import search_in_batches
from regard.decoding.beams import BeamTree
from regard.decoding.constraints import Constraints, PhraseTokenizer
from regard.decoding.ensemble import Ensemble
from regard.decoding.generator import Generator, ScoringGenerator
from regard.decoding.search import Hypothesis
from regard.engine.backend import TranslatorBackend
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.result import attach_recorder
from regard.pipeline.sentence_pairs import (
    CandidateTranslation,
    SentenceCandidates,
    TranslatedSentence,
    TranslationScore,
    check_forced_length,
    encode_source,
    pair_sentences,
    score_sentences,
    sort_by_score,
    split_into_sentences,
    split_pair,
    trace_translations,
    unique_texts,
)
from regard.pipeline.translation_result import Translation
from regard.tasks.predictions import PredictedTranslations
from regard.text.sentences import Sentences
from regard.text.tokenizer import Tokenizer
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.models.base import EncoderDecoder
    from regard.pipeline.records.translation_records import Links, TranslationRecorder

TASK = "translate"
WINDOW = 1024  # texts of a stream that are sorted by length together


@dataclass(frozen=True)
class _TranslationRequest:
    """How a text is to be translated."""

    config: DecodingConfig
    constraints: Constraints
    prefix: str

    @property
    def keeps_text_whole(self) -> bool:
        """Whether the text must not be split into sentences."""
        return bool(self.prefix.strip() or self.constraints.force)


class TranslationPipeline(PicklablePipeline):
    """Translates texts with one model or an ensemble.

    **Traces.** A search is never traced: an open `trace` receives, once a call has its answers, the attention over
    the sources and the best translations, of the backend that answered and over the tokens that it generated. It has
    one row for each sentence, in the order of the texts (rows that are shorter than others end in zeros), at the
    sites `encoder.N.self`, `decoder.N.self` and `decoder.N.cross`, [sentences, heads, queries, keys]. The decoder's
    queries are the start token and all tokens of the translation, so that row i is what predicted token i. Of an
    ensemble it is the first model's. `Translation.attention` has the attention of alternatives, too.

    **Backends.** Where the engine computes a model, it also computes its attention, and ablates heads. With a coverage
    penalty, torch computes answers and attention; `Translation.backend` says which it was.
    """

    task_name = TASK

    def __init__(
        self,
        backends: Sequence[TranslatorBackend],
        source: Tokenizer,
        target: Tokenizer,
        *,
        decoding: DecodingConfig | None = None,
        task: Mapping[str, Any] | None = None,
        workers: int = 1,
    ) -> None:
        """Take models that share tokenizers, their decoding config and the content of their `task.json`.

        Several models form an ensemble. `workers` batches are computed at a time, one per core.
        """
        metadata = task or {}
        self.backends = list(backends)
        self.source = source
        self.target = target
        self.decoding = decoding or DecodingConfig()
        self.workers = WorkerPool(workers)
        max_positions = min(backend.config.max_positions for backend in self.backends)
        self.max_source_length = min(max_positions, int(metadata.get("max_length") or max_positions))  # eos included
        self.max_target_length = max_positions - 1
        self.phrase_tokenizer = PhraseTokenizer(target)
        self._stored_alignment_head: object = metadata.get("alignment_head")

    def torch_models(self) -> list[EncoderDecoder]:
        """The models in torch, for gradients and parameters; built on first use."""
        return [backend.torch_model() for backend in self.backends]

    @property
    def recorder(self) -> TranslationRecorder:
        """Records attention and aligns words, with the models that answer by default."""
        return self._build_recorder(self._models(self.decoding))

    def recorder_for(self, backend: str) -> TranslationRecorder:
        """Records attention and aligns words with the models of a backend that has answered."""
        return self._build_recorder(self.models_of(backend))

    def models_of(self, backend: str = "") -> list[ScoringGenerator[Any]]:
        """The models of a backend that has answered; by default, those that answer with the pipeline's settings."""
        models = self._models(self.decoding)
        if backend and models[0].backend_name != backend:
            is_torch = backend == self.backends[0].generator(with_attention=True).backend_name
            models = [model.generator(with_attention=is_torch) for model in self.backends]
        return models

    def _build_recorder(self, models: Sequence[ScoringGenerator[Any]]) -> TranslationRecorder:
        from regard.pipeline.records.translation_records import StoredAlignmentHead, TranslationRecorder

        head = StoredAlignmentHead.from_json(self._stored_alignment_head, models[0])
        return TranslationRecorder(models, self.source, target=self.target, alignment_head=head)

    @overload
    def __call__(self, text: str, **settings: Any) -> Translation: ...

    @overload
    def __call__(self, text: Sequence[str], **settings: Any) -> list[Translation]: ...

    def __call__(self, text: str | Sequence[str], **settings: Any) -> Translation | list[Translation]:
        """Translate a text, or each text of a list; settings are those of `translate`."""
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
        """Translate texts, in order.

        Texts are split into sentences and joined again with the original white space; `split=False` takes each line as
        one sentence. A text with a prefix or with forced phrases is one sentence. Settings are those of
        `DecodingConfig` and default to those saved with the model.
        """
        if isinstance(texts, str):
            raise UsageError("translate takes a list of texts: call the pipeline itself with a single one")
        if prefixes is None:
            prefixes = [""] * len(texts)
        requests = self._build_requests(len(texts), constraints or Constraints(), prefixes, settings)
        keep_whole = [request.keeps_text_whole for request in requests]
        drafts, source_ids = split_into_sentences(
            texts, self.source, self.max_source_length, split=split, keep_whole=keep_whole
        )
        sentences: list[str] = []
        text_indices: list[int] = []  # the text of each sentence
        for text_index, draft in enumerate(drafts):
            sentences += draft.sentences
            text_indices += [text_index] * len(draft.sentences)
        remaining = [len(draft.sentences) for draft in drafts]  # sentences that are still searched
        offsets = list(itertools.accumulate(remaining, initial=0))
        candidates: list[list[CandidateTranslation]] = [[] for _ in sentences]

        def assemble(text_index: int) -> Translation:
            text_candidates = candidates[offsets[text_index] : offsets[text_index + 1]]
            return self._assemble(texts[text_index], drafts[text_index], text_candidates, requests[text_index])

        translations = {index: assemble(index) for index, count in enumerate(remaining) if not count}
        sentence_requests = [requests[text_index] for text_index in text_indices]
        with suspend_traces():
            for sentence_index, sentence_candidates in self._search(sentences, source_ids, sentence_requests):
                candidates[sentence_index] = sentence_candidates
                text_index = text_indices[sentence_index]
                remaining[text_index] -= 1
                if not remaining[text_index]:
                    translations[text_index] = assemble(text_index)
        self._trace_best(source_ids, candidates, requests)
        return [translations[text_index] for text_index in range(len(texts))]

    def _trace_best(
        self,
        source_ids: Sequence[list[int]],
        candidates: Sequence[Sequence[CandidateTranslation]],
        requests: Sequence[_TranslationRequest],
    ) -> None:
        """Give the open traces the attention over the best translation of each sentence."""
        if not is_tracing() or not any(source_ids):
            return
        sources = [[*ids, self.source.eos_id] for ids in source_ids if ids]
        pairs = zip(source_ids, candidates, strict=True)
        targets = [sentence_candidates[0].hypothesis.ids for ids, sentence_candidates in pairs if ids]
        trace_translations(self._models(requests[0].config)[0], sources, targets)

    def _build_requests(
        self, num_texts: int, constraints: Constraints, prefixes: Sequence[str], settings: Mapping[str, Any]
    ) -> list[_TranslationRequest]:
        config = self._decoding_config(settings)
        if len(prefixes) != num_texts:
            raise UsageError(f"prefixes ({len(prefixes)}) must be as many as texts ({num_texts})")
        return [_TranslationRequest(config, constraints, prefix) for prefix in prefixes]

    def predict_examples(self, examples: ParallelTexts) -> PredictedTranslations:
        """Translate the source side of a test set; the result is the argument of every metric."""
        translations = self.translate(examples.source, split=False)
        return PredictedTranslations(
            predictions=[str(translation) for translation in translations], references=examples.target
        )

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
        """Translate any number of texts, in order, reading `window` texts at a time."""
        self._decoding_config(settings)  # reject a wrong setting before the first text is read
        options = {"split": split, "constraints": constraints, **settings}
        return self._translate_windows(iter(texts), max(1, window), prefix, options)

    def _translate_windows(
        self, texts: Iterator[str], window: int, prefix: str, options: dict[str, Any]
    ) -> Iterator[Translation]:
        while batch := list(itertools.islice(texts, window)):
            yield from self.translate(batch, prefixes=[prefix] * len(batch), **options)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, split: bool = True, **settings: Any
    ) -> list[TranslationScore]:
        """Score each target as a translation of its source, with the score of the search.

        Where both texts have equally many sentences, these are scored one by one, as they would be translated;
        otherwise, and with `split=False`, the whole texts are. A `Translation` is scored by its own tokens.
        """
        config = self._decoding_config(settings)
        pairs = self._split_pairs(sources, targets, split)
        scores = iter(self._score(list(itertools.chain.from_iterable(pairs)), config))
        return [TranslationScore.combine(list(itertools.islice(scores, len(sentences)))) for sentences in pairs]

    def align(self, sources: Sequence[str], targets: Sequence[str], *, split: bool = True) -> list[Links]:
        """Align the words of each pair of texts; sentences are paired as in `score`."""
        return [self.recorder.align(sentences) for sentences in self._split_pairs(sources, targets, split)]

    def _decoding_config(self, settings: Mapping[str, Any]) -> DecodingConfig:
        return self.decoding.override(settings) if settings else self.decoding

    def _models(self, config: DecodingConfig) -> list[ScoringGenerator[Any]]:
        """What computes an answer with these settings: the engine, or torch for a coverage penalty."""
        return [backend.generator(with_attention=bool(config.coverage_penalty)) for backend in self.backends]

    def _generator(self, config: DecodingConfig) -> Generator[Any]:
        """The generator of a search, of all models together."""
        models = self._models(config)
        return Ensemble(models) if len(models) > 1 else models[0]

    def _search(
        self, sentences: Sequence[str], source_ids: Sequence[list[int]], requests: Sequence[_TranslationRequest]
    ) -> Iterator[tuple[int, list[CandidateTranslation]]]:
        """Yield the index of each sentence with its candidates, best first; a sentence without tokens has an empty one.

        Hypotheses are decoded batch by batch, while other batches are still searched. A text has one score however the
        search tokenized it, the one that `score` gives: where the tokenizer gives other tokens, these are scored.
        """
        config = requests[0].config if requests else self.decoding
        empty = Hypothesis([], 0.0, logprob=0.0, finished=True)
        for index, ids in enumerate(source_ids):
            if not ids:
                yield index, [CandidateTranslation("", empty)]
        generator = self._generator(config)
        retokenized: list[SentenceCandidates] = []
        for indices, batch in self._search_batches(generator, sentences, source_ids, requests):
            batch_candidates = [self._decode(hypotheses or [empty]) for hypotheses in batch]
            texts = [candidate.text for candidate in itertools.chain.from_iterable(batch_candidates)]
            encoded = iter(self.target.encode_batch(texts))
            for index, candidates in zip(indices, batch_candidates, strict=True):
                tokenizer_ids = list(itertools.islice(encoded, len(candidates)))
                sentence = SentenceCandidates(
                    index, sentences[index], candidates, tokenizer_ids, max_length=self.max_target_length
                )
                if any(sentence.should_rescore):
                    retokenized.append(sentence)
                else:
                    yield index, sort_by_score(candidates)
        pairs = itertools.chain.from_iterable(sentence.pairs_to_rescore() for sentence in retokenized)
        scores = iter(self._score(list(pairs), config))
        for sentence in retokenized:
            yield sentence.index, sort_by_score(sentence.rescore(scores))

    def _decode(self, hypotheses: Sequence[Hypothesis]) -> list[CandidateTranslation]:
        return [
            CandidateTranslation(self.target.decode(hypothesis.ids).strip(), hypothesis) for hypothesis in hypotheses
        ]

    def _search_batches(
        self,
        generator: Generator[Any],
        sentences: Sequence[str],
        source_ids: Sequence[list[int]],
        requests: Sequence[_TranslationRequest],
        tree: BeamTree | None = None,
    ) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        """Yield indices of sentences with the hypotheses of each; sentences without tokens are left out."""
        if not sentences:
            return
        constraints = requests[0].constraints
        indices = [index for index, ids in enumerate(source_ids) if ids]
        nonblank_sentences = [sentences[index] for index in indices]
        prefixes = None
        if any(request.prefix for request in requests):
            prefixes = self.target.encode_batch([requests[index].prefix.rstrip() for index in indices])
        forced = None
        phrases = [constraints.phrases_for(sentence) for sentence in nonblank_sentences]
        if any(phrases):
            forced = [self.phrase_tokenizer.tokenize_forced(phrase, generator.vocab_size) for phrase in phrases]
        check_forced_length(nonblank_sentences, prefixes, forced, self.max_target_length)
        batches = search_in_batches(
            generator,
            [[*source_ids[index], self.source.eos_id] for index in indices],
            requests[0].config,
            max_length=self.max_target_length,
            rules=self.phrase_tokenizer.forbid(constraints.forbid),
            prefixes=prefixes,
            forced=forced,
            map_batches=self.workers.map,
            tree=tree,
        )
        for rows, hypotheses in batches:
            yield [indices[row] for row in rows], hypotheses

    def _assemble(
        self, source: str, draft: Sentences, candidates: list[list[CandidateTranslation]], request: _TranslationRequest
    ) -> Translation:
        """Join the best candidates of all sentences into a translation, the second best into its alternative, …"""
        if not request.config.sample:
            candidates = [unique_texts(sentence_candidates) for sentence_candidates in candidates]
        backend = self._models(request.config)[0].backend_name
        translations: list[Translation] = []
        for rank in range(max(map(len, candidates), default=1)):
            ranked = [
                sentence_candidates[min(rank, len(sentence_candidates) - 1)] for sentence_candidates in candidates
            ]
            hypotheses = [candidate.hypothesis for candidate in ranked]
            target = draft.replace([candidate.text for candidate in ranked])
            ids = [hypothesis.ids for hypothesis in hypotheses]
            finished = [hypothesis.finished for hypothesis in hypotheses]
            sentences = pair_sentences(draft, target, ids, finished)
            text = target.text() if candidates else ""
            translation = Translation.from_hypotheses(text, source, sentences, hypotheses, self, backend)
            recorder = partial(self._build_record, source, text, sentences, request)
            translations.append(attach_recorder(translation, recorder))
        translations[0].alternatives = translations[1:]
        return translations[0]

    def _build_record(
        self,
        source: str,
        text: str,
        sentences: Sequence[TranslatedSentence],
        request: _TranslationRequest,
        config: RecordConfig,
    ) -> Record:
        """Record a translation; its beam tree is that of a second search."""
        has_beams = request.config.beam > 1 and not request.config.sample
        build_tree = partial(self._beam_tree, request) if has_beams else None
        recorder = self._build_recorder(self._models(request.config))
        return recorder.record(source, text, sentences, config, trees=build_tree)

    def _beam_tree(self, request: _TranslationRequest, sentence: TranslatedSentence) -> BeamTree:
        tree = BeamTree()
        source_ids = self.source.encode_batch([sentence.source])
        generator = self._generator(request.config)
        for _ in self._search_batches(generator, [sentence.source], source_ids, [request], tree):
            pass  # the search fills the tree
        return tree

    def _split_pairs(
        self, sources: Sequence[str], targets: Sequence[str], split: bool
    ) -> list[list[TranslatedSentence]]:
        """Split given pairs of texts into sentence pairs that fit the model."""
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} source texts and {len(targets)} target texts must be equally many")
        pairs = []
        for pair_number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            if isinstance(target, Translation) and target.source == source:
                sentences = target.sentences
            else:
                sentences = split_pair(source, target, self.target, split=split)
            for sentence in sentences:
                source_length = len(encode_source(self.source, sentence))
                target_length = len(sentence.ids)
                if source_length > self.max_source_length or target_length > self.max_target_length:
                    raise UsageError(
                        f"pair {pair_number} has {source_length:,} source and {target_length:,} target tokens, but the "
                        f"model takes {self.max_source_length:,} and {self.max_target_length:,}: shorten it"
                    )
            pairs.append(sentences)
        return pairs

    def _score(self, sentences: Sequence[TranslatedSentence], config: DecodingConfig) -> list[TranslationScore]:
        source_ids = [encode_source(self.source, sentence) for sentence in sentences]
        return score_sentences(sentences, source_ids, self.backends, config)
