"""What every model that writes must keep to."""

import numpy as np
import pytest

from regard.models.writer import Writer
from regard.tokens import Tokens


def steps_equal_the_whole(model: Writer, source: Tokens, target: Tokens, within: float) -> list[np.ndarray]:
    """Check that steps give each token the whole pass's log-probability, and rows alone theirs; return the whole's."""
    whole = model.score_tokens(source, target)
    state = model.start(source, room=2)  # smaller than needed: a cache grows
    wanted = [[*row.tolist(), model.end_token] for row in target]
    token = np.full(len(wanted), model.start_token)
    for place in range(max(map(len, wanted))):
        candidates, state = model.step(token, state, 0)
        for row, tokens in enumerate(wanted):
            if place < len(tokens):
                assert candidates.logp[row, tokens[place]] == pytest.approx(whole[row][place], abs=within)
        token = np.array([row[min(place, len(row) - 1)] for row in wanted])
    for row in range(len(wanted)):
        alone = model.score_tokens(Tokens.from_rows([source.row(row)]), Tokens.from_rows([target.row(row)]))
        np.testing.assert_allclose(alone[0], whole[row], atol=within)
    return whole
