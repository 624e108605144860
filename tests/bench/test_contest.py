"""Contestants as processes: turns, failures, own loops and peers that are not there."""

from __future__ import annotations

import io
import json
import sys
import textwrap
from pathlib import Path

import pytest

from regard.bench import peers, programme
from regard.bench.child import Best, Job, Pace, Turns, Value
from regard.bench.contest import Clock, hold
from regard.bench.contestant import Entry
from regard.bench.measure import Task
from regard.bench.peers import Peer
from regard.bench.settings import LIBRARIES, BenchConfig

PLAYERS = """
import time

def steady(job, turns):
    turns.serve({"go": lambda: float(job.facts["value"]), "on": lambda: 2.0})

def broken(job, turns):
    raise ValueError("no such thing\\nmore")

def tired(job, turns):
    print("libraries print what they like")
    left = [2.0, 1.0]

    def go():
        if not left:
            raise RuntimeError("no more\\nand no less")
        return left.pop()

    turns.serve({"go": go, "on": go})

def gone(job, turns):
    import os, sys
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)
"""


@pytest.fixture
def players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of contestants without torch, as a part of the package that only children find."""
    import regard.bench

    folder = tmp_path / "regard_players"
    folder.mkdir()
    (folder / "players.py").write_text(PLAYERS)
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            import regard.bench
            regard.bench.__path__.append({str(folder)!r})
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert regard.bench.__path__


def entry(contest: str, library: str, **facts: object) -> Entry:
    return Entry(library, Job("players", contest, "", 1, dict(facts)))


@pytest.mark.usefixtures("players")
def test_who_fails_is_left_out_with_a_line_and_the_rest_go_on() -> None:
    entries = [
        entry("steady", "regard", value=6),
        entry("broken", "broken"),
        entry("steady", "other", value=3),
        entry("tired", "tired"),
        entry("gone", "gone"),
    ]
    heard: list[str] = []
    tasks = [Task("go", "race", "laps/s"), Task("on", "walk", "laps/s")]
    outcome = hold(entries, tasks, 3, clock=Clock(), tell=heard.append)
    assert {one.peer: one.values for one in outcome.measured["go"]} == {"regard": (6.0,) * 3, "other": (3.0,) * 3}
    assert {one.peer: one.values for one in outcome.measured["on"]} == {"regard": (2.0,) * 3, "other": (2.0,) * 3}
    assert all(one.memory > 1_000_000 for one in outcome.measured["go"])
    assert sorted(outcome.missing) == [
        "failed: broken: broken: ValueError: no such thing",
        "failed: gone: gone: its process ended: out of memory",
        "failed: race: tired: RuntimeError: no more",
    ]
    assert heard[:2] == ["race: warm-up", "race: round 1 of 3"]


@pytest.mark.usefixtures("players")
def test_there_is_one_round_even_without_time() -> None:
    outcome = hold(
        [entry("steady", "regard", value=6)], [Task("go", "race", "laps/s")], 3, clock=Clock.of(0), tell=print
    )
    assert [one.values for one in outcome.measured["go"]] == [(6.0,)]


def test_a_loop_of_its_own_is_held_between_turns() -> None:
    answers = io.StringIO()
    pace = Pace(Turns(io.StringIO("training\ntraining\n"), answers), "training")
    pace.report(5)  # its warm-up
    pace.report(300, 2.0)
    with pytest.raises(SystemExit):
        pace.report(100, 4.0)
    ready, first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert ready == {"tasks": ["training"]}
    assert (first["value"], second["value"]) == (150.0, 25.0)


def test_the_best_setting_is_chosen_once() -> None:
    tried: list[int] = []

    def run(size: int) -> float:
        tried.append(size)
        return float(abs(size - 20))

    task = Best(run, {"batch 8": 8, "batch 16": 16, "batch 64": 64}, less=True)
    assert task() == Value(4.0, "batch 16")
    assert tried == [8, 8, 16, 64]
    assert task() == Value(4.0, "batch 16")
    assert tried == [8, 8, 16, 64, 16]


def test_a_peer_that_is_not_installed_is_skipped_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Peer("joeynmt", {"no_such_module": "joeynmt"}, {"training": ("float32",)})
    monkeypatch.setattr(programme, "peer", lambda name: ("peers.joeynmt", absent))
    missing: list[str] = []
    found = programme.entries("training", BenchConfig(peers="joeynmt"), {}, missing)
    assert {one.library for one in found} == {"regard"}
    assert missing == ["skipped: joeynmt is not installed (pip install joeynmt)"]


def test_eole_may_be_at_home_in_another_python(tmp_path: Path) -> None:
    missing: list[str] = []
    programme.entries("training", BenchConfig(peers="eole", eole_python=str(tmp_path / "none")), {}, missing)
    assert missing[0].startswith(f"skipped: eole: {tmp_path / 'none'} cannot be run")
    if not Peer("eole", {"eole": "eole"}, {}).present():
        programme.entries("training", BenchConfig(peers="eole", eole_python=sys.executable), {}, missing)
        assert missing[1] == f"skipped: eole is not installed in {sys.executable} (pip install eole)"


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_has_a_file_that_says_where_it_takes_part(name: str) -> None:
    module, found = peers.peer(name)
    assert found.name == name
    assert found.contests
    home = sys.modules[f"regard.bench.{module}"]
    assert all(callable(getattr(home, contest)) for contest in found.contests)
    assert all(set(some) <= set(found.contests[contest]) for contest, some in found.quick.items())
