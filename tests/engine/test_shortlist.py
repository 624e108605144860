"""Shortlists: trained on parallel text, part of an engine folder, and the same result in every batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import workload
from regard.checkpoint.export.convert import convert
from regard.cli import run
from regard.engine import file
from regard.engine.shortlist import Shortlist, train_shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.packed_tokens import Tokens
from regard.pipeline.load import load_translator
from tests.engine.conftest import INSTRUCTION_SETS, build_engine, translator


def split_vocabulary(engine: TranslatorEngine) -> Shortlist:
    """A shortlist that allows half of the target vocabulary for either half of the source vocabulary."""
    source_size = engine.config.source_vocab_size
    target_ids = np.arange(engine.vocab_size, dtype=np.int32)
    middle = len(target_ids) // 2
    first_half = target_ids[:middle]
    second_half = target_ids[middle:]
    lists = [second_half if token_id >= source_size // 2 else first_half for token_id in range(source_size)]
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    return Shortlist(np.array([engine.eos_id], np.int32), offsets, lexicon=np.concatenate(lists))


def search(
    engine: TranslatorEngine, source: Tokens, beam: int, use_shortlist: bool = True
) -> list[list[tuple[list[int], float]]]:
    limits = np.full(len(source), 12)
    hypotheses = engine.search(source, limits, beam=beam, nbest=beam, length_penalty=1.0, use_shortlist=use_shortlist)
    return [[(ids, score) for ids, score, _, _ in nbest] for nbest in hypotheses]


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
def test_translations_use_the_shortlist_of_their_own_source_in_every_batch(precision: str, instructions: str) -> None:
    engine = build_engine(translator(output_bias=True), precision, instructions)
    engine.shortlist = split_vocabulary(engine)
    low = [5, 9, 11]
    high = [60, 90, 80, 70]
    source = Tokens.from_rows([low, high, [*low, *high]])
    for beam in (1, 3):
        restricted = search(engine, source, beam)
        unrestricted = search(engine, source, beam, use_shortlist=False)
        assert restricted[2] == unrestricted[2]  # both halves are allowed
        for row, allowed in ((0, range(48)), (1, range(48, 97))):
            assert {token_id for ids, _ in restricted[row] for token_id in ids} <= {*allowed}
            assert search(engine, Tokens.from_rows([source.row(row)]), beam) == [restricted[row]]
        assert restricted[:2] != unrestricted[:2]
    engine.shortlist = None
    assert search(engine, source, 2) == search(engine, source, 2, use_shortlist=False)


def test_training_finds_the_translations_of_each_token() -> None:
    rng = np.random.default_rng(4)
    source = [rng.integers(3, 40, rng.integers(1, 9)).astype(np.int32) for _ in range(600)]
    target = [rng.permutation(np.append(ids + 50, 49)) for ids in source]  # n is translated by n + 50, in any order
    shortlist = train_shortlist(source, target, 40, 100, [0, 1], is_shared=False)
    assert shortlist.find_fault(40, 100, [0, 1]) == ""
    for token_id in range(3, 40):
        translations = shortlist.lexicon[shortlist.offsets[token_id] : shortlist.offsets[token_id + 1]]
        assert translations[0] == token_id + 50
    assert shortlist.offsets[3] == 0
    assert {0, 1, 49} <= {*shortlist.always_allowed.tolist()}
    shared = train_shortlist(source, target, 40, 100, [0, 1], is_shared=True)
    assert all(
        token_id in shared.lexicon[shared.offsets[token_id] : shared.offsets[token_id + 1]] for token_id in range(40)
    )
    with pytest.raises(UsageError, match="contain no tokens"):
        train_shortlist([np.zeros(0, np.int32)], [np.zeros(0, np.int32)], 4, 4, [0], is_shared=False)


FAULTS = [
    ({"always_allowed": [4, 1]}, "not in order"),
    ({"always_allowed": [0, 9]}, "lacks the token ids"),
    ({"always_allowed": [1, 97]}, "beyond the target vocabulary"),
    ({"lexicon": [3, -1]}, "beyond the target vocabulary"),
    ({"offsets": [0] * 97}, "do not match the source vocabulary"),
    ({"offsets": [0, 2, 1, *[2] * 95]}, "not in order"),
    # the difference of these is 1 in 32 bits
    ({"offsets": [0, 2**31 - 1, -(2**31), *[2] * 95]}, "not in order"),
]


def build_shortlist(**changes: list[int]) -> Shortlist:
    fields = {"always_allowed": [1, 5], "offsets": [0, *[2] * 97], "lexicon": [3, 4], **changes}
    return Shortlist(**{name: np.array(ids, np.int32) for name, ids in fields.items()})


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_damaged_shortlist_is_refused(change: dict[str, list[int]], message: str, tmp_path: Path) -> None:
    engine = build_engine(translator(), "int8")
    path = tmp_path / "damaged"
    with open(path, "wb") as sink:
        file.serialize(engine.config, "int8", engine.arrays, shortlist=build_shortlist(**change))(sink)
    with pytest.raises(CheckpointError, match=f"not a valid engine file: its shortlist: .*{message}"):
        file.read_engine_file(path)


def test_invalid_shapes_of_a_shortlist_are_refused(tmp_path: Path) -> None:
    engine = build_engine(translator(), "int8")
    path = tmp_path / "valid"
    with open(path, "wb") as sink:
        file.serialize(engine.config, "int8", engine.arrays, shortlist=build_shortlist())(sink)
    shortlist = file.read_engine_file(path).shortlist
    assert shortlist is not None
    assert (shortlist.always_allowed.tolist(), shortlist.lexicon.tolist()) == ([1, 5], [3, 4])
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    for shape in ([2**40], [-1], "wide", None, [1, 2]):
        table = json.loads(content[8 : 8 + size])
        table["shortlist.lexicon"]["shape"] = shape
        header = json.dumps(table).encode()
        header += b" " * (-(8 + len(header)) % 64)
        invalid_path = tmp_path / "invalid"
        invalid_path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
        with pytest.raises(CheckpointError, match="not a valid engine file"):
            file.read_engine_file(invalid_path)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_huge_negative_biases_do_not_leave_the_shortlist(instructions: str) -> None:
    model = translator(output_bias=True)
    with torch.no_grad():
        model.lm_head_bias.fill_(-2e30)
    engine = build_engine(model, "float32", instructions)
    allowed = [1, 3, 5, 7, 8, 9, 11, 12, 13]
    offsets = np.zeros(98, np.int32)
    engine.shortlist = Shortlist(np.array(allowed, np.int32), offsets, lexicon=np.array([3], np.int32))
    for hypotheses in search(engine, Tokens.from_rows([[5, 9], [60]]), beam=4):
        assert hypotheses
        assert {token_id for ids, _ in hypotheses for token_id in ids} <= {*allowed}


def test_the_library_checks_a_lexicon_that_python_did_not() -> None:
    engine = build_engine(translator())
    always_allowed = np.array([1, 3, 5, 7, 8, 9], np.int32)
    lexicon = np.array([3], np.int32)
    offsets = np.zeros(98, np.int32)
    for start, stop in ((0, 2), (-1, 1), (1, 0), (0, 2**31 - 1), (-(2**31), 0)):
        offsets[5:7] = start, stop
        engine.shortlist = Shortlist(always_allowed, offsets, lexicon=lexicon)
        with pytest.raises(UsageError, match="lexicon of source token 5 has offsets outside of its 1 tokens"):
            search(engine, Tokens.from_rows([[5]]), beam=1)
    engine.shortlist = Shortlist(always_allowed, offsets[:97], lexicon=lexicon)
    with pytest.raises(UsageError, match="lexicon_offsets has 97 values but needs 98"):
        search(engine, Tokens.from_rows([[4]]), beam=1)
    engine.shortlist = Shortlist(np.array([1, 3, 5, 7, 8, 97], np.int32), np.zeros(98, np.int32), lexicon=lexicon)
    with pytest.raises(UsageError, match="a shortlist must consist of tokens of the vocabulary"):
        search(engine, Tokens.from_rows([[4]]), beam=1)


def write_pairs(folder: Path) -> None:
    texts = workload.draw_texts([*range(2, 12)] * 20, 97)
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in texts))


def test_an_engine_folder_with_a_shortlist_reports_its_effect(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path)
    out = tmp_path / "engine"
    command = ["convert", str(folder), str(out), "--precision", "int8", "--shortlist", str(tmp_path / "pairs.tsv")]
    assert run(command) == 0
    report = capfd.readouterr().out
    assert "tokens per text on average" in report
    assert "with the whole vocabulary" in report
    model = load_translator(out, threads=1)
    assert model.backends[0].engine.shortlist is not None
    (text,) = workload.draw_texts([6], 97)
    assert run(["translate", str(out), text, "--no-shortlist", "--threads", "1"]) == 0
    assert capfd.readouterr().out.strip() == str(load_translator(folder, precision="int8", threads=1)(text))


def test_a_shortlist_needs_a_precision_and_existing_files(folder: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path)
    out = tmp_path / "engine"
    with pytest.raises(ConfigError, match="pass --precision"):
        convert(folder, out, shortlist=[tmp_path / "pairs.tsv"])
    with pytest.raises(UsageError, match="missing.tsv"):
        convert(folder, out, precision="int8", shortlist=[tmp_path / "missing.tsv"])
    assert not out.exists()
