"""Checks that every encoder–decoder must pass."""

import numpy as np
import pytest

from regard.models.base import EncoderDecoder
from regard.packed_tokens import Tokens


def check_steps_equal_the_forward_pass(
    model: EncoderDecoder, source: Tokens, target: Tokens, tolerance: float
) -> list[np.ndarray]:
    """Check that decoding steps and sequences alone have the log-probabilities of the whole batch; return these."""
    logprobs = model.target_logprobs(source, target)
    state = model.start(source, max_length=2)  # smaller than needed: the cache must grow
    labels = [[*row.tolist(), model.eos_id] for row in target]
    tokens = np.full(len(labels), model.bos_id)
    for position in range(max(map(len, labels))):
        candidates, state = model.step(tokens, state, 0)
        for row, row_labels in enumerate(labels):
            if position < len(row_labels):
                logprob = candidates.logprobs[row, row_labels[position]]
                assert logprob == pytest.approx(logprobs[row][position], abs=tolerance)
        tokens = np.array([row_labels[min(position, len(row_labels) - 1)] for row_labels in labels])
    for row in range(len(labels)):
        alone = model.target_logprobs(Tokens.from_rows([source.row(row)]), Tokens.from_rows([target.row(row)]))
        np.testing.assert_allclose(alone[0], logprobs[row], atol=tolerance)
    return logprobs
