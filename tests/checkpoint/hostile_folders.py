"""Folders that somebody made to harm: absurd sizes, wrong types, nesting, pickles, links, damaged and lying files."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic, weights
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.export.convert import convert
from regard.checkpoint.hf import sentence_transformers
from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.checkpoint.run_dir import RunDirectory
from regard.config.models import TransformerConfig
from regard.config.runs import build_run
from regard.models import build_model
from regard.models.base import initialize_weights
from tests.model_folders import save_model_folders

BOMB_TEXT = "a" * 40 + "!"  # on which "(a+)+$" backtracks
LINE = f"the dog runs {BOMB_TEXT}"
COMMANDS = {  # base folder → command that opens it
    "embed": ["embed", "{}", LINE],
    "sharded": ["embed", "{}", LINE],
    "wordpiece": ["embed", "{}", LINE],
    "classify": ["classify", "{}", LINE],
    "engine": ["classify", "{}", LINE],
    "tag": ["tag", "{}", LINE],
    "translate": ["translate", "{}", LINE],
    "native": ["translate", "{}", LINE],
    "generate": ["generate", "{}", "once", "--max-new-tokens", "4"],
    "adapter": ["embed", "{}", LINE],
    "pickled": ["convert", "{}", "{}-out", "--to", "regard"],
    "run": ["info", "{}"],
}
MIN_WITH_PICKLES = 100  # folders; converting a pickle starts a process that imports torch
VALUES: tuple[str, ...] = (  # JSON texts that replace a value
    *("1000000000", "9223372036854775808", "-1", "0", "1" + "0" * 400, "0.5", "NaN", "-Infinity", "1e400"),
    *("null", "true", "[]", "{}", '""', '"../../etc/passwd"', r'"\ud800"', '["a", 1]', '{"a": {"b": 1}}'),
    *("[" * 100_000 + "]" * 100_000, '{"a":' * 900 + "1" + "}" * 900, '"' + "x" * 300_000 + '"'),
)
Build = Callable[[Path], None]


@dataclass(frozen=True)
class HostileFolder:
    """A hostile folder: what it is, the valid folder it begins as, and how it is changed."""

    name: str
    base: str
    change: Build


def save_bases(root: Path) -> dict[str, Path]:
    """Write the valid folders that hostile ones begin as; none has digests."""
    folders = save_model_folders(root / "saved")
    bases = {name: shutil.copytree(folders[name], root / name) for name in ("embed", "classify", "tag", "translate")}
    bases["generate"] = _save_gpt2(folders["generate"], root / "generate")
    bases["native"] = _save_native(folders["translate"], root / "native")
    bases["engine"] = convert(folders["classify"], root / "engine", precision="int8").folder
    modules = SentenceTransformersConfig(pooling=("mean",), normalize=True, max_length=20)
    for name, content in sentence_transformers.serialize_modules(modules).items():
        (bases["embed"] / name).write_bytes(content)
    sentence_transformers.write_pooling(bases["embed"], modules, 32)
    bases["sharded"] = _shard(folders["embed"], root / "sharded")
    bases["wordpiece"] = _with_wordpiece_vocabulary(folders["embed"], root / "wordpiece")
    bases["adapter"] = _save_adapter(folders["embed"], root / "adapter")
    bases["pickled"] = _save_pickled(folders["embed"], root / "pickled")
    bases["run"] = shutil.copytree(folders["classify"], root / "run")
    directory = RunDirectory(bases["run"])
    config = build_run("classify", {"data.train": ["x.csv"]}).to_dict()
    digests = {"train": "ab"}
    resolved = {"threads": 1, "throughput": "float32 with 1 thread"}
    run = {"config": config, "data_digests": digests, "files": {}, "unit": "step", "resolved": resolved}
    directory.write_run({**run, "environment": {"torch": "2.13.0"}})
    directory.append_log({"step": 3, "loss": 1.5})
    for folder in bases.values():
        for manifest in folder.rglob(atomic.MANIFEST):
            manifest.unlink()
    return bases


def _save_gpt2(source: Path, folder: Path) -> Path:
    loaded = load_causal_lm(source)
    config = loaded.config.override({"positions": "learned", "hidden_size": 32})
    model = build_model(config)
    initialize_weights(model, 1)
    save_causal_lm(folder, config, model.state_dict(), tokenizer=loaded.tokenizer, metadata={}, card="")
    return folder


def _save_native(source: Path, folder: Path) -> Path:
    loaded = load_translator(source)
    assert isinstance(loaded.config, TransformerConfig)
    config = loaded.config.override({"positions": "rotary"})
    model = build_model(config)
    initialize_weights(model, 1)
    tokenizers = {"source": loaded.source, "target": loaded.target}
    save_translator(
        folder, config, model.state_dict(), tokenizers=tokenizers, decoding=loaded.decoding, metadata={}, card=""
    )
    return folder


def _shard(source: Path, folder: Path) -> Path:
    import safetensors.torch

    shutil.copytree(source, folder)
    tensors = safetensors.torch.load_file(folder / weights.FILE)
    (folder / weights.FILE).unlink()
    weight_map = {}
    for index, shard in enumerate(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
        part = {name: tensors[name] for name in sorted(tensors)[index::2]}
        safetensors.torch.save_file(part, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), "utf-8")
    return folder


def _with_wordpiece_vocabulary(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    size = json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(size - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    return folder


def _save_adapter(base: Path, folder: Path) -> Path:
    import safetensors.torch
    import torch

    folder.mkdir()
    module = "base_model.model.encoder.layer.0.attention.self.query"
    hidden_size = json.loads((base / "config.json").read_text("utf-8"))["hidden_size"]
    tensors = {
        f"{module}.lora_A.weight": torch.ones(2, hidden_size),
        f"{module}.lora_B.weight": torch.ones(hidden_size, 2),
    }
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, "target_modules": []}
    (folder / "adapter_config.json").write_text(json.dumps(fields), "utf-8")
    return folder


def _save_pickled(source: Path, folder: Path) -> Path:
    import safetensors.torch
    import torch

    shutil.copytree(source, folder)
    torch.save(safetensors.torch.load_file(folder / weights.FILE), folder / weights.PICKLED_FILE)
    (folder / weights.FILE).unlink()
    return folder


# ---- changes of one value in a JSON file


def _replace_value(file: str, path: tuple[str | int, ...], text: str) -> Build:
    """Replace the value at a path by a JSON text, which may be no valid JSON."""

    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text("utf-8"))
        inner: Any = content
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = "@value@"
        (folder / file).write_text(json.dumps(content).replace('"@value@"', text), "utf-8")

    return change


def _value_paths(values: Any, depth: int = 4) -> Iterator[tuple[str | int, ...]]:
    """Paths of the values of a JSON file, at most a few of each list and each vocabulary."""
    if depth == 0 or not isinstance(values, dict | list):
        return
    items = list(values.items()) if isinstance(values, dict) else list(enumerate(values))
    for name, inner in items[: 40 if isinstance(values, dict) and len(items) < 40 else 2]:
        yield (name,)
        for path in _value_paths(inner, depth - 1):
            yield (name, *path)


def _value_changes(bases: dict[str, Path]) -> Iterator[HostileFolder]:
    """Every value of every JSON file of the bases with an absurd one in its place, in turn."""
    values = list(VALUES)
    for base, folder in sorted(bases.items()):
        for file in sorted(folder.rglob("*.json")):
            name = str(file.relative_to(folder))
            content = json.loads(file.read_text("utf-8"))
            for index, path in enumerate(_value_paths(content)):
                text = values[(7 * index + len(name)) % len(values)]
                description = f"{base}: {name}: {'.'.join(map(str, path))} is {text[:30]}"
                yield HostileFolder(description, base, _replace_value(name, path, text))


# ---- changes of whole files


def _write(file: str, content: bytes) -> Build:
    return lambda folder: _replace(folder / file, lambda path: path.write_bytes(content))


def _replace(path: Path, create: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    create(path)


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(100 << 30)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


class _Harmful:
    """Its pickle creates a file where it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PICKLE_WAS_EXECUTED",)


