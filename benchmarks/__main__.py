"""Speed, measured side by side: `python -m benchmarks`; each part also runs alone, with --help."""

from __future__ import annotations

from benchmarks.training_step import main

if __name__ == "__main__":
    main()
