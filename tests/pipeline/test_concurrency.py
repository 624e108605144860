"""One pipeline for many threads, for forked processes, and pickled: the same answers as alone."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.engine.library import unavailable_reason
from regard.errors import CheckpointError, UsageError
from regard.packed_tokens import Tokens
from regard.pipeline.load import load_embedder
from tests.model_folders import TASKS, TEXTS, predict, save_model_folders
from tests.scale import HANG_GUARD, scaled

NUM_THREADS = 8
NUM_FORKS = 4
SHARED = ("translate", "classify", "embed", "generate")
Answers = tuple[list[str], list[float]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_model_folders(tmp_path_factory.mktemp("folders"))


@pytest.fixture(params=["engine", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "engine" and (reason := unavailable_reason()):
        pytest.skip(f"no engine: {reason}")
    return str(request.param)


def assert_same(answers: Answers, expected: Answers, backend: str) -> None:
    """The engine's answers are the same bits; torch may add in another order."""
    assert answers[0] == expected[0]
    assert np.allclose(answers[1], expected[1], rtol=0, atol=0 if backend == "engine" else 1e-5)


@pytest.mark.parametrize("task", SHARED)
def test_eight_threads_get_the_answers_of_one(folders: dict[str, Path], task: str, backend: str) -> None:
    expected = predict(task, regard.load(folders[task], backend=backend))
    pipeline = regard.load(folders[task], backend=backend)
    barrier = threading.Barrier(NUM_THREADS)

    def run(_: int) -> list[Answers]:
        barrier.wait()  # the first use is shared, too
        return [predict(task, pipeline) for _ in range(3)]

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for repeated in pool.map(run, range(NUM_THREADS)):
            for answers in repeated:
                assert_same(answers, expected, backend)


def test_eight_threads_share_the_torch_model_of_a_record(folders: dict[str, Path]) -> None:
    pipeline = regard.load(folders["classify"])
    expected = regard.load(folders["classify"])(TEXTS[0]).attention["encoder.1.self"].weights
    barrier = threading.Barrier(NUM_THREADS)

    def trace(_: int) -> np.ndarray:
        barrier.wait()
        return np.asarray(pipeline(TEXTS[0]).attention["encoder.1.self"].weights)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for weights in pool.map(trace, range(NUM_THREADS)):
            assert np.allclose(weights, expected, atol=1e-3)


def run_in_forks(compute: Callable[[], Answers]) -> list[Answers]:
    """What each of the forked processes computes."""
    context = multiprocessing.get_context("fork")

    def send(connection: Connection) -> None:
        connection.send(compute())
        connection.close()

    processes = []
    for _ in range(NUM_FORKS):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=send, args=(sender,))
        process.start()
        sender.close()
        processes.append((process, receiver))
    results = []
    for process, receiver in processes:
        assert receiver.poll(HANG_GUARD), "a forked process hangs"
        results.append(receiver.recv())
        process.join(HANG_GUARD)
        assert process.exitcode == 0
    return results


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("task", SHARED)
def test_four_forked_processes_get_the_answers_of_the_first(folders: dict[str, Path], task: str, backend: str) -> None:
    pipeline = regard.load(folders[task], backend=backend, threads=2)
    expected = predict(task, pipeline)  # threads have run before the fork
    for answers in run_in_forks(lambda: predict(task, pipeline)):
        assert_same(answers, expected, backend)
    assert_same(predict(task, pipeline), expected, backend)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_threads_of_torch_are_not_awaited_after_a_fork(folders: dict[str, Path]) -> None:
    regard.load(folders["embed"], backend="torch", threads=2)

    def add_in_parallel() -> Answers:
        return [], [float(torch.ones(1 << 20).exp().sum())]

    expected = add_in_parallel()
    for answers in run_in_forks(add_in_parallel):
        assert answers[1] == pytest.approx(expected[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork") or bool(unavailable_reason()), reason="no fork, or no engine")
def test_the_engine_can_be_forked_while_threads_compute(folders: dict[str, Path]) -> None:
    engine = regard.load(folders["embed"], backend="engine", threads=2).model.engine  # type: ignore[union-attr]
    row = Tokens.from_rows([[5, 6, 7]])  # short, so that most of the time is spent on buffers
    expected = engine.encode(row).ravel().tolist()
    is_done = threading.Event()

    def compute_until_done(_: int) -> None:
        while not is_done.is_set():
            engine.encode(row)

    with ThreadPoolExecutor(4) as pool:
        threads = pool.map(compute_until_done, range(4))
        try:
            for _ in range(scaled(100, 10)):  # 400 forks, or 40
                for answers in run_in_forks(lambda: ([], engine.encode(row).ravel().tolist())):
                    assert answers == ([], expected)
        finally:
            is_done.set()
        assert list(threads) == [None] * 4


@pytest.mark.parametrize("task", TASKS)
def test_a_pickled_pipeline_is_loaded_from_its_folder_again(
    folders: dict[str, Path], task: str, backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folders[task].parent)
    pipeline = regard.load(folders[task].name, backend=backend, threads=1)
    expected = predict(task, pipeline)
    monkeypatch.chdir(tmp_path)  # the path was relative
    restored = pickle.loads(pickle.dumps(pipeline))
    assert type(restored) is type(pipeline)
    assert restored.origin.options == {"backend": backend, "threads": 1}
    assert_same(predict(task, restored), expected, "engine")


def test_a_pickled_ensemble_has_all_its_models(folders: dict[str, Path]) -> None:
    ensemble = regard.load(folders["translate"], ensemble=[folders["translate"]])
    restored = pickle.loads(pickle.dumps(ensemble))
    assert len(restored.backends) == 2
    assert_same(predict("translate", restored), predict("translate", ensemble), "engine")


def test_a_pickle_without_its_folder_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["embed"], tmp_path / "copy")
    pickled = pickle.dumps(load_embedder(tmp_path / "copy"))
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(CheckpointError, match="copy: no such folder; a pickled pipeline is loaded from its folder"):
        pickle.loads(pickled)


def test_a_pipeline_that_was_not_loaded_is_not_pickled(folders: dict[str, Path]) -> None:
    pipeline = regard.load(folders["generate"])
    built = type(pipeline)(pipeline.model, pipeline.tokenizer, {})
    with pytest.raises(UsageError, match="was not loaded from a folder, so it cannot be pickled"):
        pickle.dumps(built)


RESULTS: dict[str, Callable[[Any], Any]] = {
    "translate": lambda pipeline: pipeline.translate(["w5 w6 w7"], nbest=2)[0],
    "classify": lambda pipeline: pipeline(TEXTS[0]),
    "tag": lambda pipeline: pipeline(TEXTS[0]),
    "answer": lambda pipeline: pipeline.answer([("cat", TEXTS[2])], top_k=2)[0],
    "embed": lambda pipeline: pipeline.embed(TEXTS[:2]),
    "generate": lambda pipeline: pipeline("once", max_new_tokens=5),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_pickled_result_keeps_its_fields(folders: dict[str, Path], task: str) -> None:
    result = RESULTS[task](regard.load(folders[task]))
    restored = pickle.loads(pickle.dumps(result))
    assert type(restored) is type(result) and str(restored) == str(result)
    names = [name for name in vars(result) if not name.startswith("_")]
    assert (len(names) >= 3 and "vectors" not in names) or task == "embed"
    for name in names:
        assert np.array_equal(getattr(restored, name), getattr(result, name)), name
    with pytest.raises(UsageError, match="without its model"):
        restored.record()
