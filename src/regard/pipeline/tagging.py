"""`TokenClassificationPipeline`: tags of words, and the entities that they mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.config.inference import RecordConfig
from regard.data.conll import TaggedSentences
from regard.hardware import ForkSafeLock
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.encoder_records import EncoderRecorder, encode_row
from regard.pipeline.records.trace_records import decoding_steps
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.entities import entity_scores, tag_spans, tag_transitions, viterbi
from regard.tasks.predictions import PredictedEntities, PredictedTags
from regard.tasks.scoring import Scoring
from regard.tasks.tagging import FIRST_SUBWORD, RnnSentences, Spans, encode_words, split_words, tag_logprobs, word_spans
from regard.tasks.text_model import TextPreprocessor
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import DecodingStep
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from regard.models.rnn_text import RnnTagger

TASK = "tag"
TEXTS_PER_BATCH = 512  # read from a stream at a time


@dataclass(frozen=True)
class TagPredictions:
    """Tag log-probabilities of the words of texts, and how much of the texts was read."""

    logprobs: list[NDArray[np.float64]]  # of each text, [words, tags]
    windows: NDArray[np.int64]  # [texts], rows in which each text was read
    truncation_report: TruncationReport
    backend: str  # that computed them


class TokenClassifier(Protocol):
    """Model that predicts tags of words."""

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Predict the log-probabilities of all tags for the words at these spans."""
        ...

    def record(
        self, text: str, config: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Record the attention over one text."""
        ...


@dataclass(frozen=True)
class RecurrentTagger:
    """RNN tagger with its own vocabulary."""

    model: RnnTagger
    preprocessor: TextPreprocessor

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Predict the log-probabilities of all tags for the words at these spans; truncated words are tagged O."""
        encoded = RnnSentences.encode(self.preprocessor, texts, spans)
        word_counts = [len(text_spans) for text_spans in spans]
        logits = encoded.iter_token_logits(self.model)
        logprobs = tag_logprobs(encoded, logits, word_counts, self.model.config.num_outputs)
        windows = np.ones(len(texts), dtype=np.int64)
        return TagPredictions(
            logprobs,
            windows,
            truncation_report=self.preprocessor.report_truncation(encoded),
            backend=self.model.backend_name,
        )

    def record(
        self, text: str, config: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Record the layer mix of the frozen features for one text."""
        from regard.pipeline.records.text_model_records import TextModelRecorder

        recorder = TextModelRecorder(self.model, self.preprocessor)
        return recorder.record(text, config, task=TASK, texts=texts, steps=tuple(steps))


@dataclass(frozen=True)
class EncoderTagger:
    """Encoder with a token classification head."""

    model: EncoderBackend
    special_tokens: SpecialTokens
    max_length: int
    word_token: str = FIRST_SUBWORD  # subword at which a word is tagged

    def predict(self, texts: Sequence[str], spans: Sequence[Spans]) -> TagPredictions:
        """Predict the log-probabilities of all tags for the words at these spans; a long text is read in windows."""
        encoded = encode_words(self.special_tokens, texts, spans, self.max_length, self.word_token)
        word_counts = [len(text_spans) for text_spans in spans]
        logits = encoded.iter_token_logits(self.model)
        logprobs = tag_logprobs(encoded, logits, word_counts, self.model.config.num_outputs)
        windows = np.bincount(np.asarray(encoded.text_indices, dtype=np.int64), minlength=len(texts))
        return TagPredictions(logprobs, windows, truncation_report=encoded.truncation, backend=self.model.backend_name)

    def record(
        self, text: str, config: RecordConfig, texts: Mapping[str, RecordText], steps: Sequence[DecodingStep]
    ) -> Record:
        """Record the attention over one text; of a long text, over its first window."""
        row = encode_row(self.special_tokens, text, max_length=self.max_length)
        recorder = EncoderRecorder(self.model, self.special_tokens)
        return recorder.record(row, config, task=TASK, extra_parts=lambda _: {"texts": texts, "steps": tuple(steps)})


class EntityDict(TypedDict):
    """JSON form of an `Entity`."""

    text: str
    label: str
    start: int  # characters of the text
    end: int
    probability: float  # of its least probable tag


class TaggedTextDict(TypedDict):
    """JSON form of a `TaggedText`."""

    text: str
    words: list[str]
    spans: list[list[int]]  # start and end of each word, in characters
    tags: list[str]
    probabilities: list[float]  # of each tag by itself
    windows: int  # rows in which the text was read
    backend: str  # what computed it, and in which precision: engine int8
    entities: list[EntityDict]


@dataclass(frozen=True)
class Entity:
    """A labelled span of a text."""

    text: str
    label: str
    start: int  # characters of the text
    end: int
    probability: float  # of its least probable tag

    def to_dict(self) -> EntityDict:
        """JSON form of the entity."""
        return {
            "text": self.text,
            "label": self.label,
            "start": self.start,
            "end": self.end,
            "probability": round(self.probability, 6),
        }


@dataclass(frozen=True)
class TaggedText(PipelineResult):
    """A text with its words, their tags and the entities that they mark."""

    text: str
    words: list[str]
    spans: list[tuple[int, int]]  # characters
    tags: list[str]
    probabilities: list[float]  # of each tag by itself
    windows: int

    @property
    def entities(self) -> list[Entity]:
        """The entities, as exact spans of the text."""
        entities = []
        for span in tag_spans(self.tags):
            start = self.spans[span.start][0]
            end = self.spans[span.stop - 1][1]
            probability = min(self.probabilities[span.start : span.stop])
            entities.append(Entity(self.text[start:end], span.label, start=start, end=end, probability=probability))
        return entities

    def to_dict(self) -> TaggedTextDict:
        """JSON form of the text with words, tags and entities."""
        return {
            "text": self.text,
            "words": self.words,
            "spans": [list(span) for span in self.spans],
            "tags": self.tags,
            "probabilities": [round(probability, 6) for probability in self.probabilities],
            "windows": self.windows,
            "backend": self.backend,
            "entities": [entity.to_dict() for entity in self.entities],
        }


class TokenClassificationPipeline(PicklablePipeline):
    """Tags the words of texts; `truncation_report` counts how texts were read so far."""

    task_name = TASK

    def __init__(self, tagger: TokenClassifier, tags: Sequence[str], task: dict[str, Any]) -> None:
        self.tagger = tagger
        self.tags = list(tags)
        self.task = task
        self.transitions = tag_transitions(self.tags)
        self.truncation_report = TruncationReport()
        self._report_lock = ForkSafeLock()

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark entities (BIO), rather than single words."""
        return any(tag.startswith("B-") for tag in self.tags)

    def stream(self, texts: Iterable[str], *, is_pretokenized: bool = False) -> Iterator[TaggedText]:
        """Yield each text tagged, in order; the words of a pretokenized text are separated by white space."""
        pending = iter(texts)
        find_words = _whitespace_spans if is_pretokenized else split_words
        while batch := list(islice(pending, TEXTS_PER_BATCH)):
            yield from self._tag_batch(batch, [find_words(text) for text in batch])

    def _tag_batch(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[TaggedText]:
        predictions = self.tagger.predict(texts, spans)
        with self._report_lock:
            self.truncation_report.add(predictions.truncation_report)
        for index, (text, text_spans, logprobs) in enumerate(zip(texts, spans, predictions.logprobs, strict=True)):
            tag_ids = viterbi(logprobs, self.transitions) if len(logprobs) else np.zeros(0, dtype=np.int64)
            tagged = TaggedText(
                text,
                [text[start:end] for start, end in text_spans],
                spans=list(text_spans),
                tags=[self.tags[tag_id] for tag_id in tag_ids],
                probabilities=np.exp(logprobs[np.arange(len(tag_ids)), tag_ids]).tolist(),
                windows=int(predictions.windows[index]),
            )
            yield attach_recorder(tagged, partial(self._build_record, tagged, logprobs), predictions.backend)

    def _build_record(self, tagged: TaggedText, logprobs: NDArray[np.float64], config: RecordConfig) -> Record:
        """Record a tagged text; each word is a step whose token is its tag."""
        texts = {"target": RecordText.from_labels(" ".join(tagged.tags), tagged.tags)}
        tag_ids = [self.tags.index(tag) for tag in tagged.tags]
        steps = decoding_steps(logprobs, tag_ids, lambda ids: [self.tags[tag_id] for tag_id in ids], config.candidates)
        return self.tagger.record(tagged.text, config, texts, steps)

    def tag(self, texts: Sequence[str], *, is_pretokenized: bool = False) -> list[TaggedText]:
        """Tag each text."""
        return list(self.stream(texts, is_pretokenized=is_pretokenized))

    def __call__(self, text: str) -> TaggedText:
        """Tag one text."""
        return self.tag([text])[0]

    def tag_sentences(self, sentences: TaggedSentences) -> list[list[str]]:
        """Predict the tags of pretokenized sentences."""
        predictions: list[list[str]] = []
        for start in range(0, len(sentences), TEXTS_PER_BATCH):
            batch = sentences.sentences[start : start + TEXTS_PER_BATCH]
            spans = [word_spans(sentence.words) for sentence in batch]
            tagged_texts = self._tag_batch([sentence.text for sentence in batch], spans)
            predictions += [tagged.tags for tagged in tagged_texts]
        return predictions

    def predict_examples(self, examples: TaggedSentences) -> PredictedTags:
        """Predict the tags of a test set; the result is the argument of every metric."""
        return self._collect(examples, self.tag_sentences(examples))

    def _collect(self, examples: TaggedSentences, predictions: Sequence[Sequence[str]]) -> PredictedTags:
        """Predicted tags beside those of the examples."""
        examples.tag_ids(self.tags)  # reject unknown tags
        predictions_class = PredictedEntities if self.has_entities else PredictedTags
        return predictions_class(
            predictions=predictions, references=[list(sentence.tags) for sentence in examples.sentences]
        )

    def evaluate(
        self, examples: TaggedSentences, predictions: Sequence[Sequence[str]], *, metrics: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Strict entity F1, over all labels and by label, and metrics by name."""
        collected = self._collect(examples, predictions)
        labels = sorted({tag[2:] for tag in self.tags if tag.startswith("B-")})
        f1_by_label = {}
        for label in labels:
            references = _keep_label(collected.references, label)
            f1_by_label[label] = entity_scores(_keep_label(predictions, label), references)["f1"]
        scores = Scoring(self.task_name, tuple(metrics)).compute_final(collected)
        return {"sentences": len(examples), **scores, "f1_by_label": f1_by_label}


def _keep_label(sentences: Sequence[Sequence[str]], label: str) -> list[list[str]]:
    """Replace the tags of all other labels by O."""
    return [[tag if tag[2:] == label else "O" for tag in tags] for tags in sentences]


def _whitespace_spans(text: str) -> list[tuple[int, int]]:
    spans = []
    end = 0
    for word in text.split():
        start = text.index(word, end)
        end = start + len(word)
        spans.append((start, end))
    return spans
