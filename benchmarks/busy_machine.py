"""Training beside other programs: updates within a time budget, the quality reached, whether the budget is kept.

    python -m benchmarks.busy_machine DATA [--part updates|readme|demo|budget] [--repeats N] [--source TREE/src]

DATA is a folder with multi30k/ (for `updates` and `budget`), sst2/ and gutenberg/ (for `budget`) as they are published.
Every part runs the public commands on a quiet machine, beside one and two busy loops, and beside another torch process.
`--source` measures another version of the package in turn with this one. Results are written to
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.hardware import processor_identity

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/busy_machine.json"
BUSY_LOOP = "while True: pass"
TORCH_LOOP = "import torch\na = torch.randn(64, 512)\nb = torch.randn(512, 512)\nwhile True: (a @ b).relu_()"
TORCH_START_SECONDS = 5
SCENARIOS: dict[str, Sequence[str]] = {
    "quiet": (),
    "one loop": (BUSY_LOOP,),
    "two loops": (BUSY_LOOP, BUSY_LOOP),
    "another torch process": (TORCH_LOOP,),
}
LANGUAGES = ("en", "de")
SENTENCE = "Two dogs run in the snow."
TRANSLATION = "Zwei Hunde rennen im Schnee."


@contextlib.contextmanager
def run_neighbours(programs: Sequence[str]) -> Iterator[None]:
    """Run other programs meanwhile."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP"))}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for program in programs]
    try:
        if TORCH_LOOP in programs:
            time.sleep(TORCH_START_SECONDS)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def unpack(source: Path, target: Path, lines: int | None = None) -> None:
    """Write the beginning of a packed text file."""
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        content = "".join(itertools.islice(file, lines))
    target.write_text(content, "utf-8")


@dataclass(frozen=True)
class CompletedCommand:
    """Wall time and standard output of a command."""

    seconds: float
    output: str


@dataclass(frozen=True)
class Workspace:
    """What a part works with: data, a folder of its own, the version of Regard, and options."""

    data: Path
    folder: Path
    source: Path
    pretrained: str
    minutes: str
    only: str

    def regard(self, *arguments: str) -> CompletedCommand:
        """Run a command of this version of Regard in the folder."""
        environment = {**os.environ, "PYTHONPATH": str(self.source)}
        start = time.monotonic()
        completed = subprocess.run(
            [sys.executable, "-m", "regard", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.folder,
        )
        if completed.returncode:
            raise SystemExit(f"regard {' '.join(arguments)}: {completed.stderr[-2000:]}")
        return CompletedCommand(time.monotonic() - start, completed.stdout)

    def unpack(self, name: str, target: str, lines: int | None = None) -> str:
        """Write the beginning of a packed text file of the data sets; return the name of the new file."""
        unpack(self.data / name, self.folder / target, lines)
        return target

    def unpack_multi30k(self, split: str, lines: int | None = None) -> list[str]:
        """Write both sides of a split of Multi30k."""
        return [self.unpack(f"multi30k/{split}.{language}.gz", f"{split}.{language}", lines) for language in LANGUAGES]


def measure_updates(workspace: Workspace) -> dict[str, Any]:
    """Train a tiny translator on 6,000 pairs for 21 seconds; count the updates."""
    train_files = workspace.unpack_multi30k("train", 6000)
    valid_files = workspace.unpack_multi30k("val", 200)
    options = ["--preset", "tiny", "--minutes", "0.35", "--out", "run"]
    command = workspace.regard("train", "translate", *train_files, "--valid", *valid_files, *options)
    run = json.loads((workspace.folder / "run/run.json").read_text("utf-8"))
    log = [json.loads(line) for line in (workspace.folder / "run/log.jsonl").read_text("utf-8").splitlines()]
    result = run.get("result") or run["finished"]  # `finished` and `chosen`: in earlier versions of the package
    resolved = run.get("resolved") or run["chosen"]
    return {
        "updates": result["step"],
        "wall_seconds": command.seconds,
        "chosen": resolved.get("throughput", resolved.get("precision_text")),
        "evaluations": sum(event["event"] == "evaluate" for event in log),
    }


def measure_readme(workspace: Workspace) -> dict[str, Any]:
    """Train the README's one-minute translator and evaluate it."""
    samples = [sys.executable, str(ROOT / "docs/make_samples.py"), str(workspace.folder)]
    subprocess.run(samples, check=True, capture_output=True)
    arguments = "train translate train.en train.de --valid val.en val.de --minutes 1 --out runs/en-de".split()
    training = workspace.regard(*arguments)
    evaluation = workspace.regard("evaluate", "runs/en-de", "test.en", "test.de").output
    translation = workspace.regard("translate", "runs/en-de", SENTENCE).output.strip()
    exact_match = re.search(r"exact match ([\d.]+)", evaluation)
    return {
        "wall_seconds": training.seconds,
        "exact_match": float(exact_match[1]) if exact_match else None,
        "sentence_is_right": translation == TRANSLATION,
        "last_line": training.output.strip().splitlines()[-1],
    }


def measure_demo(workspace: Workspace) -> dict[str, Any]:
    """Run the demo and read its score."""
    demo = workspace.regard("demo", "--json", "--out", "demo")
    last_line = demo.output.strip().splitlines()[-1]
    return {"wall_seconds": demo.seconds, "exact_match": json.loads(last_line)["exact_match"]}


def measure_budget(workspace: Workspace) -> dict[str, Any]:
    """Train a translator, a classifier (whole and frozen) and a masked language model with a time budget each."""
    train_files = workspace.unpack_multi30k("train")
    valid_files = workspace.unpack_multi30k("val")
    for split in ("train", "dev", "test"):
        lines = (workspace.data / f"sst2/{split}.tsv").read_text("utf-8").splitlines()
        with (workspace.folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *(line.split("\t") for line in lines)])
    book = workspace.unpack("gutenberg/moby_dick.txt.gz", "book.txt")
    commands = {"translate": ["translate", *train_files, "--valid", *valid_files]}
    if workspace.pretrained:
        classify = ["classify", "train.csv", "--valid", "dev.csv", "--test", "test.csv"]
        classify += ["--from", workspace.pretrained]
        commands |= {"classify": classify, "classify, frozen": [*classify, "--freeze-encoder"]}
    commands["masked language model"] = ["masked-lm", book, "--preset", "mini"]
    if workspace.only:
        commands = {workspace.only: commands[workspace.only]}
    figures = {}
    for name, arguments in commands.items():
        options = ["--minutes", workspace.minutes, "--out", name.replace(" ", "-")]
        figures[f"{name}, wall seconds"] = workspace.regard("train", *arguments, *options).seconds
    return figures


