"""`Translation`: a text with its source, score, alternatives and attention."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

from regard.attention.trace import suspend_traces
from regard.decoding.search import Hypothesis
from regard.errors import UsageError
from regard.pipeline.result import PipelineResult
from regard.pipeline.sentence_pairs import TranslatedSentence, TranslationScore
from regard.tasks.alignment import to_pharaoh
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.pipeline.records.translation_records import Links
    from regard.pipeline.translation import TranslationPipeline


class HypothesisDict(TypedDict):
    """JSON form of one translation of a text."""

    text: str
    score: float  # by which translations are ranked: mean of the sentences
    logprob: float  # sum of the sentences, in nats
    finished: bool  # false: the length limit, not the model, ended a sentence
    alignment: NotRequired[list[list[int]]]  # source word and target word, both counted from 0


class TranslationDict(HypothesisDict):
    """JSON form of a `Translation`."""

    source: str
    backend: str  # what computed it, and in which precision: engine int8
    alternatives: list[HypothesisDict]  # the next best, best first


class Translation(PipelineResult, str):
    """A translation: a str with its source, score, alternatives and attention.

    The score of a text of several sentences is the mean of theirs, its log-probability their sum.
    """

    source: str
    score: float
    logprob: float
    finished: bool  # False: the length limit, not the model, ended a sentence
    sentences: list[TranslatedSentence]
    alternatives: list[Translation]  # the next best, best first
    _pipeline: TranslationPipeline | None = None

    transient_attributes: ClassVar[tuple[str, ...]] = (*PipelineResult.transient_attributes, "_pipeline")

    @classmethod
    def from_hypotheses(
        cls,
        text: str,
        source: str,
        sentences: list[TranslatedSentence],
        hypotheses: Sequence[Hypothesis],
        pipeline: TranslationPipeline,
        backend: str,
    ) -> Translation:
        """Build the translation of a text from one hypothesis for each of its sentences."""
        scores = [TranslationScore.from_hypothesis(hypothesis) for hypothesis in hypotheses]
        text_score = TranslationScore.combine(scores)
        translation = cls(text)
        translation.source = source
        translation.score = text_score.score
        translation.logprob = text_score.logprob
        translation.finished = all(hypothesis.finished for hypothesis in hypotheses)
        translation.sentences = sentences
        translation.alternatives = []
        translation.backend = backend
        translation._pipeline = pipeline
        return translation

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "tokens": self.tokens}

    @cached_property
    def tokens(self) -> list[str]:
        """The generated subwords."""
        tokenizer = self._require_pipeline().target
        subwords = [tokenizer.subwords(sentence.ids) for sentence in self.sentences]
        return list(itertools.chain.from_iterable(subwords))

    @cached_property
    def alignment(self) -> Links:
        """Word alignment: (source word, target word) pairs; words are separated by white space, counted from 0."""
        recorder = self._require_pipeline().recorder_for(self.backend)
        with self._same_ablation(), suspend_traces():
            return recorder.align(self.sentences)

    def _require_pipeline(self) -> TranslationPipeline:
        if self._pipeline is None:
            raise UsageError("this translation has come without its model: translate the text again to align its words")
        return self._pipeline

    @property
    def pharaoh(self) -> str:
        """The alignment in Pharaoh format: `0-0 1-2`."""
        return to_pharaoh(self.alignment)

    def to_dict(self, *, alignment: bool = False) -> TranslationDict:
        """JSON form of the translation and its alternatives; with `alignment`, which runs the model once more."""
        return {
            "source": self.source,
            **self._to_hypothesis_dict(alignment),
            "backend": self.backend,
            "alternatives": [alternative._to_hypothesis_dict(alignment) for alternative in self.alternatives],
        }

    def _to_hypothesis_dict(self, alignment: bool) -> HypothesisDict:
        fields: HypothesisDict = {
            "text": str(self),
            "score": round(self.score, 6),
            "logprob": round(self.logprob, 6),
            "finished": self.finished,
        }
        if alignment:
            fields["alignment"] = [list(link) for link in self.alignment]
        return fields

    def record(self, title: str = "", languages: tuple[str, str] = ("", ""), **settings: Any) -> Record:
        """Build the record of this translation; settings are those of `RecordConfig`."""
        record = super().record(title, **settings)
        source_language, target_language = languages
        language_of = {"source": source_language, "target": target_language, "decoder_input": target_language}
        texts = {side: replace(text, language=language_of[side]) for side, text in record.texts.items()}
        return replace(record, texts=texts)
