"""A whole run: what a recipe file holds and what a run folder remembers."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.data import DataConfig, TokenizerConfig
from regard.config.decoding import DecodingConfig
from regard.config.knob import Config, knob
from regard.config.model import RecurrentConfig, TranslatorConfig
from regard.config.training import TrainingConfig

TASKS = ("translate",)
ARCHITECTURES = ("transformer", "rnn")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run; `train --recipe FILE` reads it as JSON."""

    task: str = knob("translate", "what is learned", choices=TASKS)
    preset: str = knob(
        "auto",
        "model size; auto: by the size of the data",
        choices=("auto", "micro", "tiny", "small", "base", "big", "custom"),
    )
    arch: str = knob("transformer", "what kind of model reads and writes", choices=ARCHITECTURES)
    start_from: str = knob("", "a run or model folder to go on from")
    data: DataConfig = knob(DataConfig, "which files")
    tokenizer: TokenizerConfig = knob(TokenizerConfig, "how text becomes tokens")
    model: TranslatorConfig = knob(TranslatorConfig, "the model; used when preset is custom")
    recurrent: RecurrentConfig = knob(
        RecurrentConfig, "the model with --arch rnn; the preset gives its sizes unless it is custom"
    )
    training: TrainingConfig = knob(TrainingConfig, "how it is trained")
    decoding: DecodingConfig = knob(DecodingConfig, "how translations are searched for")
