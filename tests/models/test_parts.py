"""Parts of the block that can be chosen or left out, in every family of Transformers, each changed alone."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.components import POSITIONS
from regard.config.attention import NORMALIZATIONS
from regard.config.inference import DecodingConfig
from regard.config.models import NORM_PLACEMENTS, StackConfig
from regard.decoding.search import search
from regard.engine.folder import unsupported_reason
from regard.errors import ConfigError
from regard.packed_tokens import Tokens
from tests.checkpoint.samples import tokenizers
from tests.models.reference import Reference
from tests.parts import BASE, CONFIGS, LOADERS, PARTS, Part, build, build_config, family_settings, save_folder

TOLERANCE = 2e-5  # relative to the largest output
WEIGHT_TOLERANCE = 1e-4  # of attention weights: those of large scores depend on their rounding
ROWS = [[5, 6, 7, 8, 9, 4], [9, 3], [4, 4, 7]]
SIZES = ("num_layers", "num_heads", "feed_forward_size")  # settings of a stack that are no parts
FAMILY_NAMES = list(CONFIGS)
every_family = pytest.mark.parametrize("family", FAMILY_NAMES)
every_part = pytest.mark.parametrize("part", PARTS, ids=str)


@torch.no_grad()
def outputs(model: Any, rows: list[list[int]]) -> list[NDArray[np.float32]]:
    """Hidden states of a translator or encoder, logits of a causal model, of each row."""
    tokens = Tokens.from_rows(rows)
    match model.config.family:
        case "transformer":
            states = model(tokens, tokens).numpy()
        case "bert":
            states = model.encode(tokens)
        case _:
            states = model.logits(tokens).numpy()
    return np.split(states, np.cumsum(tokens.lengths)[:-1])


def assert_close(output: NDArray[Any], expected: NDArray[Any], tolerance: float = TOLERANCE) -> None:
    assert output.shape == expected.shape
    assert np.abs(output - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


def test_the_table_has_every_part() -> None:
    values = {(name, value) for part in PARTS for name, value in part.settings.items()} | set(BASE.items())
    parts = {path.removeprefix("stack."): value for path, value in values if path.startswith("stack.")}
    assert {name for name in StackConfig().to_dict() if name not in SIZES} <= parts.keys()
    for name, choices in (
        ("norm_placement", NORM_PLACEMENTS),
        ("positions", POSITIONS),
        ("stack.attention_normalization", [kind for kind in NORMALIZATIONS if kind != "softmax"]),
    ):
        assert {value for path, value in values if path == name} == {*choices}
    for part in PARTS:
        assert list(part.copy) == FAMILY_NAMES
        assert part.refused


@every_family
@every_part
def test_a_part_changes_its_own_weights_and_no_others(family: str, part: Part) -> None:
    base = {name: tensor.shape for name, tensor in build(family, {}).state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in build(family, part.settings).state_dict().items()}
    names = base.keys() | shapes.keys()
    changed = {name for name in names if base.get(name) != shapes.get(name)}
    assert changed == {name for name in names if any(fnmatch(name, pattern) for pattern in part.weights)}
    assert bool(changed) == bool(part.weights)


@every_family
@every_part
def test_outputs_and_attention_are_those_of_the_papers(family: str, part: Part) -> None:
    model = build(family, part.settings)
    for row in ROWS[:2]:
        reference = Reference(model)
        expected = reference.outputs(row)
        with trace(full_precision=True) as captured:
            (output,) = outputs(model, [row])
        assert_close(output, expected)
        assert set(captured) == reference.attention.keys()
        for site, maps in reference.attention.items():
            assert_close(captured[site].weights[0], np.stack(maps), WEIGHT_TOLERANCE)


@every_family
@pytest.mark.parametrize("part", [part for part in PARTS if part.settings and not part.weights], ids=str)
def test_a_part_matters_to_the_same_weights(family: str, part: Part) -> None:
    """Otherwise the comparison with the papers would not show whether the setting is read."""
    model = build(family, part.settings)
    base = Reference(model, build_config(family, {})).outputs(ROWS[0])
    assert np.abs(base - Reference(model).outputs(ROWS[0])).max() > 1e-3


@every_family
@every_part
def test_a_row_gives_the_same_alone_and_in_a_batch(family: str, part: Part) -> None:
    model = build(family, part.settings)
    for row, output in zip(ROWS, outputs(model, ROWS), strict=True):
        assert_close(outputs(model, [row])[0], output)


@pytest.mark.parametrize("family", ["transformer", "gpt"])
@every_part
def test_cached_decoding_gives_what_whole_sequences_give(family: str, part: Part) -> None:
    model = build(family, part.settings)
    source = Tokens.from_rows([[5, 6, 7, 8]])
    ids = search(model, source, DecodingConfig(beam=1), max_lengths=[9])[0][0].ids
    expected: list[int] = []
    while len(expected) < len(ids):
        if family == "gpt":
            logits = model.logits(Tokens.from_rows([[5, 6, 7, 8, *expected]]))[-1]
        else:
            with torch.no_grad():
                hidden = model(source, Tokens.from_rows([[model.config.bos_id, *expected]]))
                logits = model.output_logits(hidden)[-1, : model.vocab_size]
            logits[[model.config.pad_id, model.config.bos_id]] = -torch.inf
        expected.append(int(logits.argmax()))
    assert ids == expected


@every_family
@every_part
def test_a_model_with_another_part_is_saved_and_loaded(tmp_path: Path, family: str, part: Part) -> None:
    tokenizer = tokenizers(shared=True)["source"]
    model = build(family, part.settings, vocab_size=tokenizer.vocab_size)
    save_folder(tmp_path, model, tokenizer)
    loaded = LOADERS[family](tmp_path)
    assert loaded.config == model.config
    weights = model.state_dict()
    assert loaded.arrays.keys() == weights.keys()
    assert all(np.array_equal(loaded.arrays[name], tensor.numpy()) for name, tensor in weights.items())


SUMMARIES = {  # of settings that are not described as `setting value`
    "norm_placement post": "post-norm",
    "norm_placement both": "pre- and post-norm",
    "norm_placement none": "no norms",
    **{f"positions {kind}": f"{kind} positions" for kind in POSITIONS},
    "positions none": "no positions",
}


@every_family
@every_part
def test_the_summary_names_a_changed_part(family: str, part: Part) -> None:
    summary = build_config(family, part.settings).summary()
    base = build_config(family, {}).summary()
    for path, value in part.settings.items():
        text = f"{path.removeprefix('stack.')} {str(value).lower().removesuffix('.0')}"
        text = SUMMARIES.get(text, text)
        assert f", {text}" in summary
        assert f", {text}" not in base


@every_family
@every_part
def test_the_engine_says_which_part_it_leaves_to_torch(family: str, part: Part) -> None:
    assert unsupported_reason(build_config(family, part.settings)) == part.engine


@every_family
@pytest.mark.parametrize(
    ("settings", "message"),
    [({**part.settings, **changes}, message) for part in PARTS for changes, message in part.refused],
    ids=str,
)
def test_what_makes_no_sense_is_refused(family: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIGS[family]().override(family_settings(family, {**BASE, **settings}))


def test_a_window_needs_full_attention() -> None:
    with pytest.raises(ConfigError, match=r"attention_window \(1\) needs attention 'full', not 'blocks'"):
        build_config("bert", {"attention_window": 1, "attention": "blocks"})
