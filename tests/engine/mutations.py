"""Directed mutations of engine files: one field, size, offset, code or value at a time, of models of every family.

Free of torch, so that a process under sanitizers starts fast. Mutation `index` is the same in every run.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.engine import layout
from regard.engine.description import EngineConfig
from regard.engine.file import serialize
from regard.engine.shortlist import Shortlist

FULL = 1000  # mutations of `make test-all`
SAMPLE = range(0, FULL, 20)  # those of `make test`

_STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=37)
_TRANSLATOR = TransformerConfig(
    source_vocab_size=53,
    target_vocab_size=61,
    share_embeddings=False,
    tie_embeddings=False,
    output_bias=True,
    hidden_size=24,
    encoder=_STACK,
    decoder=_STACK,
    max_positions=41,
)
_BERT = BertConfig(vocab_size=53, hidden_size=24, stack=_STACK, max_positions=67, head="label", num_labels=3)
_MODERN_BERT = {
    "norm_placement": "pre",
    "positions": "rotary",
    "gated": True,
    "bias": False,
    "first_attention_norm": False,
    "attention_window": 5,
    "num_token_types": 0,
    "head": "token",
}
_ALBERT = {"embedding_size": 11, "layer_groups": 1, "position_offset": 2, "head": "plain", "num_labels": 0}
_GPT = GptConfig(vocab_size=53, hidden_size=24, stack=_STACK, max_positions=19)
# Family and precision, each with settings of its own.
CONFIGS: tuple[tuple[EngineConfig, str], ...] = (
    (_TRANSLATOR, "float32"),
    (_BERT, "float32"),
    (_GPT, "float32"),
    (_TRANSLATOR.override({"positions": "learned", "norm_placement": "post"}), "bf16"),
    (_BERT.override(_MODERN_BERT), "bf16"),
    (_GPT.override({"positions": "alibi"}), "bf16"),
    (_TRANSLATOR.override({"positions": "relative", "hidden_size": 64}), "int8"),
    (_BERT.override(_ALBERT), "int8"),
    (_GPT.override({"positions": "learned", "activation": "silu"}), "int8"),
)

_SIZES = (0, 1, 2, 3, 4, 8, 16, 60, 61, 62, 97, 1 << 20)
_HUGE = (-1, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) + 1, 10**30)
_STRANGE = (1e308, -1e308, float("nan"), float("inf"), "", "rotary", "learned", True, False, None, [], {}, [[]] * 9)
_FLOATS = (
    *(np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, -2e30, 2e30, 1e-45, -0.0),
    struct.unpack("f", b"\xff\xff\xff\x7f")[0],  # NaN whose bits are the largest integer
)
_INTEGERS = (-1, 0, 1, 60, 61, (1 << 31) - 1, -(1 << 31), 1 << 30)
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "", None, 7)


@dataclass
class Parts:
    """An engine file in parts that mutations change."""

    table: dict[str, Any]  # without metadata
    metadata: dict[str, Any]
    model: dict[str, Any]  # kind, config, metadata
    data: bytearray

    @classmethod
    def parse(cls, content: bytes) -> Parts:
        size = int.from_bytes(content[:8], "little")
        table = json.loads(content[8 : 8 + size])
        metadata = table.pop("__metadata__")
        return cls(table, metadata, json.loads(metadata["model"]), bytearray(content[8 + size :]))

    def header(self) -> bytes:
        """The header, padded to the alignment."""
        model = self.metadata.get("model") and json.dumps(self.model)
        metadata = {**self.metadata, **({"model": model} if model else {})}
        header = json.dumps({"__metadata__": metadata, **self.table}).encode()
        return header + b" " * (-(8 + len(header)) % layout.ALIGNMENT)

    def serialize(self) -> bytes:
        """The file."""
        header = self.header()
        return len(header).to_bytes(8, "little") + header + bytes(self.data)

    def arrays(self) -> list[str]:
        """Names of the arrays, without padding."""
        return [name for name in self.table if not name.startswith("padding")]

    def view(self, name: str) -> np.ndarray:
        """Values of an array, which may be changed."""
        dtype = {"F32": np.float32, "I32": np.int32, "U8": np.uint8, "BF16": np.uint16}[self.table[name]["dtype"]]
        start, stop = self.table[name]["data_offsets"]
        return np.frombuffer(self.data, dtype, count=(stop - start) // np.dtype(dtype).itemsize, offset=start)


@cache
def valid_file(base: int) -> bytes:
    """A valid file of `CONFIGS[base]`, with random weights; translators have a shortlist."""
    config, precision = CONFIGS[base]
    rng = np.random.default_rng(base)
    weights: dict[str, np.ndarray] = {}
    for spec in layout.weight_specs(config):
        shape = (spec.outputs,) if spec.kind == "norm" else (spec.outputs, spec.inputs)
        weights[spec.weight] = rng.normal(0, 0.3, shape).astype(np.float32)
        if spec.bias:
            weights[spec.bias] = rng.normal(0, 0.3, spec.outputs).astype(np.float32)
    shortlist = None
    if isinstance(config, TransformerConfig):
        always_allowed = np.array([0, 1, 3, 7, 8, 9, 10, 17, 60], np.int32)
        lengths = rng.integers(0, 9, config.source_vocab_size)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lexicon = rng.integers(0, config.target_vocab_size, offsets[-1]).astype(np.int32)
        shortlist = Shortlist(always_allowed, offsets, lexicon=lexicon)
    content = io.BytesIO()
    serialize(config, precision, layout.pack_weights(config, weights, precision), None, shortlist)(content)
    return content.getvalue()


def mutate(index: int) -> tuple[str, bytes]:
    """Description and content of a mutated file."""
    kind = list(MUTATIONS)[index % len(MUTATIONS)]
    base = index // len(MUTATIONS) % len(CONFIGS)
    rng = np.random.default_rng([7, index])
    parts = Parts.parse(valid_file(base))
    mutated = MUTATIONS[kind](parts, rng)
    content = parts.serialize() if mutated is None else mutated
    config, precision = CONFIGS[base]
    return f"{index}: {kind} of {config.family} in {precision}", content


def _pick(rng: np.random.Generator, values: Any) -> Any:
    values = list(values)
    return values[int(rng.integers(len(values)))]


# ---- the file and its header


def _change_length(parts: Parts, rng: np.random.Generator) -> bytes:
    content = parts.serialize()
    size = int.from_bytes(content[:8], "little")
    sizes = (0, 1, size - 1, size + 1, size - 64, size + 64, len(content), 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1)
    return int(_pick(rng, sizes)).to_bytes(8, "little") + content[8:]


def _truncate(parts: Parts, rng: np.random.Generator) -> bytes:
    content = parts.serialize()
    cut = int(_pick(rng, (0, 1, 7, 8, 9, 64, 4096, len(content) // 2, len(content) - 64, len(content) - 1)))
    return content[:cut] if rng.random() < 0.7 else content + bytes(max(cut, 1))


def _flip_header_bits(parts: Parts, rng: np.random.Generator) -> bytes:
    content = bytearray(parts.serialize())
    size = 8 + int.from_bytes(content[:8], "little")
    for offset in rng.integers(0, size, int(rng.integers(1, 4))).tolist():
        content[offset] ^= 1 << int(rng.integers(8))
    return bytes(content)


def _inflate_header(parts: Parts, rng: np.random.Generator) -> bytes:
    """A header of megabytes that becomes as many objects as possible, or is deeply nested."""
    size = int(_pick(rng, (1 << 20, (2 << 20) - 50_000, 8 << 20, 32 << 20)))
    pattern = _pick(rng, ("[]", "{}", "[1]", "1e9", "999", '"é"', '{"a":1}'))
    is_nested = rng.random() < 0.3
    repeated = (
        "[" * (size // 2) + "]" * (size // 2)
        if is_nested
        else f"[{','.join([pattern] * (size // (len(pattern) + 1)))}]"
    )
    header = parts.header().rstrip()[:-1] + f',"padding.99999":{repeated}}}'.encode()
    header += b" " * (-(8 + len(header)) % layout.ALIGNMENT)
    return len(header).to_bytes(8, "little") + header + bytes(parts.data)


def _repeat_name(parts: Parts, rng: np.random.Generator) -> bytes:
    """An array, or a setting, that is there twice, with another value."""
    header = parts.header().rstrip().decode()
    if rng.random() < 0.5:
        name = _pick(rng, parts.arrays())
        entry = {**parts.table[name], "data_offsets": [0, 1 << 40]}
        header = header[:-1] + f",{json.dumps(name)}:{json.dumps(entry)}}}"
    else:
        setting = _pick(rng, ("hidden_size", "max_positions", "norm_placement"))
        header = header.replace(f'\\"{setting}\\":', f'\\"{setting}\\": 1000000000, \\"{setting}\\":', 1)
    encoded = header.encode() + b" " * (-(8 + len(header)) % layout.ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded + bytes(parts.data)


def _change_metadata(parts: Parts, rng: np.random.Generator) -> None:
    name = _pick(rng, [*parts.metadata, "other"])
    values = ("float32", "bf16", "int8", "", "5", 4, None, [], {}, "x" * 100_000, "\ud800", "[" * 5000)
    parts.metadata[name] = _pick(rng, values)


def _change_kind(parts: Parts, rng: np.random.Generator) -> None:
    name = _pick(rng, [*parts.model, "other"])
    parts.model[name] = _pick(rng, ("translator", "encoder", "gpt", "rnn", None, 7, [], {}, {"a": {}}))


# ---- entries of arrays


def _change_dtype(parts: Parts, rng: np.random.Generator) -> None:
    parts.table[_pick(rng, parts.table)]["dtype"] = _pick(rng, _DTYPES)


def _change_shape(parts: Parts, rng: np.random.Generator) -> None:
    entry = parts.table[_pick(rng, parts.arrays())]
    shape = list(entry["shape"])
    axis = int(rng.integers(len(shape)))
    change = int(rng.integers(4))
    if change == 0:
        shape[axis] = _pick(rng, (*_SIZES, *_HUGE, None, "1", 1.0, True))
    elif change == 1:
        shape = shape[::-1]
    else:
        shape = shape[:-1] if change == 2 else [*shape, 1]
    entry["shape"] = shape


def _change_offsets(parts: Parts, rng: np.random.Generator) -> None:
    entry = parts.table[_pick(rng, parts.table)]
    start, stop = entry["data_offsets"]
    end = len(parts.data)
    choices = (
        *([start + 4, stop + 4], [start + 1, stop + 1], [start, stop + 64], [start, stop - 1], [stop, start]),
        *([start - end, stop - end], [end, end + stop - start], [0, stop - start], [0, 0], [0, end], [start]),
        *([1 << 62, (1 << 62) + stop - start], [-64, stop], [start, 1 << 64], None, "0", [0.0, 1.0], [True, False]),
    )
    entry["data_offsets"] = _pick(rng, choices)


def _swap_arrays(parts: Parts, rng: np.random.Generator) -> None:
    """Two arrays with each other's data, which is valid where they are equally large."""
    left = _pick(rng, parts.arrays())
    entry = parts.table[left]
    size = np.diff(entry["data_offsets"])
    alike = [name for name in parts.arrays() if np.diff(parts.table[name]["data_offsets"]) == size]
    right = parts.table[_pick(rng, alike if rng.random() < 0.7 else parts.arrays())]
    entry["data_offsets"], right["data_offsets"] = right["data_offsets"], entry["data_offsets"]


