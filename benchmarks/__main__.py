"""Speed, measured side by side: `python -m benchmarks` is `regard bench`; `startup` and `bars` run alone."""

from __future__ import annotations

import sys

from regard.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
