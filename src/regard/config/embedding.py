"""How texts become vectors."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """How one vector is made of a text; what is not said here, the model's folder says."""

    pooling: str = knob(
        "folder",
        "mean or max of all tokens, the first token (cls), or as the model's folder says",
        choices=("folder", "mean", "cls", "max"),
    )
    normalize: str = knob(
        "folder", "vectors of length 1, or as the model's folder says", choices=("folder", "yes", "no")
    )
    long: str = knob(
        "cut",
        "texts that are too long: cut them and say so, take the mean of windows, or refuse",
        choices=("cut", "windows", "refuse"),
    )
    max_length: int = knob(0, "tokens of a text that are read, special ones counted; 0: as the folder says", low=0)
    batch_tokens: int = knob(1024, "tokens computed together", low=1)
