"""Readers of stories as one sequence of words: encoders and RNNs. Without torch where the engine computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from regard.backends import EncoderBackend
from regard.config.inference import RecordConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.pipeline.records.encoder_records import EncoderRecorder, encode_row
from regard.pipeline.story_qa import TASK, StoryAnswer
from regard.tasks.story_qa import StoryPrediction, StoryReferences
from regard.tasks.story_sequence import StoryEncoder
from regard.tasks.text_model import TextPreprocessor
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.models.text_classifier import TextClassifierModel


@dataclass(frozen=True)
class SequenceReader:
    """A model that reads story and question as one sequence; subclasses record its attention."""

    model: Any
    encoder: StoryEncoder
    unit = ""
    backend = ""

    @property
    def answers(self) -> tuple[str, ...]:
        """Answers that occurred in training."""
        return self.encoder.answers

    def predict(
        self, stories: StoryQuestions, *, strict: bool = False, top_k: int = 1
    ) -> tuple[StoryReferences, list[StoryPrediction]]:
        """Answer questions; with `strict`, known answers that do not occur in training are errors."""
        sequences = self.encoder.encode(stories, strict=strict)
        predictions, _ = self.encoder.predict(self.model, sequences, top_k=top_k)
        return sequences.references, predictions

    def record(self, question: StoryQuestion, answer: StoryAnswer, config: RecordConfig) -> Record:
        """Record the attention over story and question."""
        raise NotImplementedError


@dataclass(frozen=True)
class EncoderStoryReader(SequenceReader):
    """A Transformer encoder that reads story and question as a pair of texts."""

    model: EncoderBackend
    unit = "layer"

    @property
    def backend(self) -> str:  # type: ignore[override]  # an encoder has a choice
        """What computes the answers, and in which precision."""
        return self.model.backend_name

    def record(self, question: StoryQuestion, answer: StoryAnswer, config: RecordConfig) -> Record:
        """Record the attention of all layers over story and question."""
        text = self.encoder.formatter.format(question)
        special_tokens = self.encoder.special_tokens
        row = encode_row(special_tokens, text.story, text.question, max_length=self.encoder.max_length)
        return EncoderRecorder(self.model, special_tokens).record(
            row,
            config,
            task=TASK,
            title=question.text,
            extra_parts=lambda _: {"prediction": answer.probabilities, "omissions": answer.omissions},
        )


@dataclass(frozen=True)
class TextModelStoryReader(SequenceReader):
    """An RNN that reads story and question as one text."""

    model: TextClassifierModel
    unit = "pooling"

    @property
    def preprocessor(self) -> TextPreprocessor:
        """What turns story and question, as one text, into tokens."""
        return TextPreprocessor(self.encoder.tokenizer, self.encoder.max_length)

    def record(self, question: StoryQuestion, answer: StoryAnswer, config: RecordConfig) -> Record:
        """Record the attention of the pooling over story and question, where there is any."""
        from regard.pipeline.records.text_model_records import TextModelRecorder

        text = self.encoder.formatter.format(question).text
        recorder = TextModelRecorder(self.model, self.preprocessor)
        record = recorder.record(text, config, task=TASK, label=str(answer), prediction=answer.probabilities)
        return replace(record, title=question.text, omissions=(*record.omissions, *answer.omissions))
