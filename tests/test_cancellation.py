"""Cancelled work ends at its next step: in the search, in the engine, between layers and between batches."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from regard.cancellation import Cancellation
from regard.config.inference import DecodingConfig
from regard.decoding.search import search
from regard.engine.library import unavailable_reason
from regard.errors import CancelledError
from regard.packed_tokens import Tokens
from tests.engine.conftest import build_engine, translator
from tests.families import SOURCE, encoder

MAX_LENGTH = 200_000  # tokens, which take minutes
needs_engine = pytest.mark.skipif(bool(unavailable_reason()), reason="no engine")


def endless_translator() -> Any:
    model = translator(output_bias=True, max_positions=MAX_LENGTH)
    with torch.no_grad():
        model.lm_head_bias[model.config.eos_id] = -100.0
    return model


@needs_engine
@pytest.mark.parametrize("beam", [1, 3])
def test_another_thread_ends_a_search_in_the_engine(beam: int) -> None:
    engine = build_engine(endless_translator())
    source = Tokens.from_rows([np.array([5, 6, 7])])
    cancellation = Cancellation()
    is_started = threading.Event()
    errors: list[Exception] = []

    def search_endlessly() -> None:
        with cancellation.activate():
            is_started.set()
            try:
                search(engine, source, DecodingConfig(beam=beam), max_lengths=[MAX_LENGTH])
            except CancelledError as error:
                errors.append(error)

    thread = threading.Thread(target=search_endlessly)
    thread.start()
    is_started.wait()
    cancellation.cancel()
    thread.join()
    assert len(errors) == 1
    limits = source.lengths.astype(np.int64) + 4
    with Cancellation().activate():  # which nobody cancels
        assert search(engine, source, DecodingConfig(beam=beam), max_lengths=limits) == search(
            engine, source, DecodingConfig(beam=beam), max_lengths=limits
        )


def test_a_forward_pass_ends_between_layers() -> None:
    cancellation = Cancellation()
    model: Any = encoder()
    num_layers = 0

    def count_and_cancel(*_: object) -> None:
        nonlocal num_layers
        num_layers += 1
        cancellation.cancel()

    for block in model.encoder.layer_blocks:
        block.register_forward_hook(count_and_cancel)
    with cancellation.activate(), pytest.raises(CancelledError):
        model.encode(SOURCE)
    assert num_layers == 1 < len(model.encoder.layer_blocks)


@needs_engine
def test_the_engine_encodes_no_further_batch() -> None:
    engine = build_engine(translator())
    cancellation = Cancellation()
    with cancellation.activate(), pytest.raises(CancelledError):
        engine.encode(SOURCE)
        cancellation.cancel()
        engine.encode(SOURCE)