def _drop_array(parts: Parts, rng: np.random.Generator) -> None:
    """An array that is missing, renamed, or there under two names."""
    name = _pick(rng, parts.table)
    change = rng.random()
    if change > 0.3:
        new_name = _pick(rng, (*parts.table, "x", "", "__metadata__x", "encoder.layers.99.attention.qkv.packed"))
        parts.table[new_name] = parts.table[name]
    if change < 0.7:
        del parts.table[name]


def _resize_array(parts: Parts, rng: np.random.Generator) -> None:
    """An array made longer or shorter in the file, its entry with it, and those that follow moved."""
    name = _pick(rng, parts.arrays())
    entry = parts.table[name]
    start, stop = entry["data_offsets"]
    change = 64 * int(rng.integers(-4, 5))
    change = max(change, start - stop)
    entry["shape"] = [*entry["shape"][:-1], max(0, entry["shape"][-1] + change // 4)]
    parts.data[stop:stop] = bytes(max(change, 0))
    if change < 0:
        del parts.data[stop + change : stop]
    for other in parts.table.values():
        if other["data_offsets"][0] >= stop:
            other["data_offsets"] = [offset + change for offset in other["data_offsets"]]
    entry["data_offsets"] = [start, stop + change]


# ---- settings of the model


def _change_setting(parts: Parts, rng: np.random.Generator) -> None:
    """One setting, by a size, a huge number or another type."""
    config = parts.model["config"]
    if rng.random() < 0.3:
        config = config[_pick(rng, [name for name, value in config.items() if isinstance(value, dict)])]
    values = _pick(rng, (_SIZES, _HUGE, _STRANGE))
    config[_pick(rng, config)] = _pick(rng, values)


def _change_sizes(parts: Parts, rng: np.random.Generator) -> None:
    """Settings that arrays do not decide: positions, ids, heads, windows."""
    config = parts.model["config"]
    names = [
        *("max_positions", "position_offset", "attention_window", "global_every", "layer_groups", "num_labels"),
        *("eos_id", "bos_id", "pad_id", "norm_eps", "rope_theta", "local_rope_theta", "num_token_types"),
    ]
    for _ in range(int(rng.integers(1, 4))):
        name = _pick(rng, [name for name in names if name in config])
        config[name] = _pick(rng, (*_SIZES, *_HUGE))
    for name in ("stack", "encoder", "decoder"):
        if name in config and rng.random() < 0.5:
            config[name]["num_heads"] = _pick(rng, (1, 2, 3, 4, 6, 8, 12, 24, 5, 256, 257))


def _change_choice(parts: Parts, rng: np.random.Generator) -> None:
    """A code: of the activation, the positions, the norm, the head or a flag."""
    config = parts.model["config"]
    names = [name for name, value in config.items() if isinstance(value, str | bool)]
    values = (
        *("relu", "silu", "quick_gelu", "sinusoidal", "learned", "rotary", "none", "alibi", "relative", "pre"),
        *(
            "post",
            "both",
            "none",
            "rms",
            "layer",
            "plain",
            "label",
            "token",
            "span",
            "masked",
            "first",
            "mean",
            "blocks",
            True,
            False,
            "auto",
        ),
    )
    config[_pick(rng, names)] = _pick(rng, values)


# ---- values


def _change_values(parts: Parts, rng: np.random.Generator) -> None:
    """One value of an array, some of them, or all: NaN, infinite, huge, tiny, extreme integers."""
    name = _pick(rng, [name for name in parts.arrays() if not name.startswith("shortlist")])
    values = parts.view(name)
    count = int(_pick(rng, (1, 7, len(values))))
    where = rng.integers(0, len(values), count) if count < len(values) else slice(None)
    value = _pick(rng, _FLOATS)
    if values.dtype == np.float32:
        values[where] = value
    elif values.dtype == np.uint16:
        values[where] = layout.from_bf16(layout.to_bf16(np.array([value], np.float32))).view(np.uint32) >> 16
    elif values.dtype == np.int32:
        values[where] = _pick(rng, _INTEGERS)
    elif rng.random() < 0.5:
        values[where] = _pick(rng, (0, 127, 128, 255))
    else:
        floats = values[: len(values) // 4 * 4].view(np.float32)  # of float32 models
        floats[:: max(1, len(floats) // count)] = value


def _change_output(parts: Parts, rng: np.random.Generator) -> None:
    """All logits below those of outputs that pad the last block, or none of them a number."""
    names = [name for name in parts.arrays() if name.rpartition(".")[2] == "bias"]
    name = _pick(rng, [name for name in names if name.startswith(("lm_head", "classifier"))] or names)
    parts.view(name)[:] = _pick(rng, (-2e30, -np.inf, np.nan, np.inf, 3.4e38, -3.4e38))


def _change_all_values(parts: Parts, rng: np.random.Generator) -> None:
    """Random bytes in every array of weights."""
    for name in parts.arrays():
        if not name.startswith("shortlist") and rng.random() < 0.5:
            start, stop = parts.table[name]["data_offsets"]
            parts.data[start:stop] = rng.integers(0, 256, stop - start, np.uint8).tobytes()


def _change_shortlist(parts: Parts, rng: np.random.Generator) -> None:
    """Offsets and ids of a lexicon; where there is none, one is added to a model that can have none."""
    names = [name for name in parts.arrays() if name.startswith("shortlist")]
    if not names:
        end = len(parts.data)
        parts.data += bytes(64)
        parts.table["shortlist.offsets"] = {"dtype": "I32", "shape": [16], "data_offsets": [end, end + 64]}
        return
    values = parts.view(_pick(rng, names))
    change = int(rng.integers(4))
    if change == 0:  # whose difference wraps to a small positive number
        first = int(rng.integers(len(values) - 1))
        values[first : first + 2] = ((1 << 31) - 1, -(1 << 31))
    elif change == 1:
        values[int(rng.integers(len(values)))] = _pick(rng, _INTEGERS)
    elif change == 2:
        values[:] = values[::-1].copy()
    else:
        values[:] = _pick(rng, _INTEGERS)


MUTATIONS: dict[str, Callable[[Parts, np.random.Generator], bytes | None]] = {
    "length of the header": _change_length,
    "setting": _change_setting,
    "values": _change_values,
    "sizes": _change_sizes,
    "dtype": _change_dtype,
    "shape": _change_shape,
    "offsets": _change_offsets,
    "shortlist": _change_shortlist,
    "truncation": _truncate,
    "output": _change_output,
    "code": _change_choice,
    "swapped arrays": _swap_arrays,
    "all values": _change_all_values,
    "missing array": _drop_array,
    "resized array": _resize_array,
    "metadata": _change_metadata,
    "kind": _change_kind,
    "header bits": _flip_header_bits,
    "repeated name": _repeat_name,
    "values again": _change_values,
    "sizes again": _change_sizes,
    "huge header": _inflate_header,
    "setting again": _change_setting,
}
