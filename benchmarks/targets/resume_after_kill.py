"""Target: a training run that is killed at random moments and resumed ends with the same bits as an undisturbed one.

    python -m benchmarks.targets.resume_after_kill --kills 20 --precision float32 bf16

For each precision one run is left alone and one is killed with SIGKILL and started again by the same command. Weights,
optimizer and log must be equal bit for bit. Every restart must resume from a step above 0 once a checkpoint exists, and
the steps computed in total must be at most those of the run plus kills × the checkpoint interval.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EARLY_KILLS = 1 / 6  # of all, while the run is still starting
ROWS = 2000


def training_command(data: Path, out: Path, arguments: argparse.Namespace, precision: str) -> list[str]:
    return [
        *(sys.executable, "-m", "regard", "train", "translate", str(data), "--out", str(out), "--json"),
        *("--steps", str(arguments.steps), "--save-every", str(arguments.save_every), "--precision", precision),
        *(
            "--preset",
            "custom",
            "--model.hidden_size",
            "32",
            "--model.encoder.num_layers",
            "2",
            "--model.decoder.num_layers",
            "2",
        ),
        *(
            "--model.encoder.feed_forward_size",
            "64",
            "--model.decoder.feed_forward_size",
            "64",
            "--model.dropout",
            "0.2",
        ),
        *("--model.attention_dropout", "0.1", "--evaluate-every", "25", "--batch-tokens", "512", "--threads", "1"),
        *("--seed", "5"),
    ]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Complete JSON lines of a run; the last line of a killed one may be cut off."""
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def digest_run(folder: Path) -> dict[str, str]:
    """Digests of the files that must be equal."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    files = [
        newest / "model.safetensors",
        newest / "optimizer.safetensors",
        folder / "model.safetensors",
    ]
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    log = [{name: value for name, value in line.items() if not name.endswith("_per_second")} for line in log]
    digests = {f"{path.name}{index}": hashlib.sha256(path.read_bytes()).hexdigest() for index, path in enumerate(files)}
    return {**digests, "log.jsonl": hashlib.sha256(json.dumps(log).encode()).hexdigest()}


@dataclass
class KilledRun:
    """What happened to the run that was killed."""

    kills: int = 0
    first_steps: list[int] = field(default_factory=list)  # of each start
    computed_steps: int = 0  # at least
    restarts_from_zero: int = 0  # although a checkpoint existed
    exit_code: int = 0


@dataclass(frozen=True)
class Timing:
    """Seconds of the undisturbed run."""

    starting: float
    training: float


def run_undisturbed(command: list[str]) -> Timing:
    start = time.monotonic()
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"the undisturbed run failed:\n{completed.stderr[-2000:]}")
    events = map(json.loads, completed.stdout.splitlines())
    training = next(event["seconds"] for event in events if event["event"] == "report")
    return Timing(starting=time.monotonic() - start - training, training=training)


def run_with_kills(command: list[str], out: Path, output: Path, timing: Timing, kills: int, seed: int) -> KilledRun:
    """Start a run again and again; kill it until it has been killed often enough."""
    rng = random.Random(seed)
    checkpoints = out / "checkpoints"
    run = KilledRun()
    while True:
        # short enough that all kills fit into the run
        if rng.random() < EARLY_KILLS:
            lifetime = rng.uniform(0, timing.starting)
        else:
            lifetime = timing.starting + rng.uniform(0, 0.9 * timing.training / kills)
        with open(output, "wb") as stdout:  # a file: a full pipe would block a long run
            process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
        had_checkpoint = checkpoints.is_dir() and any(checkpoints.glob("step-*[0-9]"))
        try:
            process.wait(timeout=lifetime if run.kills < kills else None)
            is_finished = True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            is_finished = False
            run.kills += 1
        events = read_events(output)
        resumed = [event["step"] for event in events if event.get("event") == "resume"]
        steps = [event["step"] for event in events if event.get("event") in ("step", "save", "evaluate", "done")]
        first_step = resumed[0] if resumed else 0
        run.first_steps.append(first_step)
        run.restarts_from_zero += bool(had_checkpoint and first_step == 0 and steps)
        run.computed_steps += max([first_step, *steps]) - first_step
        if is_finished:
            run.exit_code = process.returncode
            return run


def check_precision(data: Path, folder: Path, arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Run undisturbed and with kills, and compare."""
    undisturbed = folder / f"undisturbed-{precision}"
    killed = folder / f"killed-{precision}"
    timing = run_undisturbed(training_command(data, undisturbed, arguments, precision))
    command = training_command(data, killed, arguments, precision)
    output = folder / f"events-{precision}.jsonl"
    run = run_with_kills(command, killed, output, timing, arguments.kills, arguments.seed)
    has_same_bits = digest_run(undisturbed) == digest_run(killed)
    allowed_steps = arguments.steps + run.kills * arguments.save_every
    is_met = (
        run.kills == arguments.kills
        and has_same_bits
        and run.restarts_from_zero == 0
        and run.computed_steps <= allowed_steps
        and run.exit_code == 0
    )
    return {
        "precision": precision,
        "kills": run.kills,
        "same_bits": has_same_bits,
        "restarts_from": run.first_steps,
        "restarts_from_zero_after_a_save": run.restarts_from_zero,
        "steps_computed_at_least": run.computed_steps,
        "steps_allowed": allowed_steps,
        "met": is_met,
    }


def write_reversal_data(path: Path) -> None:
    rng = random.Random(3)
    rows = [[rng.choice("abcdefgh") for _ in range(rng.randint(3, 8))] for _ in range(ROWS)]
    lines = (f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--save-every", type=int, default=15)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")))
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = folder / "reverse.tsv"
        write_reversal_data(data)
        results = [check_precision(data, folder, arguments, precision) for precision in arguments.precision]
    print(json.dumps(results, indent=2))
    sys.exit(0 if all(result["met"] for result in results) else 1)


if __name__ == "__main__":
    main()