PICKLE = pickle.dumps({"a": _Harmful()})
FILE_CHANGES: dict[str, Callable[[Path], object]] = {
    "is a folder": lambda path: _replace(path, Path.mkdir),
    "is a pipe": lambda path: _replace(path, _pipe),
    "is a link to /dev/zero": lambda path: _replace(path, lambda link: link.symlink_to("/dev/zero")),
    "is a link to itself": lambda path: _replace(path, lambda link: link.symlink_to(link.name)),
    "is a link to nothing": lambda path: _replace(path, lambda link: link.symlink_to("missing")),
    "has 100 GB of zeros": lambda path: _replace(path, _sparse),
    "is empty": lambda path: path.write_bytes(b""),
    "is cut in half": _truncate,
    "is noise": lambda path: path.write_bytes(random.Random(3).randbytes(4096)),
    "is a pickle": lambda path: path.write_bytes(PICKLE),
    "is UTF-16": lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")),
    "is nested": lambda path: path.write_bytes(VALUES[18].encode()),
    "is a list": lambda path: path.write_bytes(b"[1, 2]"),
    "has a field twice": lambda path: path.write_bytes(b'{"model_type": "bert", "model_type": "gpt2"}'),
    "is missing": Path.unlink,
}


def _file_changes(bases: dict[str, Path]) -> Iterator[HostileFolder]:
    for base, folder in sorted(bases.items()):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = str(file.relative_to(folder))
            for description, change in FILE_CHANGES.items():
                yield HostileFolder(
                    f"{base}: {name} {description}", base, lambda root, name=name, change=change: change(root / name)
                )


