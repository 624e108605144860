"""Eole, the successor of OpenNMT-py, which runs its own training loop in another process, perhaps another Python.

Its log contains the mean number of target tokens of a batch at every report. Between measurements the process is
stopped by a signal.
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

from benchmarks.peers.config import TranslatorSize
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.corpus import write_corpus
from benchmarks.peers.libraries.training_loop import DROPOUT, LABEL_SMOOTHING
from benchmarks.peers.peak_memory import peak_memory
from benchmarks.peers.worker import Channel, Job, LoopPacer
from regard.errors import RegardError

LIBRARY = Library("eole", requirements={"eole": "eole"}, benchmarks={"training": ("float32", "bf16")})
NEVER = 10**7  # steps
COMPUTE_DTYPES = {"float32": "fp32", "bf16": "bf16"}
TOKENS_PATTERN = re.compile(r"bsz:\s*\d+/\s*(\d+)/")


def run_training(job: Job, channel: Channel) -> None:
    """Let Eole train, some updates at a time."""
    size = TranslatorSize(**job.settings["size"])
    python = job.settings.get("eole_python") or sys.executable
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = write_corpus(job, folder)
        (folder / "words.txt").write_text("".join(f"{word}\t1\n" for word in words))
        config_path = folder / "settings.yaml"
        config_path.write_text(json.dumps(_eole_config(size, folder, COMPUTE_DTYPES[job.variant])))
        command = [python, "-m", "eole.bin.main", "train", "-config", str(config_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                last_line = _follow_log(process, LoopPacer(channel, "training"), size.steps)
            finally:
                process.kill()
        raise RegardError(f"eole ended: {last_line}")


def _follow_log(process: subprocess.Popen[str], pacer: LoopPacer, steps: int) -> str:
    """Stop the process at each of its reports until the next measurement; return the last line if it ends by itself."""
    assert process.stdout is not None
    last_line = ""
    for line in process.stdout:
        last_line = line.strip() or last_line
        print(last_line, file=sys.stderr)
        if match := TOKENS_PATTERN.search(line):
            process.send_signal(signal.SIGSTOP)
            pacer.report(int(match[1]) * steps, peak_memory=peak_memory(process.pid))
            process.send_signal(signal.SIGCONT)
    return last_line


def _eole_config(size: TranslatorSize, folder: Path, compute_dtype: str) -> dict[str, Any]:
    words = str(folder / "words.txt")
    return {
        "src_vocab": words,
        "tgt_vocab": words,
        "share_vocab": True,
        "src_vocab_size": size.vocab_size,
        "tgt_vocab_size": size.vocab_size,
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
            "label_smoothing": LABEL_SMOOTHING,
            "num_workers": 0,
            "bucket_size": 20_000,
            "world_size": 1,
            "gpu_ranks": [],
            "compute_dtype": compute_dtype,
            "batch_size_multiple": 1,
            "accum_count": [1],
            "accum_steps": [0],
        },
        "model": {
            "architecture": "transformer",
            "layers": size.layers,
            "heads": size.heads,
            "hidden_size": size.hidden_size,
            "transformer_ff": size.feed_forward_size,
            "share_decoder_embeddings": True,
            "share_embeddings": True,
            "embeddings": {"word_vec_size": size.hidden_size, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }
