"""One rank of `regard train --workers N`: `python -m regard.training.worker FOLDER`, started by `training.launcher`.

FOLDER/launch.json     config, run directory, threads, and the launcher's process id
FOLDER/RANK.pid        process id of a rank, to send signals to
FOLDER/events.jsonl    from rank 0: the run's events, then its report
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.hardware import end_with_parent

LAUNCH_FILE = "launch.json"
EVENTS_FILE = "events.jsonl"
INTERRUPTED = 130  # exit code after SIGINT
LOST_RANK_GRACE = 10.0  # seconds that a rank that lost another one leaves it to report its own error first
LOOPBACK = {"linux": "lo", "darwin": "lo0"}  # interface for gloo, by platform


def pid_file(folder: Path, rank: int) -> Path:
    """File with the process id of a rank."""
    return folder / f"{rank}.pid"


class EventWriter:
    """Writes each event as one line of JSON, for the launcher to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Append the event."""
        line = json.dumps({"event": event, **data}, ensure_ascii=False, default=float)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def main() -> None:
    """Train as one rank; record an error in the file that the agent of `torch.distributed.run` reads."""
    folder = Path(sys.argv[1])
    launch = json.loads((folder / LAUNCH_FILE).read_text("utf-8"))
    try:
        end_with_parent(launch["launcher"])
        pid_file(folder, int(os.environ["RANK"])).write_text(str(os.getpid()))
        os.environ["OMP_NUM_THREADS"] = str(launch["threads"])  # read when torch is imported
        if sys.platform in LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
        _train(launch, EventWriter(folder / EVENTS_FILE))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

        from regard.training.distributed import LostRankError

        ErrorHandler().record_exception(error)
        if isinstance(error, LostRankError):
            time.sleep(LOST_RANK_GRACE)  # the agent ends this rank once the other one has failed
        sys.exit(error.exit_code if isinstance(error, RegardError) else 1)


def _train(launch: dict[str, Any], events: EventWriter) -> None:
    from regard.config.runs import read_run
    from regard.training.run import train_run

    config = read_run(launch["config"], where=LAUNCH_FILE)
    run_result = train_run(
        config, Path(launch["out"]), listeners=[events], started=launch["started"], pinned=launch["pinned"]
    )
    if run_result.is_rank_zero:
        events.on_event("report", {**run_result.to_dict()})


if __name__ == "__main__":
    main()
