"""Predictions as functions of their input tokens: labels, spans and translations, for attribution and ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.attention.rollout import roll_out, rollout_step
from regard.attention.trace import Trace, trace
from regard.backends import EncoderBackend
from regard.config.description import has_residual
from regard.data.babi import StoryQuestion
from regard.decoding.generator import ScoringGenerator
from regard.errors import UsageError, nearest
from regard.packed_tokens import Ids, Tokens
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, TextModelClassifier
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.sentence_pairs import TranslatedSentence, encode_source, split_pair
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.story_readers import SequenceReader, TextModelStoryReader
from regard.pipeline.translation import TranslationPipeline
from regard.pipeline.translation_result import Translation
from regard.tasks.question_answering import MASKED_LOGIT, EncodedPassages, answerable_positions
from regard.tasks.windows import encode_texts
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regard.attention.packed_batch import PackedBatch
    from regard.models.base import EncoderDecoder
    from regard.models.bert import Bert

Floats = NDArray[np.float64]


class Explainable(Protocol):
    """A prediction as a function of its input tokens."""

    backend: Any  # what computes the answer
    input_ids: Ids
    is_special: NDArray[np.bool_]  # tokens that are never replaced
    baseline_id: int  # token that replaces others
    target: str  # what is explained: a label, a span, a translation

    @property
    def model(self) -> Any:
        """The model in torch, for gradients."""
        ...

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the input tokens in torch; the first embedding that a forward pass calls."""
        ...

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the prediction for each sequence of input tokens in torch, [sequences]."""
        ...

    def scores(self, tokens: Tokens) -> Floats:
        """The same, computed by the backend that answers, [sequences]."""
        ...

    def attention(self) -> Floats:
        """Attention that each input token receives, [tokens]."""
        ...


def explainable_predictions(pipeline: Any, inputs: Sequence[str], label: str = "") -> list[Explainable]:
    """Predictions to explain: one, or one for each sentence of a translation."""
    if isinstance(pipeline, ClassificationPipeline) and 1 <= len(inputs) <= 2:
        return [_explainable_label(pipeline, inputs, label)]
    if isinstance(pipeline, QuestionAnsweringPipeline) and len(inputs) == 2:
        question, passage = inputs
        return [_ExplainableSpan.from_pipeline(pipeline, question, passage)]
    if isinstance(pipeline, StoryQAPipeline) and len(inputs) > 1:
        return [_explainable_story_answer(pipeline, inputs, label)]
    if isinstance(pipeline, TranslationPipeline) and 1 <= len(inputs) <= 2:
        return _explainable_sentences(pipeline, inputs[0], inputs[1] if len(inputs) == 2 else pipeline(inputs[0]))
    raise UsageError(
        "attribution is for labels (a text, or two), answers (a question, and a passage or the sentences of a story) "
        f"and translations (a text, its translation), not for a {type(pipeline).__name__} and {len(inputs)} texts"
    )


def _explainable_label(pipeline: ClassificationPipeline, inputs: Sequence[str], label: str) -> Explainable:
    label = label or next(iter(pipeline(*inputs).probabilities), "")
    if label not in pipeline.labels:
        raise UsageError(f"no label {label!r}{nearest(label, pipeline.labels)}: {', '.join(pipeline.labels)}")
    label_index = pipeline.labels.index(label)
    classifier = pipeline.classifier
    if isinstance(classifier, TextModelClassifier):
        if len(inputs) > 1:
            raise UsageError("this classifier reads single texts, not pairs: give one text")
        return _ExplainableRnnLabel(classifier, inputs[0], label, label_index)
    assert isinstance(classifier, EncoderClassifier)
    is_multi_label = pipeline.thresholds is not None
    return _ExplainableLabel(classifier, inputs, label, label_index, is_multi_label)


def _explainable_story_answer(pipeline: StoryQAPipeline, inputs: Sequence[str], label: str) -> Explainable:
    """Answer to a question about a story, as the label of the sequence of both."""
    question, *sentences = inputs
    reader = pipeline.reader
    if not isinstance(reader, SequenceReader):
        raise UsageError("attribution and head importance are for models that read tokens: this one reads sentences")
    encoder = reader.encoder
    text = encoder.formatter.format(StoryQuestion("", tuple(sentences), question))
    classifier: TextModelClassifier | EncoderClassifier
    if isinstance(reader, TextModelStoryReader):
        classifier = TextModelClassifier(reader.model, reader.preprocessor)
        texts: tuple[str, ...] = (text.text,)
    else:
        classifier = EncoderClassifier(reader.model, encoder.special_tokens, encoder.max_length)
        texts = (text.story, text.question)
    return _explainable_label(ClassificationPipeline(classifier, {"labels": encoder.answers}), texts, label)


def _explainable_sentences(pipeline: TranslationPipeline, source: str, target: str) -> list[Explainable]:
    if isinstance(target, Translation) and target.source == source:
        sentences = target.sentences
        backend = pipeline.models_of(target.backend)[0]
    else:
        sentences = split_pair(source, target, pipeline.target, split=True)
        backend = pipeline.models_of()[0]
    predictions: list[Explainable] = []
    for sentence in sentences:
        if sentence.ids:
            predictions.append(_ExplainableTranslation(pipeline, sentence, backend))
    if not predictions:
        raise UsageError("the translation is empty: there is nothing to explain")
    return predictions


def _baseline_token(tokenizer: Tokenizer, mask_id: int = -1) -> int:
    """Token that carries no content: mask, else unknown, padding or eos."""
    candidates = (mask_id, tokenizer.unk_id, tokenizer.pad_id, tokenizer.eos_id, 0)
    return next(token_id for token_id in candidates if token_id >= 0)


def _find_special(input_ids: Ids, tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens are special; the unknown token counts as content."""
    return np.isin(input_ids, sorted(tokenizer.special_ids - {tokenizer.unk_id}))


