"""The folder `features/` of an RNN classifier or tagger: a copy of the model whose frozen layers it reads.

It holds what that model's predictions depend on (config, weights, tokenizers), under the names of its own folder, with
its `task.json` and model card. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic, weights
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CARD, TASK_FILE, resolve_model_path
from regard.checkpoint.model_files import model_files, present_files

FEATURES = "features"
DEFAULT_LAYERS = "mix"  # of folders that do not name their layers


def copy_features(source: str | Path, folder: str | Path) -> None:
    """Copy the model of the features into the folder of a classifier or tagger, which can be moved as a whole then."""
    path = resolve_model_path(resolve_model(source))
    names = (*model_files(path), *present_files(path, (weights.INDEX, TASK_FILE, CARD)))
    atomic.write_folder(Path(folder) / FEATURES, {name: (path / name).read_bytes() for name in names})


def describe_features(features: Mapping[str, Any]) -> str:
    """The frozen features of a `task.json` in a few words, with the learned mix of their layers.

    >>> describe_features({"family": "bert", "layers": [1, 2], "selection": "last4", "weights": [1.0], "scale": 1.5})
    'frozen bert, layers 1, 2 concatenated, scale 1.5'
    >>> describe_features({"weights": [0.25, 0.75], "scale": 1.0})
    'frozen elmo, layer weights 0: 0.25, 1: 0.75, scale 1'
    """
    layer_weights = features["weights"]
    layers = features.get("layers", [*range(len(layer_weights))])
    family = features.get("family", "elmo")
    if len(layer_weights) > 1:
        mix = ", ".join(f"{layer}: {weight:.2f}" for layer, weight in zip(layers, layer_weights, strict=True))
        selection = f"layer weights {mix}"
    elif len(layers) > 1:
        selection = f"layers {', '.join(map(str, layers))} concatenated"
    else:
        selection = f"layer {layers[0]}"
    return f"frozen {family}, {selection}, scale {features['scale']:.3g}"
