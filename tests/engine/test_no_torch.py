"""An answer of the engine builds no torch module, from a model folder or an engine folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.checkpoint.export.convert import convert
from tests.model_folders import PROMPTS, SOURCES, TASKS, TEXTS, save_model_folders
from tests.scale import HANG_GUARD

COUNT_MODULES = """
import json, sys
import torch
from tests.model_folders import predict
built = []
initialize = torch.nn.Module.__init__
def count(module, *args, **kwargs):
    built.append(type(module).__name__)
    initialize(module, *args, **kwargs)
torch.nn.Module.__init__ = count
import regard
counts = {}
for task, folder in json.loads(sys.argv[1]):
    built.clear()
    pipeline = regard.load(folder)
    predict(task, pipeline)
    counts[f"{task} {folder}"] = len(built)
built.clear()
pipeline.model.torch_model()
print(json.dumps([counts, len(built)]))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Task and folder of models, as they are saved and as engine folders."""
    root = tmp_path_factory.mktemp("folders")
    pairs = []
    for task, folder in save_model_folders(root).items():
        pairs.append((task, str(folder)))
        pairs.append((task, str(convert(folder, root / f"engine-{task}", precision="int8").folder)))
    return sorted(pairs, key=lambda pair: TASKS.index(pair[0]))


def run_python(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def test_an_answer_of_the_engine_builds_no_torch_module(folders: list[tuple[str, str]]) -> None:
    output = run_python(COUNT_MODULES, json.dumps(folders))
    counts, num_built = json.loads(output.splitlines()[-1])
    assert len(counts) == 2 * len(TASKS)
    assert set(counts.values()) == {0}, counts
    assert num_built > 0  # modules are counted


@pytest.mark.parametrize("task", ["translate", "embed"])
def test_translating_and_embedding_do_not_even_import_torch(folders: list[tuple[str, str]], task: str) -> None:
    for folder in (folder for folder_task, folder in folders if folder_task == task):
        code = (
            "import sys; sys.modules['torch'] = None\n"
            f"from regard.cli import run; code = run([{task!r}, {folder!r}, 'w5 w6']); assert not code, code\n"
            "assert 'safetensors' not in sys.modules"
        )
        run_python(code)


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "embed"])
def test_the_attention_of_an_encoder_is_shown_without_torch(
    folders: list[tuple[str, str]], task: str, tmp_path: Path
) -> None:
    """On a page and as a figure, with ablated heads, and with the importance of heads."""
    passage = tmp_path / "passage.txt"
    passage.write_text(TEXTS[2] + "\n", encoding="utf-8")
    options = ["--passage", str(passage)] if task == "answer" else []
    importance = [] if task == "tag" else ["--importance"]
    calls = []
    for index, folder in enumerate(folder for folder_task, folder in folders if folder_task == task):
        page = tmp_path / f"{index}.html"
        calls.append(["see", folder, TEXTS[0], *options, "--out", str(page)])
        calls.append(
            ["see", folder, TEXTS[0], *options, *importance, "--ablate", "encoder.1.self:0", "--out", str(page)]
        )
        calls.append(["figure", folder, TEXTS[0], *options, "--out", str(tmp_path / f"{index}.svg")])
    code = (
        "import json, sys; sys.modules['torch'] = None\n"
        "from regard.cli import run\n"
        "for call in json.loads(sys.argv[1]):\n"
        "    code = run(call); assert not code, (call, code)\n"
    )
    run_python(code, json.dumps(calls))
    assert len([*tmp_path.glob("*.html")]) == len([*tmp_path.glob("*.svg")]) == 2


def test_decoders_answer_and_show_their_attention_without_torch(folders: list[tuple[str, str]], tmp_path: Path) -> None:
    """Generating, scoring and translating; beams, ablated heads and their importance, on a page and as a figure."""
    calls = []
    index = 0
    for task, folder in folders:
        if task not in ("translate", "generate"):
            continue
        text = SOURCES[1] if task == "translate" else PROMPTS[1]
        options = [["--beam", "2", "--importance"], ["--ablate", "decoder.1.cross:0"]]
        if task == "generate":
            options = [["--max-new-tokens", "5"], ["--ablate", "decoder.1.self:0", "--compare"]]
            calls.append(["generate", folder, text, "--max-new-tokens", "5"])
        for extra in options:
            calls.append(["see", folder, text, *extra, "--out", str(tmp_path / f"{index}.html")])
            index += 1
        calls.append(["figure", folder, text, "--out", str(tmp_path / f"{index}.svg")])
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SOURCES[0]}\t{SOURCES[1]}\n", encoding="utf-8")
    translator = next(folder for task, folder in folders if task == "translate")
    calls.append(["score", translator, str(pairs)])
    calls.append(["translate", translator, SOURCES[0], "--align"])
    code = (
        "import json, sys; sys.modules['torch'] = None\n"
        "from regard.cli import run\n"
        "for call in json.loads(sys.argv[1]):\n"
        "    code = run(call); assert not code, (call, code)\n"
    )
    run_python(code, json.dumps(calls))
    assert len([*tmp_path.glob("*.html")]) == 8 and len([*tmp_path.glob("*.svg")]) == 4