def _attention_rollout(model: EncoderBackend, tokens: Tokens, positions: Sequence[int]) -> Floats:
    """Attention rollout (Abnar and Zuidema 2020): how much of each token reaches these positions, [tokens]."""
    with trace() as captured:
        model.encode(tokens)
    rollout = _roll_out(captured, int(tokens.lengths[0]), model.config)
    return np.asarray(rollout[list(positions)].mean(axis=0))


def _roll_out(captured: Trace, num_tokens: int, config: object) -> Floats:
    """How much of each token reaches each position through the self-attention of all layers, [tokens, tokens]."""
    steps: list[NDArray[np.floating[Any]]] = [np.eye(num_tokens)]
    for site in captured:
        weights = captured[site].weights[0].mean(axis=0).astype(np.float64)  # [queries, keys]
        steps.append(rollout_step(weights, has_residual=has_residual(config, site)))
    return np.asarray(roll_out(steps), dtype=np.float64)


def _log_softmax(logits: Floats, axis: int) -> Floats:
    shifted = logits - logits.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


class _TorchScores:
    """Scores of a prediction whose model is in torch."""

    @property
    def model(self) -> Any:
        """The model in torch, which also computes the answer."""
        return self.backend

    backend: Any

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the prediction for each sequence of input tokens, [sequences]."""
        raise NotImplementedError

    def scores(self, tokens: Tokens) -> Floats:
        """The same without gradient."""
        import torch

        with torch.no_grad():
            scores: Floats = self.logprobs(tokens).double().cpu().numpy()
        return scores


class _ExplainableRow:
    """A row as an encoder reads it."""

    def __init__(
        self, backend: EncoderBackend, special_tokens: SpecialTokens, input_ids: Ids, token_types: Ids, target: str
    ) -> None:
        self.backend = backend
        self.input_ids = input_ids
        self.token_types = token_types
        self.target = target
        self.is_special = _find_special(input_ids, special_tokens.tokenizer)
        self.baseline_id = _baseline_token(special_tokens.tokenizer, special_tokens.mask_id)

    @property
    def model(self) -> Bert:
        """The encoder in torch."""
        return self.backend.torch_model()

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the input tokens in torch."""
        return self.model.token_embedding

    def add_token_types(self, tokens: Tokens) -> Tokens:
        """Sequences like this row, with its token types."""
        return Tokens(tokens.ids, tokens.offsets, np.tile(self.token_types, len(tokens)))

    def encode(self, tokens: Tokens) -> tuple[Tensor, PackedBatch]:
        """Hidden states of all tokens, and the layout of the batch."""
        tokens = self.add_token_types(tokens)
        ids, packed = self.model.to_tensors(tokens)
        return self.model(ids, packed, self.model.token_type_tensor(tokens)), packed

    def rollout(self, positions: Sequence[int]) -> Floats:
        """Attention rollout to these positions of the row."""
        return _attention_rollout(self.backend, self.add_token_types(Tokens.from_rows([self.input_ids])), positions)


