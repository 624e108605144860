"""Spans of passages and their probabilities."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from regard.config.data import TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.models import build_model
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer
from regard.view.record.parts import SpanProbabilities

QUESTION = "who sleeps"
PASSAGE = "the old dog sleeps"
SPECIAL_TOKENS = SpecialTokens(with_mask_token(train_tokenizer([QUESTION, PASSAGE] * 3, TokenizerConfig(kind="words"))))


@pytest.fixture(scope="module")
def encoder() -> Bert:
    """An encoder with random weights that scores starts and ends."""
    config = BertConfig(
        vocab_size=SPECIAL_TOKENS.tokenizer.vocab_size,
        hidden_size=16,
        stack=StackConfig(num_layers=1, num_heads=2, feed_forward_size=20),
        max_positions=32,
        head="span",
        num_labels=2,
    )
    model = build_model(config)
    assert isinstance(model, Bert)
    initialize_bert(model, 3, 0.3)
    return model.eval().pack()


@pytest.mark.parametrize("threshold", [1e6, -1e6])
def test_the_probability_of_no_answer_does_not_depend_on_the_number_of_alternatives(
    encoder: Bert, threshold: float
) -> None:
    pipeline = QuestionAnsweringPipeline(encoder, SPECIAL_TOKENS, 16, {"threshold": threshold})
    row = SPECIAL_TOKENS.encode(QUESTION, PASSAGE)
    packed = Tokens.from_rows([row.ids])
    logits = encoder.logits(Tokens(packed.ids, packed.offsets, np.array(row.token_types, dtype=np.int32)))
    positions = [position for position, side in enumerate(row.sides) if side == 1]
    scores = [
        float(logits[start, 0]) + float(logits[end, 1]) for start, end in product(positions, repeat=2) if start <= end
    ]
    no_answer_score = float(logits[0].sum())
    expected = np.exp(no_answer_score) / np.exp([no_answer_score, *scores]).sum()
    for top_k in (1, 2, 5, 100):
        (answer,) = pipeline.answer([(QUESTION, PASSAGE)], top_k=top_k)
        assert bool(answer.text) == (threshold < 0)
        assert answer.no_answer_probability == pytest.approx(expected, rel=1e-5)
        assert answer.to_dict()["no_answer_probability"] == pytest.approx(expected, abs=1e-6)
        if not answer.text:
            assert answer.score == answer.no_answer_probability
        prediction = answer.record().prediction
        assert isinstance(prediction, SpanProbabilities)
        assert prediction.no_answer == pytest.approx(expected, rel=1e-5)
    all_answers = [answer, *answer.alternatives] if answer.text else answer.alternatives
    assert sum(span.score for span in all_answers) + expected == pytest.approx(1, rel=1e-5)
