"""JoeyNMT, which runs its own loop, in float32 only on a processor; the rate is the one that it logs."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

from regard.bench.child import Job, Pace, Turns
from regard.bench.peers import Peer
from regard.bench.peers.corpus import write_corpus
from regard.bench.peers.loop import DROPOUT, SMOOTHING
from regard.bench.settings import Size

PEER = Peer("joeynmt", {"joeynmt": "joeynmt"}, {"training": ("float32",)})
NEVER = 10**7


class _Ear(logging.Handler):
    """Hears the rates that JoeyNMT logs; its clock starts again after each."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def emit(self, record: logging.LogRecord) -> None:
        """Report the rate of a line that has one."""
        if found := re.search(r"Tokens per Sec:\s*([\d.]+)", record.getMessage()):
            self.pace.report(float(found[1]), 1.0)


def training(job: Job, turns: Turns) -> None:
    """Let JoeyNMT train, a turn's updates at a time."""
    from joeynmt.training import train

    size = Size(**job.facts["size"])
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        words = write_corpus(job, folder)
        (folder / "words.txt").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *words]) + "\n")
        (folder / "model").mkdir()
        logger = logging.getLogger("joeynmt.training")
        logger.setLevel(logging.INFO)
        logger.addHandler(_Ear(Pace(turns, "training")))
        train(0, None, _settings(size, folder), skip_test=True)


def _settings(size: Size, folder: Path) -> dict[str, Any]:
    side = {
        "level": "word",
        "lowercase": False,
        "voc_file": str(folder / "words.txt"),
        "max_length": 100,
        "tokenizer_type": "none",
    }
    stack = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.width,
        "ff_size": size.feedforward,
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": size.width, "scale": True, "dropout": DROPOUT},
        "layer_norm": "pre",
    }
    return {
        "name": "bench",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,
        "num_workers": 0,
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "dev"),
            "dataset_type": "plain",
            "src": {"lang": "src", **side},
            "trg": {"lang": "trg", **side},
        },
        "training": {
            "optimizer": "adam",
            "learning_rate": 1e-4,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 100,
            "label_smoothing": SMOOTHING,
            "loss": "crossentropy",
            "normalization": "tokens",
            "batch_size": size.batch_tokens,
            "batch_type": "token",
            "batch_multiplier": 1,
            "logging_freq": size.steps,
            "validation_freq": size.steps * NEVER,  # a multiple of the other, as JoeyNMT asks
            "updates": NEVER,
            "epochs": NEVER,
            "shuffle": True,
            "overwrite": True,
            "keep_best_ckpts": 1,
            "early_stopping_metric": "ppl",
        },
        "testing": {"batch_size": 64, "beam_size": 1},
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": dict(stack),
            "decoder": dict(stack),
        },
    }
