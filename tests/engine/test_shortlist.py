"""Shortlists: learned from parallel texts, part of an engine's folder, and the same answer whatever stands beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import workload
from regard.checkpoint.export.convert import convert
from regard.cli import run
from regard.engine import file
from regard.engine.shortlist import Shortlist, train_shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.pipeline.load import load_translator
from regard.tokens import Tokens
from tests.engine.conftest import SETS, compiled, translator


def everything(engine: TranslatorEngine) -> Shortlist:
    """A shortlist in which the first half of the source words have one half of the words each, the others the rest."""
    count, words = engine.config.source_vocab_size, np.arange(engine.vocab_size, dtype=np.int32)
    halves = [words[: len(words) // 2], words[len(words) // 2 :]]
    lists = [halves[word >= count // 2] for word in range(count)]
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    return Shortlist(np.array([engine.eos_id], np.int32), offsets, np.concatenate(lists))


def found(
    engine: TranslatorEngine, source: Tokens, beam: int, listed: bool = True
) -> list[list[tuple[list[int], float]]]:
    limits = np.full(len(source), 12)
    made = engine.search(source, limits, beam=beam, nbest=beam, length_penalty=1.0, use_shortlist=listed)
    return [[(ids, score) for ids, score, _, _ in some] for some in made]


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
def test_texts_are_written_with_their_own_words_whatever_stands_beside(precision: str, instructions: str) -> None:
    engine = compiled(translator(output_bias=True), precision, instructions)
    engine.shortlist = everything(engine)
    low, high = [5, 9, 11], [60, 90, 80, 70]  # words of either half
    source = Tokens.from_rows([low, high, [*low, *high]])
    for beam in (1, 3):
        together = found(engine, source, beam)
        whole = found(engine, source, beam, listed=False)
        assert together[2] == whole[2]  # both halves are there
        for number, allowed in ((0, range(48)), (1, range(48, 97))):
            assert {one for ids, _ in together[number] for one in ids} <= {*allowed}
            assert found(engine, Tokens.from_rows([source.row(number)]), beam) == [together[number]]
        assert together[:2] != whole[:2]
    engine.shortlist = None
    assert found(engine, source, 2) == found(engine, source, 2, listed=False)


def test_what_translates_what_is_learned() -> None:
    chance = np.random.default_rng(4)
    source = [chance.integers(3, 40, chance.integers(1, 9)).astype(np.int32) for _ in range(600)]
    target = [chance.permutation(np.append(one + 50, 49)) for one in source]  # word n is n + 50, in any order
    made = train_shortlist(source, target, 40, 100, [0, 1], is_shared=False)
    assert made.find_fault(40, 100, [0, 1]) == ""
    for word in range(3, 40):
        mine = made.words[made.offsets[word] : made.offsets[word + 1]]
        assert mine[0] == word + 50
    assert made.offsets[3] == 0
    assert {0, 1, 49} <= {*made.common.tolist()}
    alike = train_shortlist(source, target, 40, 100, [0, 1], is_shared=True)
    assert all(word in alike.words[alike.offsets[word] : alike.offsets[word + 1]] for word in range(40))
    with pytest.raises(UsageError, match="there is no word"):
        train_shortlist([np.zeros(0, np.int32)], [np.zeros(0, np.int32)], 4, 4, [0], is_shared=False)


WRONG = [
    ({"common": [4, 1]}, "not in order"),
    ({"common": [0, 9]}, "lacks the words"),
    ({"common": [1, 97]}, "beyond the target's vocabulary"),
    ({"words": [3, -1]}, "beyond the target's vocabulary"),
    ({"offsets": [0] * 97}, "not those of the source's vocabulary"),
    ({"offsets": [0, 2, 1, *[2] * 95]}, "not in order"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_damaged_shortlist_is_refused(change: dict[str, list[int]], message: str, tmp_path: Path) -> None:
    engine = compiled(translator(), "int8")
    parts = {"common": [1, 5], "offsets": [0, *[2] * 97], "words": [3, 4], **change}
    made = Shortlist(**{name: np.array(values, np.int32) for name, values in parts.items()})
    with open(tmp_path / "it", "wb") as sink:
        file.serialize(engine.config, "int8", engine.arrays, shortlist=made)(sink)
    with pytest.raises(CheckpointError, match=f"not a sound engine file: its shortlist: .*{message}"):
        file.read_engine_file(tmp_path / "it")


def test_shapes_that_are_none_are_refused(tmp_path: Path) -> None:
    engine = compiled(translator(), "int8")
    made = Shortlist(*(np.array(values, np.int32) for values in ([1, 5], [0, *[2] * 97], [3, 4])))
    with open(tmp_path / "it", "wb") as sink:
        file.serialize(engine.config, "int8", engine.arrays, shortlist=made)(sink)
    back = file.read_engine_file(tmp_path / "it").shortlist
    assert back is not None
    assert (back.common.tolist(), back.words.tolist()) == ([1, 5], [3, 4])
    data = (tmp_path / "it").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for shape in ([2**40], [-1], "wide", None, [1, 2]):
        table = json.loads(data[8 : 8 + size])
        table["shortlist.words"]["shape"] = shape
        header = json.dumps(table).encode()
        header += b" " * (-(8 + len(header)) % 64)
        (tmp_path / "other").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
        with pytest.raises(CheckpointError, match="not a sound engine file"):
            file.read_engine_file(tmp_path / "other")


def pairs(folder: Path) -> None:
    texts = workload.draw_texts([*range(2, 12)] * 20, 97)
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in texts))


def test_a_folder_is_made_with_one_and_tells_what_it_costs(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs(tmp_path)
    words = ["convert", str(folder), str(tmp_path / "made"), "--precision", "int8"]
    assert run([*words, "--shortlist", str(tmp_path / "pairs.tsv")]) == 0
    told = capfd.readouterr().out
    assert "tokens per text on average" in told
    assert "with the whole vocabulary" in told
    model = load_translator(tmp_path / "made", threads=1)
    assert model.engines[0].shortlist is not None
    (text,) = workload.draw_texts([6], 97)
    assert run(["translate", str(tmp_path / "made"), text, "--whole-vocabulary", "--threads", "1"]) == 0
    assert capfd.readouterr().out.strip() == str(load_translator(folder, precision="int8", threads=1)(text))


def test_where_there_is_no_place_for_one(folder: Path, tmp_path: Path) -> None:
    pairs(tmp_path)
    with pytest.raises(ConfigError, match="pass --precision"):
        convert(folder, tmp_path / "made", shortlist=[tmp_path / "pairs.tsv"])
    with pytest.raises(UsageError, match="missing.tsv"):
        convert(folder, tmp_path / "made", precision="int8", shortlist=[tmp_path / "missing.tsv"])
    assert not (tmp_path / "made").exists()