# ---- lying safetensors, indexes, tokenizers and modules


def _rewrite_header(file: str, edit: Callable[[dict[str, Any]], object]) -> Build:
    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return change


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name != "__metadata__")  # type: ignore[no-any-return]


def _second(header: dict[str, Any]) -> dict[str, Any]:
    return [entry for name, entry in header.items() if name != "__metadata__"][1]  # type: ignore[no-any-return]


HEADER_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "offsets overlap": lambda header: _second(header).update(data_offsets=_first(header)["data_offsets"]),
    "offsets are negative": lambda header: _first(header).update(data_offsets=[-8, 0]),
    "offsets are huge": lambda header: _first(header).update(data_offsets=[0, 2**62]),
    "an offset is a text": lambda header: _first(header).update(data_offsets=["0", "8"]),
    "a shape is huge": lambda header: _first(header).update(shape=[2**31, 2**31]),
    "a shape overflows": lambda header: _first(header).update(shape=[2**33, 2**31]),
    "a shape has floats": lambda header: _first(header).update(shape=[1.5, 2]),
    "a shape is nested": lambda header: _first(header).update(shape=[[1], [2]]),
    "a shape has a million axes": lambda header: _first(header).update(shape=[1] * 1_000_000),
    "a shape has 70 axes": lambda header: _first(header).update(shape=[1] * 70 + _first(header)["shape"]),
    "a dtype is unknown": lambda header: _first(header).update(dtype="F8_E5M2"),
    "a dtype is a list": lambda header: _first(header).update(dtype=["F32"]),
    "a dtype has another size": lambda header: _first(header).update(dtype="F64"),
    "a dtype is an integer": lambda header: _first(header).update(dtype="I32"),
    "there are 100,000 tensors": lambda header: header.update(
        {f"t{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(100_000)}
    ),
    "names are paths": lambda header: header.update({"../../x": header.pop(next(reversed(header)))}),
    "metadata is a list": lambda header: header.update(__metadata__=[1, 2]),
    "an entry is a number": lambda header: header.update({next(reversed(header)): 5}),
    "there are no tensors": lambda header: header.clear(),
}


def _header_changes() -> Iterator[HostileFolder]:
    files = {"embed": weights.FILE, "translate": weights.FILE, "generate": weights.FILE, "native": weights.FILE}
    files |= {"engine": "engine.safetensors", "adapter": "adapter_model.safetensors"}
    for base, file in files.items():
        for description, edit in HEADER_EDITS.items():
            yield HostileFolder(f"{base}: {file}: {description}", base, _rewrite_header(file, edit))
        for description, content in {
            "the header is longer than the file": struct.pack("<Q", 2**40) + b"{}",
            "the header's length is 2^63": struct.pack("<Q", 2**63) + b"{}",
            "the header is nested": struct.pack("<Q", 200_000) + VALUES[18].encode(),
            "the header is noise": struct.pack("<Q", 64) + bytes(range(64)),
            "a tensor occurs twice": struct.pack("<Q", 40) + b'{"a": {"dtype": "F32"}, "a": {"shape":1}}'[:40],
        }.items():
            yield HostileFolder(f"{base}: {file}: {description}", base, _write(file, content))