class _ExplainableLabel(_ExplainableRow):
    """Label of an encoder; of a long text, in its first window."""

    def __init__(
        self, classifier: EncoderClassifier, inputs: Sequence[str], label: str, label_index: int, is_multi_label: bool
    ) -> None:
        pairs = [inputs[1]] if len(inputs) > 1 else None
        encoded = encode_texts(classifier.special_tokens, [inputs[0]], pairs, classifier.max_length)
        super().__init__(classifier.model, classifier.special_tokens, encoded.rows[0], encoded.token_types[0], label)
        self.label_index = label_index
        self.is_multi_label = is_multi_label
        self.temperature = classifier.temperature

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the label in torch."""
        from torch.nn import functional

        hidden, packed = self.encode(tokens)
        logits = self.model.head_logits(hidden, packed).float() / self.temperature
        logprobs = functional.logsigmoid(logits) if self.is_multi_label else logits.log_softmax(dim=1)
        return logprobs[:, self.label_index]

    def scores(self, tokens: Tokens) -> Floats:
        """Log-probability of the label."""
        logits = self.backend.logits(self.add_token_types(tokens)).astype(np.float64) / self.temperature
        if self.is_multi_label:
            return np.asarray(-np.logaddexp(0, -logits[:, self.label_index]))
        return _log_softmax(logits, axis=1)[:, self.label_index]

    def attention(self) -> Floats:
        """Attention rollout to the tokens that are pooled, from which the label is predicted."""
        config = self.backend.config
        positions = {"first": [0], "last": [len(self.input_ids) - 1]}.get(config.pooled_token)
        return self.rollout(range(len(self.input_ids)) if positions is None else positions)


class _ExplainableRnnLabel(_TorchScores):
    """Label of a classifier with its own vocabulary."""

    def __init__(self, classifier: TextModelClassifier, text: str, label: str, label_index: int) -> None:
        ((_, batch),) = classifier.preprocessor.encode([text]).batches()
        if batch.features is not None:
            raise UsageError("attribution is for models with their own embeddings: this one reads frozen features, too")
        tokenizer = classifier.preprocessor.tokenizer
        self.backend = classifier.model
        self.target = label
        self.label_index = label_index
        self.input_ids = batch.tokens.row(0)
        self.is_special = _find_special(self.input_ids, tokenizer)
        self.baseline_id = _baseline_token(tokenizer)
        self.embedding = classifier.model.input_embedding()

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the label."""
        from regard.models.text_classifier import TextBatch

        logits: Tensor = self.model.label_logits(TextBatch(tokens)).float()
        return logits.log_softmax(dim=1)[:, self.label_index]

    def attention(self) -> Floats:
        """Weights of the pooling, or the attention rollout to all tokens; uniform where there is no attention."""
        import torch

        from regard.attention.sites import POOLING_SITE
        from regard.models.text_classifier import TextBatch

        tokens = Tokens.from_rows([self.input_ids])
        with trace() as captured, torch.no_grad():
            self.model.label_logits(TextBatch(tokens))
        if POOLING_SITE in captured:
            return np.asarray(captured[POOLING_SITE].weights[0, 0, 0], dtype=np.float64)
        return np.asarray(_roll_out(captured, len(self.input_ids), self.model.config).mean(axis=0))


