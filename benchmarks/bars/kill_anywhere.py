"""Bar: kill -9 a training run at random moments, go on by the same command: the same bits as if nothing had happened.

    python -m benchmarks.bars.kill_anywhere --kills 20 --precision float32 bf16

For each number format one run is left alone and one is killed; weights, optimiser and log must be equal bit for bit,
every restart must go on from a step greater than 0 once a save exists, and the steps computed in all must be at most
the plan's plus kills × the saving interval.
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
from pathlib import Path
from typing import Any


def command(data: Path, out: Path, arguments: argparse.Namespace, precision: str) -> list[str]:
    return [
        *(sys.executable, "-m", "regard", "train", "translate", str(data), "--out", str(out), "--json"),
        *("--steps", str(arguments.steps), "--save-every", str(arguments.save_every), "--precision", precision),
        *("--preset", "custom", "--model.width", "32", "--model.encoder.layers", "2", "--model.decoder.layers", "2"),
        *("--model.encoder.feedforward", "64", "--model.decoder.feedforward", "64", "--model.dropout", "0.2"),
        *("--model.attention_dropout", "0.1", "--evaluate-every", "25", "--batch-tokens", "512", "--threads", "1"),
        *("--seed", "5"),
    ]


def events(said: Path) -> list[dict[str, Any]]:
    lines = said.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def digests(folder: Path) -> dict[str, str]:
    """The digest of each file that must be equal."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    chosen = [
        newest / "model.safetensors",
        newest / "optimizer.safetensors",
        folder / "model.safetensors",
        folder / "log.jsonl",
    ]
    return {path.name + str(place): hashlib.sha256(path.read_bytes()).hexdigest() for place, path in enumerate(chosen)}


def bar(data: Path, work: Path, arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    alone, killed = work / f"alone-{precision}", work / f"killed-{precision}"
    began = time.monotonic()
    done = subprocess.run(command(data, alone, arguments, precision), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the undisturbed run failed:\n{done.stderr[-2000:]}")
    trained = next(row["seconds"] for row in map(json.loads, done.stdout.splitlines()) if row["event"] == "report")
    setting_up = time.monotonic() - began - trained
    chance = random.Random(arguments.seed)
    kills, restarts, computed, zeros = 0, [], 0, 0
    while True:
        # lives short enough that all kills fit into the run; every sixth kill strikes while it is still setting up
        early = chance.random() < 1 / 6
        life = (
            chance.uniform(0, setting_up) if early else setting_up + chance.uniform(0, 0.9 * trained / arguments.kills)
        )
        moment = life if kills < arguments.kills else None
        said = work / f"said-{precision}.jsonl"  # a file: a pipe that nobody reads would stop a long run
        with open(said, "wb") as stdout:
            words = command(data, killed, arguments, precision)
            process = subprocess.Popen(words, stdout=stdout, stderr=subprocess.DEVNULL)
        saved_before = (killed / "checkpoints").is_dir() and any((killed / "checkpoints").glob("step-*[0-9]"))
        try:
            process.wait(timeout=moment)
            ended = True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended, kills = False, kills + 1
        told = events(said)
        resumed = [event["step"] for event in told if event.get("event") == "resume"]
        steps = [event["step"] for event in told if event.get("event") in ("step", "save", "evaluate", "done")]
        first = resumed[0] if resumed else 0
        restarts.append(first)
        zeros += bool(saved_before and first == 0 and steps)
        computed += max([first, *steps]) - first
        if ended:
            break
    same = digests(alone) == digests(killed)
    allowed = arguments.steps + kills * arguments.save_every
    return {
        "precision": precision,
        "kills": kills,
        "same_bits": same,
        "restarts_from": restarts,
        "restarts_from_zero_after_a_save": zeros,
        "steps_computed_at_least": computed,
        "steps_allowed": allowed,
        "holds": kills == arguments.kills and same and zeros == 0 and computed <= allowed and process.returncode == 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--save-every", type=int, default=15)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")))
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = work / "reverse.tsv"
        chance = random.Random(3)
        rows = [[chance.choice("abcdefgh") for _ in range(chance.randint(3, 8))] for _ in range(2000)]
        data.write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows), encoding="utf-8")
        found = [bar(data, work, arguments, precision) for precision in arguments.precision]
    print(json.dumps(found, indent=2))
    sys.exit(0 if all(row["holds"] for row in found) else 1)


if __name__ == "__main__":
    main()
