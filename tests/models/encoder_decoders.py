"""What every model that writes must keep to."""

import numpy as np
import pytest

from regard.models.base import EncoderDecoder
from regard.tokens import Tokens


def steps_equal_the_whole(model: EncoderDecoder, source: Tokens, target: Tokens, within: float) -> list[np.ndarray]:
    """Check that steps give each token the whole pass's log-probability, and rows alone theirs; return the whole's."""
    whole = model.target_logprobs(source, target)
    state = model.start(source, max_length=2)  # smaller than needed: a cache grows
    wanted = [[*row.tolist(), model.eos_id] for row in target]
    token = np.full(len(wanted), model.bos_id)
    for place in range(max(map(len, wanted))):
        candidates, state = model.step(token, state, 0)
        for row, tokens in enumerate(wanted):
            if place < len(tokens):
                assert candidates.logprobs[row, tokens[place]] == pytest.approx(whole[row][place], abs=within)
        token = np.array([row[min(place, len(row) - 1)] for row in wanted])
    for row in range(len(wanted)):
        alone = model.target_logprobs(Tokens.from_rows([source.row(row)]), Tokens.from_rows([target.row(row)]))
        np.testing.assert_allclose(alone[0], whole[row], atol=within)
    return whole
