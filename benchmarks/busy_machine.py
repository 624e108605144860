"""Training beside other programs: updates within a time budget, what is learned, whether the time holds.

    python -m benchmarks.busy_machine DATA [--part updates|readme|demo|budget] [--repeats N] [--source TREE/src]

DATA is a folder with multi30k/ (for `updates` and `budget`), sst2/ and gutenberg/ (for `budget`) as they are published.
Every part runs the public commands on a quiet machine, beside one and two busy loops, and beside another torch process.
`--source` measures another version of the package in turns with this one. Results are in
benchmarks/results/busy_machine.json.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.machine import processor_identity

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/busy_machine.json"
LOOP = "while True: pass"
TORCH = "import torch\na = torch.randn(64, 512)\nb = torch.randn(512, 512)\nwhile True: (a @ b).relu_()"
SCENARIOS: dict[str, Sequence[str]] = {
    "quiet": (),
    "one loop": (LOOP,),
    "two loops": (LOOP, LOOP),
    "another torch process": (TORCH,),
}
SENTENCE, TRANSLATION = "Two dogs run in the snow.", "Zwei Hunde rennen im Schnee."


@contextlib.contextmanager
def neighbours(programs: Sequence[str]) -> Iterator[None]:
    """Run other programs beside what is measured."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP"))}
    started = [subprocess.Popen([sys.executable, "-c", program], env=plain) for program in programs]
    try:
        if TORCH in programs:
            time.sleep(5)  # until it computes
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def regard(source: Path, *words: str, cwd: Path | None = None) -> tuple[float, str, str]:
    """Run a command of Regard; return its wall time and what it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "regard", *words], capture_output=True, text=True, env=environment, cwd=cwd
    )
    if done.returncode:
        raise SystemExit(f"regard {' '.join(words)}: {done.stderr[-2000:]}")
    return time.monotonic() - began, done.stdout, done.stderr


def unpack(source: Path, target: Path, lines: int | None = None) -> Path:
    """Write the beginning of a packed text file."""
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        content = "".join(itertools.islice(file, lines))
    target.write_text(content, "utf-8")
    return target


def updates_part(data: Path, room: Path, source: Path) -> dict[str, Any]:
    """Train a tiny translator on 6,000 pairs for 21 seconds; count the updates."""
    files = [str(unpack(data / f"multi30k/train.{side}.gz", room / f"train.{side}", 6000)) for side in ("en", "de")]
    valid = [str(unpack(data / f"multi30k/val.{side}.gz", room / f"val.{side}", 200)) for side in ("en", "de")]
    out = room / "run"
    wall, _, _ = regard(
        source,
        "train",
        "translate",
        *files,
        "--valid",
        *valid,
        "--preset",
        "tiny",
        "--minutes",
        "0.35",
        "--out",
        str(out),
    )
    run = json.loads((out / "run.json").read_text("utf-8"))
    spent = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]
    return {
        "updates": run["finished"]["step"],
        "wall_seconds": wall,
        "chosen": run["chosen"].get("throughput", run["chosen"].get("precision_text")),
        "evaluations": sum(entry["event"] == "evaluate" for entry in spent),
    }


def readme_part(data: Path, room: Path, source: Path) -> dict[str, Any]:
    """Train the README's one-minute translator and score it."""
    subprocess.run([sys.executable, str(ROOT / "docs/make_samples.py"), str(room)], check=True, capture_output=True)
    words = "train translate train.en train.de --valid val.en val.de --minutes 1 --out runs/en-de".split()
    wall, output, _ = regard(source, *words, cwd=room)
    _, scores, _ = regard(source, "evaluate", "runs/en-de", "test.en", "test.de", cwd=room)
    _, said, _ = regard(source, "translate", "runs/en-de", SENTENCE, cwd=room)
    exact = re.search(r"exact match ([\d.]+)", scores)
    return {
        "wall_seconds": wall,
        "exact_match": float(exact[1]) if exact else None,
        "sentence_is_right": said.strip() == TRANSLATION,
        "last_line": output.strip().splitlines()[-1],
    }


def demo_part(data: Path, room: Path, source: Path) -> dict[str, Any]:
    """Run the demo and read its score."""
    wall, output, _ = regard(source, "demo", "--json", "--out", str(room / "demo"))
    return {"wall_seconds": wall, "exact_match": json.loads(output.strip().splitlines()[-1])["exact_match"]}


def budget_part(data: Path, room: Path, source: Path, start_from: str = "", minutes: str = "1") -> dict[str, Any]:
    """Train a translator, a classifier (whole and frozen) and a masked language model for a minute each."""
    pairs = [
        str(unpack(data / f"multi30k/{part}.{side}.gz", room / f"{part}.{side}"))
        for part in ("train", "val")
        for side in ("en", "de")
    ]
    for part in ("train", "dev", "test"):
        rows = [line.split("\t") for line in (data / f"sst2/{part}.tsv").read_text("utf-8").splitlines()]
        with (room / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *rows])
    book = str(unpack(data / "gutenberg/moby_dick.txt.gz", room / "book.txt"))
    texts = ["classify", "train.csv", "--valid", "dev.csv", "--test", "test.csv", "--from", start_from]
    commands = {
        "translate": ["translate", *pairs[:2], "--valid", *pairs[2:]],
        "classify": texts,
        "classify, frozen": [*texts, "--frozen"],
        "masked language model": ["language", book, "--arch", "bert", "--preset", "mini"],
    }
    chosen = {name: words for name, words in commands.items() if start_from or "--from" not in words}
    return {
        f"{name}, wall seconds": regard(
            source, "train", *words, "--minutes", minutes, "--out", str(room / name.replace(" ", "-")), cwd=room
        )[0]
        for name, words in chosen.items()
    }


PARTS: dict[str, Callable[[Path, Path, Path], dict[str, Any]]] = {
    "updates": updates_part,
    "readme": readme_part,
    "demo": demo_part,
    "budget": budget_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=PARTS, default="updates")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", default="1", help="the budget of the part `budget`")
    parser.add_argument("--start-from", default="", help="an encoder's folder, for the classifiers of `budget`")
    parser.add_argument("--source", type=Path, action="append", help="src/ of another version, measured in turns")
    given = parser.parse_args()
    sources = [ROOT / "src", *(given.source or [])]
    measured: list[dict[str, Any]] = []
    for _ in range(given.repeats):
        for scenario in given.scenario or SCENARIOS:
            for source in sources:
                with neighbours(SCENARIOS[scenario]), tempfile.TemporaryDirectory() as folder:
                    more = (given.start_from, given.minutes) if given.part == "budget" else ()
                    figures = PARTS[given.part](given.data, Path(folder), source, *more)
                row = {"part": given.part, "scenario": scenario, "version": sources.index(source), **figures}
                print(json.dumps(row), flush=True)
                measured.append(row)
    store(given.part, measured)
    for scenario in given.scenario or SCENARIOS:
        for version in range(len(sources)):
            rows = [row for row in measured if row["scenario"] == scenario and row["version"] == version]
            numbers = {
                name: f"{statistics.median(row[name] for row in rows):.1f}"
                for name, value in rows[0].items()
                if isinstance(value, int | float) and name != "version"
            }
            print(f"{scenario}, version {version}: {numbers}")


def store(part: str, rows: list[dict[str, Any]]) -> None:
    """Keep the figures beside those of other parts."""
    RESULTS.parent.mkdir(exist_ok=True)
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    known[part] = {"processor": processor_identity(), "rows": rows}
    RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
