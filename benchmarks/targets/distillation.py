"""Target: a student with three layers retains 95 % of its teacher's accuracy and is 1.7 times as fast.

    python -m benchmarks.targets.distillation DATA --from FOLDER --out runs [--teacher runs/sst2]

DATA contains sst2/train.tsv, dev.tsv and test.tsv; FOLDER is a small BERT (MiniLM), which is fine-tuned first unless a
teacher is given. Only public commands are used. Accuracy is that of `regard evaluate` on the test file; speed is that
of classifying texts, teacher and student in turn.
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

from benchmarks.targets.command import run_regard_json, train
from regard.data.labelled import read_labelled
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.load import load_classifier

MIN_RETAINED = 95.0  # percent of the teacher's accuracy
MIN_SPEED = 1.7  # times the teacher's


def evaluate_accuracy(model: Path, test: Path, threads: int) -> float:
    """Accuracy in percent."""
    return float(run_regard_json("evaluate", model, test, "--threads", threads)[0]["accuracy"])


def time_classification(model: ClassificationPipeline, texts: Sequence[str]) -> float:
    """Seconds to classify the texts."""
    start = time.perf_counter()
    model.classify(texts)
    return time.perf_counter() - start


def measure_speed_ratios(
    student: Path, teacher: Path, texts: Sequence[str], arguments: argparse.Namespace
) -> list[float]:
    """How many times as fast as the teacher the student is in each round; the first round is not counted."""
    models = {
        path: load_classifier(path, threads=arguments.threads, precision=arguments.precision)
        for path in (teacher, student)
    }
    ratios = []
    for index in range(arguments.rounds + 1):
        order = (teacher, student) if index % 2 else (student, teacher)
        seconds = {path: time_classification(models[path], texts) for path in order}
        ratios.append(seconds[teacher] / seconds[student])
    return ratios[1:]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--from", dest="pretrained", help="folder of the encoder that the teacher starts from")
    parser.add_argument("--teacher", type=Path, help="a teacher that is trained already")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=0.0, help="of the student; 0: its default")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if not (arguments.pretrained or arguments.teacher):
        parser.error("give --from, or a --teacher")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    train_file, dev_file, test_file = (arguments.data / f"sst2/{name}.tsv" for name in ("train", "dev", "test"))
    threads = ("--threads", arguments.threads)
    student = arguments.out / f"student-{arguments.layers}"
    teacher = arguments.teacher
    if teacher is None:
        teacher = arguments.out / "teacher"
        train("classify", train_file, "--valid", dev_file, "--from", arguments.pretrained, *threads, "--out", teacher)
    epochs = ("--epochs", arguments.epochs) if arguments.epochs else ()
    options = ("--student-layers", arguments.layers, "--valid", dev_file, *threads, *epochs, "--out", student)
    last_event: dict[str, Any] = run_regard_json("distil", teacher, train_file, *options)[-1]
    teacher_accuracy = evaluate_accuracy(teacher, test_file, arguments.threads)
    student_accuracy = evaluate_accuracy(student, test_file, arguments.threads)
    retained = 100 * student_accuracy / teacher_accuracy
    ratios = measure_speed_ratios(student, teacher, read_labelled([test_file]).texts, arguments)
    speed = statistics.median(ratios)
    print(f"accuracy {student_accuracy:.2f}, {retained:.1f} % of the teacher's {teacher_accuracy:.2f}")
    print(f"speed {speed:.2f} times the teacher's ({min(ratios):.2f}–{max(ratios):.2f} in {arguments.rounds} rounds)")
    is_met = retained >= MIN_RETAINED and speed >= MIN_SPEED
    result = {
        "target": "distillation",
        "met": is_met,
        "retained": retained,
        "speed": speed,
        "minutes": last_event["seconds"] / 60,
        teacher.name: teacher_accuracy,
        student.name: student_accuracy,
    }
    print(json.dumps(result))
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
