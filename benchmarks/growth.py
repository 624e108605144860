"""How time grows with the text: tokenising and splitting long runs of awkward characters must stay linear.

python -m benchmarks.growth
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

from regard.config.data import TokenizerConfig
from regard.text.learn import learn
from regard.text.sentences import split_sentences

KINDS = [" ", "a", "\u0301", "👩\u200d", "א", "語", "7", ".", "a ", "\t", "é1 ", "A b. ", "?!", "Mr. "]
LENGTHS = (250_000, 500_000, 1_000_000)


def seconds(work: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    work(text)
    return time.process_time() - began


def main() -> None:
    tokenizer = learn(["the quick brown fox jumps over the lazy dog 123"] * 50, TokenizerConfig())
    for name, work in (("tokenise", lambda text: tokenizer.encode_all([text])), ("split", split_sentences)):
        for kind in KINDS:
            taken = [seconds(work, kind * (length // len(kind))) for length in LENGTHS]
            growth = max(later / max(1e-3, earlier) for earlier, later in itertools.pairwise(taken))
            row = {"bench": name, "kind": kind, "seconds_per_million": round(taken[-1], 3)}
            print(json.dumps({**row, "growth_when_doubled": round(growth, 2)}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
