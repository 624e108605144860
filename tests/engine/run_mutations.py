"""Open mutated engine files and use what opens: `python -m tests.engine.run_mutations [OPTIONS] INDEX…`.

Every file is refused in one line, or its model computes: with ids inside and outside of the vocabulary, on the
instruction sets in turn. With `--library` the C++ part is another build, under sanitizers for instance, and arrays are
copied into allocations of exactly their size, so that an access beyond one is noticed. Prints a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.intervention import ablate
from regard.attention.trace import trace
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig
from regard.decoding.search import search
from regard.engine import library
from regard.engine.causal import CausalEngine
from regard.engine.encoder import EncoderEngine
from regard.engine.file import EngineFile, read_engine_file
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError
from regard.packed_tokens import Tokens
from tests.engine.mutations import mutate

MAX_MESSAGE = 1000  # characters
MAX_FIXED_BYTES = 64 << 20  # that a loader may request beside twice the size of the file


class Meter:
    """Live bytes requested while a block runs, at their peak; 0 in a library without `regard_checked_peak_bytes`."""

    def __init__(self) -> None:
        self._reset = getattr(library.load_library().handle, "regard_checked_peak_bytes", None)
        if self._reset is not None:
            self._reset.restype = library._Long
        self.peak = 0

    @contextmanager
    def measure(self) -> Iterator[None]:
        if self._reset is not None:
            self._reset()
        try:
            yield
        finally:
            self.peak = max(self.peak, self._reset() if self._reset is not None else 0)


def open_engine(stored: EngineFile, instructions: str) -> EncoderEngine | TranslatorEngine | CausalEngine:
    """The model of a file, as the loaders of folders create it."""
    arguments: Any = (stored.config, stored.arrays, stored.precision, instructions)
    if isinstance(stored.config, BertConfig):
        return EncoderEngine(*arguments)
    if isinstance(stored.config, GptConfig):
        return CausalEngine(*arguments)
    engine = TranslatorEngine(*arguments)
    engine.shortlist = stored.shortlist
    return engine


def draw_texts(vocab_size: int, lengths: tuple[int, ...], longest: int) -> Tokens:
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, vocab_size, min(length, longest)) for length in lengths]
    texts[0][0] = vocab_size - 1
    return Tokens.from_rows(texts)


def expect_rejection(function: Callable[[], object]) -> None:
    try:
        function()
    except UsageError:
        return
    raise AssertionError("ids outside of the vocabulary were accepted")


def use_encoder(engine: EncoderEngine) -> None:
    config = engine.config
    texts = draw_texts(config.vocab_size, (17, 1, 40, 3), config.max_positions)
    for threads in (1, 3):
        engine.threads = threads
        hidden = engine.encode(texts)
        assert hidden.shape == (len(texts.ids), config.hidden_size)
        for pooling in (("mean",), ("cls",), ("mean", "cls", "max")):
            engine.embed_texts(texts, pooling)
    if config.num_token_types:
        types = np.full(len(texts.ids), config.num_token_types - 1, np.int32)
        engine.encode(texts, types)
        if config.num_token_types > 1:
            expect_rejection(lambda: engine.encode(texts, types + 1))
    if config.num_outputs:
        engine.logits(texts)
    for outside in (-1, config.vocab_size):
        expect_rejection(lambda outside=outside: engine.encode(Tokens.from_rows([[0], [outside]])))


def use_translator(engine: TranslatorEngine) -> None:
    config = engine.config
    texts = draw_texts(config.source_vocab_size, (9, 1, 21), config.max_positions)
    engine.encode(texts)
    longest = min(36, config.max_positions)
    for beam in (1, 4):
        for use_shortlist in (False, True):
            try:
                hypotheses = engine.search(
                    texts,
                    np.array([longest, 1, longest // 2]),
                    beam=beam,
                    nbest=beam,
                    length_penalty=1.0,
                    use_shortlist=use_shortlist,
                )
            except UsageError as error:  # of a lexicon without enough tokens, or a vocabulary of few
                check_message(error)
                continue
            for ids, _, _, _ in (hypothesis for of_text in hypotheses for hypothesis in of_text):
                assert len(ids) <= longest
                assert all(0 <= token_id < engine.vocab_size for token_id in ids)
    state = engine.start(texts, longest)
    tokens = np.full(3, config.bos_id, np.int32)
    for k in (min(5, engine.vocab_size), 0, engine.vocab_size):
        candidates, state = engine.step(tokens, state, k)
        check_candidates(candidates.ids, engine.vocab_size)
    state.select(np.array([2, 0, 0, 1, 2]))
    engine.step(np.full(5, engine.vocab_size - 1, np.int32), state, 2)
    expect_rejection(lambda: engine.step(np.full(5, engine.vocab_size, np.int32), state, 2))
    expect_rejection(lambda: state.select(np.array([5])))
    target = draw_texts(config.target_vocab_size, (4, 2, 1), config.max_positions - 1 or 1)
    engine.target_logprobs(texts, target)
    for outside in (-1, config.source_vocab_size):
        expect_rejection(lambda outside=outside: engine.start(Tokens.from_rows([[outside]]), 3))


def use_causal(engine: CausalEngine) -> None:
    config = engine.config
    prompts = draw_texts(config.vocab_size, (7, 7), 7)
    state = engine.start(prompts, 9)
    tokens = np.zeros(2, np.int32)
    for step in range(min(40, config.max_positions + 3)):  # beyond the positions where they are few
        candidates, state = engine.step(tokens, state, (3, 0)[step % 2])
        check_candidates(candidates.ids, engine.vocab_size)
        tokens = np.array([0, engine.vocab_size - 1], np.int32)
    state = state.select(np.array([1, 1, 0]))
    engine.step(np.zeros(3, np.int32), state, min(4, engine.vocab_size))
    for settings in (DecodingConfig(beam=1), DecodingConfig(beam=1, sample=True, nbest=2)):
        for of_text in search(engine, prompts, settings, max_lengths=[9, 4]):
            for hypothesis in of_text:
                check_candidates(np.array(hypothesis.ids, np.int64), engine.vocab_size)
    for outside in (-1, config.vocab_size):
        expect_rejection(lambda outside=outside: engine.start(Tokens.from_rows([[0, outside, 1]]), 3))


def check_candidates(ids: np.ndarray, vocab_size: int) -> None:
    assert ((ids >= 0) & (ids < vocab_size)).all(), f"token ids {ids.min()} to {ids.max()} of {vocab_size}"


def check_message(error: UsageError) -> None:
    message = str(error)
    assert "\n" not in message and 10 < len(message) < MAX_MESSAGE, message


def use(engine: EncoderEngine | TranslatorEngine | CausalEngine) -> None:
    if isinstance(engine, EncoderEngine):
        use_encoder(engine)
    elif isinstance(engine, TranslatorEngine):
        use_translator(engine)
    else:
        use_causal(engine)


def run(path: Path, instructions: str, meter: Meter, *, should_copy: bool) -> bool:
    """Open a file and use it; whether it was accepted."""
    try:
        with meter.measure():
            stored = read_engine_file(path)
        if should_copy:
            stored.arrays[:] = [array.copy() for array in stored.arrays]
        with meter.measure():
            engine = open_engine(stored, instructions)
    except UsageError as error:
        check_message(error)
        return False
    with np.errstate(all="ignore"):
        use(engine)
        use_attention(engine)
    return True


def use_attention(engine: EncoderEngine | TranslatorEngine | CausalEngine) -> None:
    """Capture every site, and ablate a head of the first and of the last one."""
    vocab_size = getattr(engine.config, "vocab_size", 0) or engine.config.source_vocab_size
    texts = draw_texts(vocab_size, (6, 6), engine.config.max_positions)

    def compute() -> np.ndarray:
        if isinstance(engine, EncoderEngine):
            return engine.encode(texts)
        candidates, _ = engine.step(np.zeros(2, np.int32), engine.start(texts, 3), 0)
        return candidates.logprobs

    expected = compute()
    for store in ("weights", "qkv"):
        with trace(store=store):
            assert np.array_equal(compute(), expected, equal_nan=True), "a trace changed the output"
    first, *_, last = [*engine.attention_sites(), *engine.attention_sites()]
    with ablate([f"{first}:0", f"{last}:0"]):
        compute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("indices", nargs="+", type=int)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time that each file may take")
    parser.add_argument("--all-sets", action="store_true", help="use each file on all instruction sets, not on one")
    options = parser.parse_args()
    if options.library:
        library.FILE = options.library
    names = [name for name in library.load_library().instructions if "faulty" not in name]
    meter = Meter()
    num_accepted = 0
    slowest = 0.0
    largest_excess = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.safetensors"
        for index in options.indices:
            description, content = mutate(index)
            print(description, file=sys.stderr, flush=True)
            path.write_bytes(content)
            for name in names if options.all_sets else [names[index // 20 % len(names)]]:
                meter.peak = 0
                start = time.process_time()
                is_accepted = run(path, name, meter, should_copy=bool(options.library))
                seconds = time.process_time() - start
                assert seconds < options.seconds, f"{seconds:.1f} s on {name}"
                excess = meter.peak - 2 * len(content)
                assert excess < MAX_FIXED_BYTES, f"{meter.peak:,} bytes requested for a file of {len(content):,}"
                slowest = max(slowest, seconds)
                largest_excess = max(largest_excess, excess)
            num_accepted += is_accepted
    summary = {
        "files": len(options.indices),
        "accepted": num_accepted,
        "instruction_sets": names,
        "slowest_seconds": round(slowest, 2),
        "largest_excess_bytes": largest_excess,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
