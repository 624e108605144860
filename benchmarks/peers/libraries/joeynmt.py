"""JoeyNMT, which runs its own training loop, in float32 only on CPUs; the rate is the one that it logs."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.config import TranslatorSize
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.corpus import write_corpus
from benchmarks.peers.libraries.training_loop import DROPOUT, LABEL_SMOOTHING
from benchmarks.peers.worker import Channel, Job, LoopPacer

LIBRARY = Library("joeynmt", requirements={"joeynmt": "joeynmt"}, benchmarks={"training": ("float32",)})
NEVER = 10**7  # steps
RATE_PATTERN = re.compile(r"Tokens per Sec:\s*([\d.]+)")


class RateHandler(logging.Handler):
    """Passes on the rates that JoeyNMT logs; its clock restarts after each."""

    def __init__(self, pacer: LoopPacer) -> None:
        super().__init__()
        self.pacer = pacer

    def emit(self, record: logging.LogRecord) -> None:
        """Report the rate of a line that contains one."""
        if match := RATE_PATTERN.search(record.getMessage()):
            self.pacer.report(float(match[1]), 1.0)


def run_training(job: Job, channel: Channel) -> None:
    """Let JoeyNMT train, some updates at a time."""
    from joeynmt.training import train

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = write_corpus(job, folder)
        (folder / "words.txt").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *words]) + "\n")
        (folder / "model").mkdir()
        logger = logging.getLogger("joeynmt.training")
        logger.setLevel(logging.INFO)
        logger.addHandler(RateHandler(LoopPacer(channel, "training")))
        train(0, None, _joeynmt_config(TranslatorSize(**job.settings["size"]), folder), skip_test=True)


def _joeynmt_config(size: TranslatorSize, folder: Path) -> dict[str, Any]:
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
        "hidden_size": size.hidden_size,
        "ff_size": size.feed_forward_size,
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": size.hidden_size, "scale": True, "dropout": DROPOUT},
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
            "label_smoothing": LABEL_SMOOTHING,
            "loss": "crossentropy",
            "normalization": "tokens",
            "batch_size": size.batch_tokens,
            "batch_type": "token",
            "batch_multiplier": 1,
            "logging_freq": size.steps,
            "validation_freq": size.steps * NEVER,  # JoeyNMT requires a multiple of logging_freq
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