class _ExplainableSpan(_ExplainableRow):
    """Span that answers a question; of a long passage, in the window that holds it."""

    def __init__(
        self,
        pipeline: QuestionAnsweringPipeline,
        encoded: EncodedPassages,
        window_index: int,
        span: tuple[int, int],
        target: str,
    ) -> None:
        super().__init__(
            pipeline.model,
            pipeline.special_tokens,
            encoded.rows[window_index],
            encoded.token_types[window_index],
            target,
        )
        self.span = span  # positions of the first and the last token
        self.is_answerable = answerable_positions(encoded, np.array([window_index]))

    @classmethod
    def from_pipeline(cls, pipeline: QuestionAnsweringPipeline, question: str, passage: str) -> _ExplainableSpan:
        """Answer a question and locate the answer in its window."""
        answer = pipeline(question, passage)
        encoded = pipeline.encode([(question, passage)])
        if not answer.text:
            position = encoded.no_answer_positions[0]
            return cls(pipeline, encoded, 0, (position, position), "no answer")
        for window_index, spans in enumerate(encoded.spans):
            inside = [index for index, (start, end) in enumerate(spans) if start < answer.end and end > answer.start]
            if inside and spans[inside[0]][0] <= answer.start and spans[inside[-1]][1] >= answer.end:
                offset = encoded.passage_starts[window_index]
                span = (offset + inside[0], offset + inside[-1])
                return cls(pipeline, encoded, window_index, span, answer.text)
        raise UsageError(f"no window of the passage holds the answer {answer.text!r}")

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the start plus that of the end, in torch."""
        from regard.tasks.span_objective import SpanBatch, span_logits

        hidden, packed = self.encode(tokens)
        targets = np.tile(np.array([self.span]), (len(tokens), 1))
        batch = SpanBatch(self.add_token_types(tokens), targets, np.tile(self.is_answerable, len(tokens)))
        logits = span_logits(self.model, batch, hidden, packed, None)
        logprobs = logits.log_softmax(dim=1)  # [sequences, tokens, 2]
        start, end = self.span
        return logprobs[:, start, 0] + logprobs[:, end, 1]

    def scores(self, tokens: Tokens) -> Floats:
        """Log-probability of the start plus that of the end."""
        logits = self.backend.logits(self.add_token_types(tokens)).astype(np.float64)
        logits = logits.reshape(len(tokens), -1, 2)  # rows like this one are equally long
        masked_logits = np.where(self.is_answerable[:, None], logits, MASKED_LOGIT)
        logprobs = _log_softmax(masked_logits, axis=1)
        start, end = self.span
        return np.asarray(logprobs[:, start, 0] + logprobs[:, end, 1])

    def attention(self) -> Floats:
        """Attention rollout to the first and the last token of the answer."""
        return self.rollout(self.span)


class _ExplainableTranslation:
    """Translation of a sentence, as a function of its source tokens."""

    def __init__(
        self, pipeline: TranslationPipeline, sentence: TranslatedSentence, backend: ScoringGenerator[Any]
    ) -> None:
        self.pipeline = pipeline
        self.backend = backend
        self.input_ids = np.asarray(encode_source(pipeline.source, sentence), dtype=np.int32)
        self.target_ids = sentence.ids
        self.target = sentence.text
        self.is_special = _find_special(self.input_ids, pipeline.source)
        self.baseline_id = _baseline_token(pipeline.source)

    @property
    def model(self) -> EncoderDecoder:
        """The model in torch."""
        return self.pipeline.backends[0].torch_model()

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the source tokens in torch."""
        return self.model.embedding("source")

    def logprobs(self, tokens: Tokens) -> Tensor:
        """Log-probability of the translation in torch, eos included."""
        from regard.models.layers.losses import target_logprobs

        decoder_inputs, labels = self.model.shift_targets(self._targets(len(tokens)))
        hidden = self.model(tokens, decoder_inputs)
        label_ids, _ = self.model.to_tensors(labels)
        logprobs = target_logprobs(hidden, self.model.output_weight, self.model.lm_head_bias, label_ids)
        return logprobs.view(len(tokens), -1).sum(1)

    def scores(self, tokens: Tokens) -> Floats:
        """The same, computed by the backend that answers."""
        logprobs = self.backend.target_logprobs(tokens, self._targets(len(tokens)))
        return np.array([row_logprobs.sum(dtype=np.float64) for row_logprobs in logprobs])

    def attention(self) -> Floats:
        """Mean cross-attention weight of each source token; uniform for models without attention."""
        sites = [*self.backend.cross_attention_sites()]
        if not sites:
            return np.ones(len(self.input_ids))
        with trace(",".join(sites)) as captured:
            self.backend.target_logprobs(Tokens.from_rows([self.input_ids]), self._targets(1))
        site_means = [captured[site].weights[0].mean(axis=(0, 1)) for site in captured]
        return np.asarray(np.mean(site_means, axis=0), dtype=np.float64)

    def _targets(self, count: int) -> Tokens:
        """The translation, once for each source."""
        return Tokens.from_rows([self.target_ids] * count)