def _not_finite(folder: Path) -> None:
    with open(folder / weights.FILE, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(struct.pack("<f", float("nan")))


def _directed_changes() -> Iterator[HostileFolder]:
    """Changes that need a file of their own."""
    index = weights.INDEX
    shards = {"../embed/model.safetensors": 1, "/etc/passwd": 2, "sub/x.safetensors": 3, "": 4, "missing": 5, "..": 6}
    for shard in shards:
        content = json.dumps({"weight_map": {"embeddings.word_embeddings.weight": shard}}).encode()
        yield HostileFolder(f"sharded: the index names {shard!r}", "sharded", _write(index, content))
    for pattern in (
        "(a+)+$",
        "(a|aa)+$",
        "(a|a?)+$",
        "((a*)*)*$",
        "(.*)*x",
        "a" * 20_000,
        "(" * 5000,
        "\\p{L",
        "(?<=a+)b",
    ):
        for field in ("pre_tokenizer", "normalizer"):
            component: dict[str, Any] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
            component["invert"] = False
            if field == "normalizer":
                component = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
            change = _replace_value("tokenizer.json", (field,), json.dumps(component))
            yield HostileFolder(f"embed: {field} {pattern[:20]}", "embed", change)
    for path in ("../embed", "/etc", "..", "1_Pooling/../..", "", "x" * 5000, "a\\u0000b", "\\ud800"):
        modules = f'[{{"type": "x.Transformer", "path": ""}}, {{"type": "x.Pooling", "path": "{path}"}}]'
        yield HostileFolder(f"embed: a module in {path[:20]!r}", "embed", _write("modules.json", modules.encode()))
    yield HostileFolder("embed: a weight is not a number", "embed", _not_finite)
    yield HostileFolder("pickled: weights that run a program", "pickled", _write(weights.PICKLED_FILE, PICKLE))
    yield HostileFolder("pickled: weights are noise", "pickled", _write(weights.PICKLED_FILE, bytes(range(256)) * 9))
    code = json.dumps({"model_type": "x", "auto_map": {"AutoModel": "evil.py--Model"}}).encode()
    yield HostileFolder("embed: code beside the weights", "embed", _write("config.json", code))
    million = json.dumps({str(index): f"label {index}" for index in range(1_000_000)})
    yield HostileFolder("classify: a million labels", "classify", _replace_value("config.json", ("id2label",), million))
    words = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(["same"] * 1_000_000)]).encode()
    yield HostileFolder("wordpiece: a million equal words", "wordpiece", _write("vocab.txt", words))
    yield HostileFolder("wordpiece: no special tokens", "wordpiece", _write("vocab.txt", b"a\nb\n"))
    yield HostileFolder("wordpiece: not UTF-8", "wordpiece", _write("vocab.txt", b"\xff\xfe\x00\x80" * 100))
    lines = b'{"step": 1}\n' + VALUES[18].encode() + b"\n" + b"\xff\n" + b'{"step": "x"}\n[1]\n{"step": NaN}\n'
    yield HostileFolder("run: a hostile log", "run", _write("log.jsonl", lines))


def hostile_folders(bases: dict[str, Path], count: int) -> list[HostileFolder]:
    """A fixed choice of `count` folders: all directed ones as far as they fit, and as many others of each kind."""
    rng = random.Random(11)
    groups = [
        list(_directed_changes()),
        list(_header_changes()),
        list(_file_changes(bases)),
        list(_value_changes(bases)),
    ]
    if count < MIN_WITH_PICKLES:
        groups = [[hostile for hostile in group if hostile.base != "pickled"] for group in groups]
    chosen: list[HostileFolder] = []
    for remaining, group in zip((4, 3, 2, 1), groups, strict=True):
        rng.shuffle(group)
        chosen += group[: (count - len(chosen)) // remaining]
    return chosen
