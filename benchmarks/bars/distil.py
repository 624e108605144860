"""Bar: a student with three layers keeps nearly all that its teacher knows, and is much faster.

    python -m benchmarks.bars.distil DATA --from FOLDER --out runs [--teacher runs/sst2]

DATA holds sst2/train.tsv, dev.tsv and test.tsv; FOLDER is a small BERT (MiniLM), which is fine-tuned first unless a
teacher is given. All is done by the public commands. The accuracy is that of `regard evaluate` on the test file; the
speed is that of texts in and labels out, teacher and student in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars.command import regard_json
from benchmarks.bars.elmo_trec import report
from regard.data.labelled import read_labelled
from regard.pipeline import ClassificationPipeline, load_classifier

KEPT, SPEED = 95.0, 1.7  # percent of the teacher's accuracy, times its speed


def accuracy(folder: Path, test: Path, threads: int) -> float:
    """Return the share of right labels, in percent."""
    return float(regard_json("evaluate", folder, test, "--threads", threads)[0]["accuracy"])


def seconds(model: ClassificationPipeline, texts: Sequence[str]) -> float:
    """Return how long a model takes for texts."""
    began = time.perf_counter()
    model.classify(texts)
    return time.perf_counter() - began


def speeds(student: Path, teacher: Path, texts: Sequence[str], arguments: argparse.Namespace) -> list[float]:
    """Return how many times as fast the student is, round by round; the first round is not counted."""
    models = [
        load_classifier(folder, threads=arguments.threads, precision=arguments.precision)
        for folder in (teacher, student)
    ]
    ratios = []
    for turn in range(arguments.rounds + 1):
        order = (0, 1) if turn % 2 else (1, 0)
        taken = {number: seconds(models[number], texts) for number in order}
        ratios.append(taken[0] / taken[1])
    return ratios[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--from", dest="start", help="the folder of the encoder that the teacher starts from")
    parser.add_argument("--teacher", type=Path, help="a teacher that was trained before")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=0.0, help="passes of the student; 0: as it chooses")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if not (arguments.start or arguments.teacher):
        parser.error("give --from, or a --teacher")
    train, dev, test = (arguments.data / f"sst2/{name}.tsv" for name in ("train", "dev", "test"))
    threads = ("--threads", arguments.threads)
    teacher, student = arguments.teacher or arguments.out / "teacher", arguments.out / f"student-{arguments.layers}"
    if not arguments.teacher:
        report("classify", train, "--valid", dev, "--from", arguments.start, *threads, "--out", teacher)
    plan = ("--epochs", arguments.epochs) if arguments.epochs else ()
    options = ("--layers", arguments.layers, "--valid", dev, *threads, *plan, "--out", student)
    ended: dict[str, Any] = regard_json("distil", teacher, train, *options)[-1]
    found = {folder.name: accuracy(folder, test, arguments.threads) for folder in (teacher, student)}
    kept = 100 * found[student.name] / found[teacher.name]
    ratios = speeds(student, teacher, read_labelled([test]).texts, arguments)
    speed = statistics.median(ratios)
    print(f"accuracy {found[student.name]:.2f}, {kept:.1f} % of the teacher's {found[teacher.name]:.2f}")
    print(f"speed {speed:.2f} times the teacher's ({min(ratios):.2f}–{max(ratios):.2f} in {arguments.rounds} rounds)")
    holds = kept >= KEPT and speed >= SPEED
    line = {"bar": "distil", "holds": holds, "kept": kept, "speed": speed, "minutes": ended["seconds"] / 60, **found}
    print(json.dumps(line))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
