"""Eole, the successor of OpenNMT-py, which runs its own loop in a process of its own, maybe with another Python.

Its log has the mean number of target tokens of a batch at every report; between turns the process is stopped.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from regard.bench.child import Job, Pace, Turns
from regard.bench.memory import peak_memory
from regard.bench.peers import Peer
from regard.bench.peers.corpus import write_corpus
from regard.bench.peers.loop import DROPOUT, SMOOTHING
from regard.bench.settings import Size
from regard.errors import RegardError

PEER = Peer("eole", {"eole": "eole"}, {"training": ("float32", "bf16")})
NEVER = 10**7
_FORMATS = {"float32": "fp32", "bf16": "bf16"}
_TOKENS = re.compile(r"bsz:\s*\d+/\s*(\d+)/")


def training(job: Job, turns: Turns) -> None:
    """Let Eole train, a turn's updates at a time."""
    size = Size(**job.facts["size"])
    python = job.facts.get("eole_python") or sys.executable
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        words = write_corpus(job, folder)
        (folder / "words.txt").write_text("".join(f"{name}\t1\n" for name in words))
        (folder / "settings.yaml").write_text(json.dumps(_settings(size, folder, _FORMATS[job.variant])))
        command = [python, "-m", "eole.bin.main", "train", "-config", str(folder / "settings.yaml")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                said = _paced(process, Pace(turns, "training"), size.steps)
            finally:
                process.kill()
        raise RegardError(f"eole ended: {said}")


def _paced(process: subprocess.Popen[str], pace: Pace, steps: int) -> str:
    """Stop the process at each of its reports until the next turn; return its last words if it ends by itself."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said = line.strip() or said
        print(said, file=sys.stderr)
        if found := _TOKENS.search(line):
            process.send_signal(signal.SIGSTOP)
            pace.report(int(found[1]) * steps, memory=peak_memory(process.pid))
            process.send_signal(signal.SIGCONT)
    return said


def _settings(size: Size, folder: Path, format: str) -> dict[str, Any]:
    words = str(folder / "words.txt")
    return {
        "src_vocab": words,
        "tgt_vocab": words,
        "share_vocab": True,
        "src_vocab_size": size.vocabulary,
        "tgt_vocab_size": size.vocabulary,
        "overwrite": True,
        "report_every": size.steps,
        "seed": 1,
        "save_data": str(folder / "save"),
        "data": {"corpus_1": {"path_src": str(folder / "train.src"), "path_tgt": str(folder / "train.trg")}},
        "training": {
            "model_path": str(folder / "model"),
            "batch_size": size.batch_tokens,
            "batch_type": "tokens",
            "normalization": "tokens",
            "train_steps": NEVER,
            "valid_steps": NEVER,
            "save_checkpoint_steps": NEVER,
            "optim": "adam",
            "learning_rate": 1e-4,
            "warmup_steps": 10,
            "dropout": [DROPOUT],
            "attention_dropout": [DROPOUT],
            "label_smoothing": SMOOTHING,
            "num_workers": 0,
            "bucket_size": 20_000,
            "world_size": 1,
            "gpu_ranks": [],
            "compute_dtype": format,
            "batch_size_multiple": 1,
            "accum_count": [1],
            "accum_steps": [0],
        },
        "model": {
            "architecture": "transformer",
            "layers": size.layers,
            "heads": size.heads,
            "hidden_size": size.width,
            "transformer_ff": size.feedforward,
            "share_decoder_embeddings": True,
            "share_embeddings": True,
            "embeddings": {"word_vec_size": size.width, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }
