"""Engine files: reading returns what was written, and damaged files are refused."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard.checkpoint.export.convert import convert
from regard.decoding.search import search
from regard.engine import file, layout
from regard.engine.encoder import EncoderEngine
from regard.engine.folder import read_translator
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, UsageError
from regard.models.transformer import Transformer
from regard.packed_tokens import Tokens
from tests.engine.conftest import draw_sources, translator
from tests.engine.mutations import Parts
from tests.engine.test_encoder import MODERN_BERT, build_encoder


def write_engine_file(folder: Path, precision: str, **changes: object) -> tuple[Path, TranslatorEngine, Transformer]:
    model = translator(output_bias=True, **changes)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    engine = TranslatorEngine.from_weights(model.config, weights, precision)
    path = folder / file.ENGINE_FILE
    with open(path, "wb") as sink:
        file.serialize(model.config, precision, engine.arrays)(sink)
    return path, engine, model


@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_what_is_read_is_what_was_written(precision: str, tmp_path: Path) -> None:
    path, engine, model = write_engine_file(tmp_path, precision, positions="learned", tie_embeddings=False)
    stored = file.read_engine_file(path)
    assert (stored.precision, stored.config) == (precision, engine.config)
    assert all(np.array_equal(read, written) for read, written in zip(stored.arrays, engine.arrays, strict=True))
    source = draw_sources(model, (4, 9))
    mapped = TranslatorEngine(engine.config, stored.arrays, precision)
    assert np.array_equal(mapped.encode(source), engine.encode(source))


@pytest.mark.parametrize(("precision", "bound"), [("float32", 0.0), ("bf16", 2**-8), ("int8", 1 / 60)])
def test_unpacked_weights_are_within_their_precision(precision: str, bound: float) -> None:
    model = translator(tie_embeddings=False, share_embeddings=False, source_vocab_size=31, positions="learned")
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    packed = layout.pack_weights(model.config, weights, precision)
    unpacked = layout.unpack_weights(model.config, packed, precision)
    assert unpacked.keys() == weights.keys()
    for name, array in weights.items():
        row_max = np.abs(array).max(axis=-1, keepdims=True)
        assert (np.abs(unpacked[name] - array) <= bound * row_max).all(), name


def test_int8_weights_that_are_summed_in_16_bits_do_not_overflow() -> None:
    rng = np.random.default_rng(3)
    sizes = (1, 3, 8, 21, 64, 517)
    for inputs, draw in itertools.product(sizes, (rng.standard_normal, rng.random, np.ones)):
        weights = draw((40, inputs)).astype(np.float32)
        weights[rng.random(weights.shape) < 0.1] *= -30
        linear = layout.WeightSpec("linear", "layer", 40, inputs, weight="w", bias="b")
        arrays = [np.zeros(spec.shape, spec.dtype) for spec in linear.array_specs("int8")]
        linear.pack(arrays, {"w": weights}, "int8")
        quantized = np.rint(linear.unpack(arrays, "int8")["w"] / arrays[1][:40, None])
        eights = np.pad(quantized, ((0, 0), (0, -inputs % 8))).reshape(40, -1, 2, 2, 2)  # of groups, lanes, pairs
        positive_sums = np.maximum(eights, 0).sum(axis=(2, 4))
        negative_sums = np.maximum(-eights, 0).sum(axis=(2, 4))
        largest_sums = np.maximum(positive_sums, negative_sums).reshape(40, -1).max(axis=1)
        assert largest_sums.max() <= 128
        assert ((largest_sums > 120) | (np.abs(quantized).max(axis=1) == 127)).all()  # the range is used


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path, engine, _ = write_engine_file(tmp_path, "int8")
    tensors = safetensors.load_file(path)
    assert np.array_equal(tensors["lm_head.packed"].numpy(), engine.arrays[-4])


def test_damaged_and_hostile_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path, _, _ = write_engine_file(tmp_path, "int8")
    valid = path.read_bytes()
    size = int.from_bytes(valid[:8], "little")
    table = json.loads(valid[8 : 8 + size])

    def with_table(changed: dict[str, object]) -> bytes:
        header = json.dumps(changed).encode()
        header += b" " * (-(8 + len(header)) % 64)
        return len(header).to_bytes(8, "little") + header + valid[8 + size :]

    name = "decoder.layers.0.cross_attention.query.packed"
    entry = table[name]
    metadata = table["__metadata__"]

    def with_entry(**changes: object) -> bytes:
        return with_table({**table, name: {**entry, **changes}})

    def with_metadata(**changes: object) -> bytes:
        return with_table({**table, "__metadata__": {**metadata, **changes}})

    def with_model(old: str, new: str) -> bytes:
        assert old in metadata["model"]
        return with_metadata(model=metadata["model"].replace(old, new))

    invalid = [
        b"",
        valid[:7],
        valid[: len(valid) // 2],
        (2**63).to_bytes(8, "little") + valid[8:],
        valid[:8] + b"[" * size + valid[8 + size :],
        with_entry(data_offsets=[2**70, 2**70 + 1]),
        with_entry(data_offsets=[-64, entry["data_offsets"][1]]),
        with_entry(data_offsets=[offset + 1 for offset in entry["data_offsets"]]),
        with_entry(shape=[1]),
        with_entry(dtype="F32"),
        with_table({key: value for key, value in table.items() if key != name}),
        with_metadata(version="1"),
        with_metadata(model="{}"),
        with_model('"hidden_size": 24', '"hidden_size": 48'),
        with_model('"hidden_size": 24', '"hidden_size": 1e99'),
        with_model('"translator"', '"encoder"'),
        with_metadata(precision="int4"),
        with_metadata(format="pt"),
        with_table({**table, "__metadata__": 3}),
    ]
    for content in invalid:
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as problem:
            file.read_engine_file(path)
        assert str(path) in str(problem.value) and "\n" not in str(problem.value)


def _pad_header(header: bytes) -> bytes:
    return header + b" " * (-(8 + len(header)) % 64)


WRONG_SETTINGS: list[tuple[str, object, str]] = [
    ("hidden_size", 10**9, r"hidden_size \(1000000000\) must be at most"),
    ("hidden_size", 1 << 20, r"hidden_size \(1048576\) must be at most 65536 in the engine"),
    ("max_positions", 1 << 21, r"max_positions \(2097152\) must be at most 1048576 in the engine"),
    ("pad_id", 1 << 31, "pad_id"),
    ("pad_id", 97, r"pad_id \(97\) must be below vocab_size \(97\)"),
    ("bos_id", (1 << 32) + 3, "bos_id"),
    ("bos_id", 97, r"bos_id \(97\) must be below target_vocab_size \(97\)"),
    ("eos_id", (1 << 32) + 1, "eos_id"),
    ("eos_id", 97, r"eos_id \(97\) must be below target_vocab_size \(97\)"),
    ("norm_eps", float("nan"), "norm_eps"),
    ("norm_eps", float("inf"), "norm_eps"),
    ("hidden_size", "x" * 100_000, "hidden_size"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_SETTINGS, ids=[name for name, _, _ in WRONG_SETTINGS])
def test_a_setting_out_of_range_is_named(name: str, value: object, message: str, tmp_path: Path) -> None:
    parts, path = write_parts(tmp_path)
    parts.model["config"][name] = value
    path.write_bytes(parts.serialize())
    with pytest.raises(CheckpointError, match=message) as problem:
        file.read_engine_file(path)
    assert len(str(problem.value)) < len(str(path)) + 400


def write_parts(folder: Path) -> tuple[Parts, Path]:
    path, _, _ = write_engine_file(folder, "int8")
    return Parts.parse(path.read_bytes()), path


def test_arrays_lie_end_to_end_and_fill_the_file(tmp_path: Path) -> None:
    parts, path = write_parts(tmp_path)
    names = parts.arrays()
    norms = [name for name in names if name.endswith("norm.weight")]
    shared = {**parts.table[norms[0]]}  # two arrays with the same bytes
    for changed, message in (
        ({norms[1]: shared}, "does not begin where the array before it ends"),
        ({"other": shared}, "other does not begin where"),
        ({"other": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, "other is not an array of this model"),
        ({names[0]: {**parts.table[names[0]], "data_offsets": [0, 1 << 62]}}, f"{names[0]} lies outside of the file"),
    ):
        damaged = Parts(parts.table | changed, parts.metadata, parts.model, parts.data)
        path.write_bytes(damaged.serialize())
        with pytest.raises(CheckpointError, match=message):
            file.read_engine_file(path)
    path.write_bytes(parts.serialize() + bytes(64))
    with pytest.raises(CheckpointError, match=r"its arrays have [\d,]+ bytes, the file [\d,]+"):
        file.read_engine_file(path)


def test_a_name_must_not_be_repeated(tmp_path: Path) -> None:
    parts, path = write_parts(tmp_path)
    header = parts.header().rstrip()
    name = parts.arrays()[0]
    repeated = header[:-1] + f",{json.dumps(name)}:{json.dumps(parts.table[name])}}}".encode()
    setting = header.replace(b'\\"hidden_size\\":', b'\\"hidden_size\\": 7, \\"hidden_size\\":', 1)
    for damaged in (repeated, setting):
        assert len(damaged) > len(header)
        padded = _pad_header(damaged)
        path.write_bytes(len(padded).to_bytes(8, "little") + padded + parts.data)
        with pytest.raises(CheckpointError, match="its header"):
            file.read_engine_file(path)


def test_a_header_of_megabytes_is_neither_read_nor_written(tmp_path: Path) -> None:
    parts, path = write_parts(tmp_path)
    header = _pad_header(parts.header().rstrip() + b" " * (3 << 20))
    path.write_bytes(len(header).to_bytes(8, "little") + header + parts.data)
    with pytest.raises(CheckpointError, match="its header does not fit into it"):
        file.read_engine_file(path)
    _, engine, model = write_engine_file(tmp_path, "int8")
    with pytest.raises(
        UsageError, match=r"the header of the engine file would have 3,\d+,\d+ bytes, at most 2,097,152"
    ):
        file.serialize(model.config, "int8", engine.arrays, {"labels": ["x" * 3_000_000]})


def test_a_file_of_an_earlier_version_is_refused_with_advice(tmp_path: Path) -> None:
    path, _, _ = write_engine_file(tmp_path, "int8")
    content = path.read_bytes()
    assert content.count(b'"version": "4"') == 1
    path.write_bytes(content.replace(b'"version": "4"', b'"version": "3"'))
    with pytest.raises(CheckpointError, match="version '3', not 4: convert the model again"):
        file.read_engine_file(path)


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    path, engine, model = write_engine_file(tmp_path, "int8")
    valid = path.read_bytes()
    rng = np.random.default_rng(2)
    source = draw_sources(model, (4, 9))
    num_read = 0
    for _ in range(150):
        content = bytearray(valid)
        for offset in rng.integers(0, len(content) if rng.random() < 0.5 else 4000, 6).tolist():
            content[offset] = int(rng.integers(0, 256))
        path.write_bytes(content)
        try:
            stored = file.read_engine_file(path)
        except CheckpointError:
            continue
        if stored.config != engine.config:  # the damage changed a value to another valid one
            continue
        damaged = TranslatorEngine(engine.config, stored.arrays, stored.precision)
        candidates, _ = damaged.step(np.full(2, 3, np.int32), damaged.start(source, 3), 4)
        assert ((candidates.ids >= 0) & (candidates.ids < engine.vocab_size)).all()
        damaged.search(source, np.array([5, 5]), beam=2, nbest=2, length_penalty=1.0)
        num_read += 1
    assert 0 < num_read < 150


STRANGE_VALUES = [0, 1, -1, 3, 5, 10**9, 2**63, 1e308, float("nan"), float("inf"), "rotary", "learned", True, None, []]


def test_changed_configs_never_crash(tmp_path: Path) -> None:
    """Every setting of an encoder replaced by others: the file is refused in one line, or the engine computes."""
    model = build_encoder(**MODERN_BERT)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    arrays = layout.pack_weights(model.config, weights, "bf16")
    path = tmp_path / file.ENGINE_FILE
    valid = io.BytesIO()
    file.serialize(model.config, "bf16", arrays)(valid)
    content = valid.getvalue()
    size = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + size])
    settings = model.config.to_dict()
    changes = [{name: value} for name in settings for value in STRANGE_VALUES]
    changes += [{"stack": {**settings["stack"], name: value}} for name in settings["stack"] for value in STRANGE_VALUES]
    num_read = 0
    for change in changes:
        description = {"kind": "encoder", "config": {**settings, **change}, "metadata": {}}
        table["__metadata__"]["model"] = json.dumps(description)
        header = json.dumps(table).encode()
        header += b" " * (-(8 + len(header)) % 64)
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
        try:
            stored = file.read_engine_file(path)
            engine = EncoderEngine(stored.config, stored.arrays, stored.precision)
            hidden = engine.encode(Tokens.from_rows([[5, 6, 7], [8]]))
        except (CheckpointError, UsageError) as problem:
            assert "\n" not in str(problem), change
            continue
        assert hidden.shape == (4, model.config.hidden_size)
        num_read += 1
    assert 0 < num_read < len(changes)


def test_a_converted_folder_translates_as_its_original(folder: Path, tmp_path: Path) -> None:
    from benchmarks.peers import workload
    from regard.pipeline.load import load_translator

    converted = convert(folder, tmp_path / "int8", precision="int8").folder
    assert not (converted / "model.safetensors").exists()
    texts = workload.draw_texts([5, 3, 9, 14, 2], 97)
    limits = {"max_length_a": 1.0, "max_length_b": 3}
    pipeline = load_translator(converted)
    assert pipeline.backends[0].engine.precision == "int8"
    results = pipeline.translate(texts, **limits)
    expected = load_translator(folder, precision="int8").translate(texts, **limits)
    assert [(str(result), result.score) for result in results] == [(str(result), result.score) for result in expected]
    assert results[0].attention.keys() == expected[0].attention.keys()  # by torch, with the dequantized weights
    with pytest.raises(UsageError, match="holds int8 weights, bf16 was requested"):
        load_translator(converted, precision="bf16")


def test_a_changed_folder_is_noticed(folder: Path, tmp_path: Path) -> None:
    converted = convert(folder, tmp_path / "int8", precision="int8").folder
    shutil.copytree(converted, tmp_path / "copy")
    path = tmp_path / "copy" / file.ENGINE_FILE
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_translator(tmp_path / "copy")


def test_the_search_of_mapped_arrays_is_the_same(tmp_path: Path) -> None:
    from regard.config.inference import DecodingConfig

    path, engine, model = write_engine_file(tmp_path, "bf16")
    stored = file.read_engine_file(path)
    mapped = TranslatorEngine(engine.config, stored.arrays, stored.precision)
    source = draw_sources(model, (4, 9, 2))
    limits = np.array([8, 8, 8])
    config = DecodingConfig(beam=3, nbest=3)
    expected = search(engine, source, config, max_lengths=limits)
    assert search(mapped, source, config, max_lengths=limits) == expected
