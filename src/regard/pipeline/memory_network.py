"""Reader of stories with a memory network."""

from __future__ import annotations

from regard.config.inference import RecordConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.models.memory_network import MemoryNetwork
from regard.pipeline.story_qa import StoryAnswer, hop_record
from regard.tasks.story_memory import encode_stories, predict_answers
from regard.tasks.story_qa import StoryPrediction, StoryReferences, StoryVocabulary
from regard.view.record.record import Record
from regard.view.terminal import HOP


class MemoryNetworkReader:
    """A memory network with its vocabulary."""

    unit = HOP
    backend = ""

    def __init__(self, model: MemoryNetwork, vocabulary: StoryVocabulary) -> None:
        self.model = model.eval()
        self.vocabulary = vocabulary

    @property
    def answers(self) -> frozenset[str]:
        """Answers that occurred in training."""
        return self.vocabulary.answers

    def predict(
        self, stories: StoryQuestions, *, strict: bool = False, top_k: int = 1
    ) -> tuple[StoryReferences, list[StoryPrediction]]:
        """Answer questions; with `strict`, known answers that do not occur in training are errors."""
        examples = encode_stories(stories, self.vocabulary, self.model.config, strict=strict)
        return examples.references(self.vocabulary), predict_answers(self.model, self.vocabulary, examples, top_k=top_k)

    def record(self, question: StoryQuestion, answer: StoryAnswer, config: RecordConfig) -> Record:
        """Record the attention of the hops, which the answer has."""
        return hop_record(answer)