PARTS: dict[str, Callable[[Workspace], dict[str, Any]]] = {
    "updates": measure_updates,
    "readme": measure_readme,
    "demo": measure_demo,
    "budget": measure_budget,
}


def write_results(part: str, rows: list[dict[str, Any]]) -> None:
    """Write the figures of a part beside those of other parts."""
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    results[part] = {"processor": processor_identity(), "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


def print_medians(rows: list[dict[str, Any]], scenario: str, version: int) -> None:
    selected = [row for row in rows if row["scenario"] == scenario and row["version"] == version]
    medians = {
        name: f"{statistics.median(row[name] for row in selected):.1f}"
        for name, value in selected[0].items()
        if isinstance(value, int | float) and name != "version"
    }
    print(f"{scenario}, version {version}: {medians}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=PARTS, default="updates")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", default="1", help="time budget of the part `budget`")
    parser.add_argument("--only", default="", help="one command of the part `budget`, such as translate")
    parser.add_argument("--start-from", default="", help="an encoder's folder, for the classifiers of `budget`")
    parser.add_argument("--source", type=Path, action="append", help="src/ of another version, measured in turn")
    arguments = parser.parse_args()
    pretrained = arguments.start_from
    if pretrained and Path(pretrained).is_dir():
        pretrained = str(Path(pretrained).absolute())  # commands run in another folder
    sources = [ROOT / "src", *(arguments.source or [])]
    scenarios = arguments.scenario or list(SCENARIOS)
    rows: list[dict[str, Any]] = []
    for _ in range(arguments.repeats):
        for scenario in scenarios:
            for version, source in enumerate(sources):
                with run_neighbours(SCENARIOS[scenario]), tempfile.TemporaryDirectory() as folder:
                    workspace = Workspace(
                        data=arguments.data.absolute(),
                        folder=Path(folder),
                        source=source.absolute(),
                        pretrained=pretrained,
                        minutes=arguments.minutes,
                        only=arguments.only,
                    )
                    figures = PARTS[arguments.part](workspace)
                row = {"part": arguments.part, "scenario": scenario, "version": version, **figures}
                print(json.dumps(row), flush=True)
                rows.append(row)
    has_default_budget = arguments.minutes == "1"
    write_results(arguments.part if has_default_budget else f"{arguments.part}, {arguments.minutes} minutes", rows)
    for scenario in scenarios:
        for version in range(len(sources)):
            print_medians(rows, scenario, version)


if __name__ == "__main__":
    main()
