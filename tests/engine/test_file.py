"""Folders that are ready for the engine: what is read is what was written, and nothing damaged is ever used."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard.checkpoint.export.convert import convert
from regard.decoding.search import search
from regard.engine import file, layout
from regard.engine.backend import read_translator
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, UsageError
from tests.engine.conftest import sources, translator


def written(folder: Path, precision: str, **changes: object) -> tuple[Path, TranslatorEngine, object]:
    model = translator(output_bias=True, **changes)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    engine = TranslatorEngine.of(model.config, weights, precision)
    path = folder / file.FILE
    with open(path, "wb") as sink:
        file.serialize(model.config, precision, engine.arrays)(sink)
    return path, engine, model


@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_what_is_read_is_what_was_written(precision: str, tmp_path: Path) -> None:
    path, engine, model = written(tmp_path, precision, positions="learned", tie_embeddings=False)
    stored = file.read_engine_file(path)
    arrays = stored.arrays
    assert (stored.precision, stored.config) == (precision, engine.config)
    assert all(np.array_equal(one, other) for one, other in zip(arrays, engine.arrays, strict=True))
    source = sources(model, (4, 9))  # type: ignore[arg-type]
    mapped = TranslatorEngine(engine.config, arrays, precision)
    assert np.array_equal(mapped.encode(source), engine.encode(source))


@pytest.mark.parametrize(("precision", "bound"), [("float32", 0.0), ("bf16", 2**-8), ("int8", 1 / 60)])
def test_weights_come_back_as_far_as_they_are_kept(precision: str, bound: float) -> None:
    model = translator(tie_embeddings=False, share_embeddings=False, source_vocab_size=31, positions="learned")
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found = layout.unpack_weights(model.config, layout.pack_weights(model.config, weights, precision), precision)
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        most = np.abs(array).max(axis=-1, keepdims=True)
        assert (np.abs(found[name] - array) <= bound * most).all(), name


def test_bytes_that_meet_in_sixteen_bits_fit_there() -> None:
    chance, sizes = np.random.default_rng(3), (1, 3, 8, 21, 64, 517)
    for inputs, draw in itertools.product(sizes, (chance.standard_normal, chance.random, np.ones)):
        weights = draw((40, inputs)).astype(np.float32)
        weights[chance.random(weights.shape) < 0.1] *= -30
        linear = layout.WeightSpec("linear", "one", 40, inputs, weight="w", bias="b")
        arrays = [np.zeros(slot.shape, slot.dtype) for slot in linear.array_specs("int8")]
        linear.pack(arrays, {"w": weights}, "int8")
        kept = np.rint(linear.unpack(arrays, "int8")["w"] / arrays[1][:40, None])
        eights = np.pad(kept, ((0, 0), (0, -inputs % 8))).reshape(40, -1, 2, 2, 2)  # of groups, lanes, pairs
        together = np.maximum(np.maximum(eights, 0).sum(axis=(2, 4)), np.maximum(-eights, 0).sum(axis=(2, 4)))
        fullest = together.reshape(40, -1).max(axis=1)
        assert fullest.max() <= 128
        assert ((fullest > 120) | (np.abs(kept).max(axis=1) == 127)).all()  # as fine as can be


def test_other_readers_of_safetensors_read_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path, engine, _ = written(tmp_path, "int8")
    tensors = safetensors.load_file(path)
    assert np.array_equal(tensors["output.packed"].numpy(), engine.arrays[-4])


def test_damaged_and_hostile_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path, _, _ = written(tmp_path, "int8")
    good = path.read_bytes()
    size = int.from_bytes(good[:8], "little")
    table = json.loads(good[8 : 8 + size])

    def told(changed: dict[str, object]) -> bytes:
        header = json.dumps(changed).encode()
        header += b" " * (-(8 + len(header)) % 64)
        return len(header).to_bytes(8, "little") + header + good[8 + size :]

    name = "decoder.blocks.0.cross.query.packed"
    entry, meta = table[name], table["__metadata__"]
    bad = [
        b"",
        good[:7],
        good[: len(good) // 2],
        (2**63).to_bytes(8, "little") + good[8:],
        good[:8] + b"[" * size + good[8 + size :],
        told({**table, name: {**entry, "data_offsets": [2**70, 2**70 + 1]}}),
        told({**table, name: {**entry, "data_offsets": [-64, entry["data_offsets"][1]]}}),
        told({**table, name: {**entry, "data_offsets": [one + 1 for one in entry["data_offsets"]]}}),
        told({**table, name: {**entry, "shape": [1]}}),
        told({**table, name: {**entry, "dtype": "F32"}}),
        told({key: value for key, value in table.items() if key != name}),
        told({**table, "__metadata__": {**meta, "version": "1"}}),
        told({**table, "__metadata__": {**meta, "model": "{}"}}),
        told(
            {
                **table,
                "__metadata__": {**meta, "model": meta["model"].replace('"hidden_size": 24', '"hidden_size": 48')},
            }
        ),
        told(
            {
                **table,
                "__metadata__": {**meta, "model": meta["model"].replace('"hidden_size": 24', '"hidden_size": 1e99')},
            }
        ),
        told({**table, "__metadata__": {**meta, "model": meta["model"].replace('"translator"', '"encoder"')}}),
        told({**table, "__metadata__": {**meta, "precision": "int4"}}),
        told({**table, "__metadata__": {**meta, "format": "pt"}}),
        told({**table, "__metadata__": 3}),
    ]
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as problem:
            file.read_engine_file(path)
        assert str(path) in str(problem.value) and "\n" not in str(problem.value)


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    path, engine, model = written(tmp_path, "int8")
    good, chance = path.read_bytes(), np.random.default_rng(2)
    source, read = sources(model, (4, 9)), 0  # type: ignore[arg-type]
    for _ in range(150):
        content = bytearray(good)
        for place in chance.integers(0, len(content) if chance.random() < 0.5 else 4000, 6).tolist():
            content[place] = int(chance.integers(0, 256))
        path.write_bytes(content)
        try:
            stored = file.read_engine_file(path)
        except CheckpointError:
            continue
        if stored.config != engine.config:  # a letter of it that says as little as before
            continue
        damaged = TranslatorEngine(engine.config, stored.arrays, stored.precision)
        step, _ = damaged.step(np.full(2, 3, np.int32), damaged.start(source, 3), 4)
        assert ((step.ids >= 0) & (step.ids < engine.vocab_size)).all()
        damaged.search(source, np.array([5, 5]), beam=2, nbest=2, length_penalty=1.0)
        read += 1
    assert 0 < read < 150


def test_a_converted_folder_translates_as_the_one_it_came_from(folder: Path, tmp_path: Path) -> None:
    from benchmarks.peers import workload
    from regard.pipeline.load import load_translator

    made = convert(folder, tmp_path / "int8", precision="int8")
    assert not (made.folder / "model.safetensors").exists()
    texts = workload.draw_texts([5, 3, 9, 14, 2], 97)
    limits = {"max_length_a": 1.0, "max_length_b": 3}
    ready, fresh = load_translator(made.folder), load_translator(folder, precision="int8")
    assert ready.engines[0].precision == "int8"
    found, wanted = ready.translate(texts, **limits), fresh.translate(texts, **limits)
    assert [(str(one), one.score) for one in found] == [(str(one), one.score) for one in wanted]
    assert found[0].attention.keys() == wanted[0].attention.keys()  # torch looks with the weights that are kept
    with pytest.raises(UsageError, match="holds int8 weights, bf16 was asked for"):
        load_translator(made.folder, precision="bf16")


def test_a_changed_folder_is_noticed(folder: Path, tmp_path: Path) -> None:
    made = convert(folder, tmp_path / "int8", precision="int8").folder
    shutil.copytree(made, tmp_path / "copy")
    path = tmp_path / "copy" / file.FILE
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_translator(tmp_path / "copy")


def test_the_search_of_mapped_arrays_is_the_same(tmp_path: Path) -> None:
    from regard.config.inference import DecodingConfig

    path, engine, model = written(tmp_path, "bf16")
    stored = file.read_engine_file(path)
    arrays, precision = stored.arrays, stored.precision
    source, limits = sources(model, (4, 9, 2)), np.array([8, 8, 8])  # type: ignore[arg-type]
    config = DecodingConfig(beam=3, nbest=3)
    assert search(TranslatorEngine(engine.config, arrays, precision), source, config, max_lengths=limits) == search(
        engine, source, config, max_lengths=limits
    )
