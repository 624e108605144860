"""Image completion: a causal language model learns digits and completes images whose last pixels are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.image_completion.__main__ import PROGRAM, image_completion
from examples.image_completion.images import GREY_LEVELS, load_digit_images, mask_rows
from examples.image_completion.model import IMAGES_FILE, MODEL_FOLDER, ImageModel, train_model
from regard import cli
from regard.checkpoint.causal_dir import save_causal_lm
from regard.config.data import TokenizerConfig
from regard.config.inference import GenerationConfig
from regard.config.models import GptConfig, StackConfig
from regard.errors import UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.text.train import train_tokenizer
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parents[3]
SMALL_RUN = {"preset": "micro", "steps": 3, "threads": 1, "precision": "float32", "batch_tokens": 512}


def run(*arguments: str) -> int:
    """Run the command line and return its exit code."""
    return cli.run(arguments, image_completion, PROGRAM)


def write_model(folder: Path, height: int, width: int) -> None:
    """Save an untrained model of images of this size."""
    tokenizer = train_tokenizer([GREY_LEVELS] * 9, TokenizerConfig(kind="characters")).without_special_tokens()
    config = GptConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        stack=StackConfig(num_layers=1, num_heads=2, feed_forward_size=8),
        max_positions=16,
        eos_id=tokenizer.eos_id,
    )
    model = build_model(config)
    initialize_weights(model, 1)
    facts = {"document": "line"}
    save_causal_lm(folder / MODEL_FOLDER, config, model.state_dict(), tokenizer=tokenizer, metadata=facts, card="")
    (folder / IMAGES_FILE).write_text(json.dumps({"height": height, "width": width, "held_out": [5]}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_model(folder, 3, 2)
    return folder


def test_a_completion_has_grey_levels_only_and_keeps_the_known_pixels(tmp_path: Path) -> None:
    write_model(tmp_path, 4, 3)
    model = ImageModel.load(tmp_path, threads=1)
    image = np.arange(12).reshape(4, 3)
    for rows in (0, 2, 3):
        completions = model.complete(mask_rows(image, rows), GenerationConfig(samples=3))
        assert len(completions) == 3
        for completion in completions:
            assert completion.shape == (4, 3)
            assert completion.min() >= 0
            assert completion.max() <= 16
            assert (completion[:rows] == image[:rows]).all()
        assert any((completions[0] != other).any() for other in completions[1:])
    with pytest.raises(UsageError, match="no pixel is missing"):
        model.complete(image)
    with pytest.raises(UsageError, match="only the last ones missing"):
        model.complete(np.where(image == 1, -1, image))
    with pytest.raises(UsageError, match="4 × 3 pixels"):
        model.complete(image.T)


def test_a_completion_is_printed_drawn_and_written_as_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_file = tmp_path / "half.txt"
    image_file.write_text("0 16\n8\n")
    html_file = tmp_path / "p.html"
    svg_file = tmp_path / "p.svg"
    command = ["complete", str(folder), "--image", str(image_file), "--samples", "2", "--threads", "1"]
    assert run(*command, "--page", str(html_file), "--svg", str(svg_file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["input", "completion", "1", "completion", "2"]
    assert len(lines) == 4
    assert svg_file.read_text("utf-8").count("<rect") == 3 * 6
    assert "<svg" in html_file.read_text("utf-8")
    assert run(*command, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["input"] == [[0, 16], [8, -1], [-1, -1]]
    assert len(record["completions"]) == 2
    for completion in record["completions"]:
        assert completion[0] == [0, 16]
        assert completion[1][0] == 8
        assert min(map(min, completion)) >= 0


def test_mistakes_on_the_command_line_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["complete", str(tmp_path)], "holds no model of images"),
        (["complete", str(folder), "--image", "a", "--index", "1"], "keep one of them"),
        (["complete", str(folder), "--image", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["complete", str(folder), "--sampels", "2"], f"did you mean --samples?)\n  {PROGRAM} complete --help shows"),
    ):
        assert run(*arguments) == 2, message
        assert message in capsys.readouterr().err


def test_every_option_has_help_and_every_command_an_example() -> None:
    for name, command in image_completion.commands.items():
        assert f"{PROGRAM} {name}" in (command.help or "")
        for option in command.params:
            assert getattr(option, "help", None) or option.param_type_name == "argument", f"{option.opts} has no help"


def test_digits_are_learned_and_the_held_out_ones_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    folder = tmp_path / "digits"
    with pytest.warns(UserWarning, match="learned nothing: 3 updates are too few"):
        trained = train_model(folder, **SMALL_RUN)
    digits = load_digit_images()
    texts = digits.texts()
    held_out = {texts[index] for index in trained.held_out}
    assert set((folder / "valid.txt").read_text().split()) == held_out
    train_texts = (folder / "train.txt").read_text().split()
    assert len(train_texts) + len(trained.held_out) == len(texts)
    assert not held_out & set(train_texts)
    assert run("complete", str(folder), "--threads", "1", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    masked_image = mask_rows(digits.pixels[trained.held_out[0]], 4)
    assert record["index"] == trained.held_out[0]
    assert record["input"] == masked_image.tolist()
    assert record["completions"] == [trained.complete(masked_image)[0].tolist()]
    assert run("complete", str(folder), "--index", "1797", "--threads", "1") == 2
    assert "indices from 0 to 1796" in capsys.readouterr().err


@pytest.mark.slow
def test_the_commands_run_as_a_module_of_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    command = [sys.executable, "-m", "examples.image_completion", "train", "--out", str(tmp_path / "digits")]
    command += ["--preset", "micro", "--steps", "1", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == f"try it: {PROGRAM} complete {tmp_path / 'digits'}"
    assert ImageModel.load(tmp_path / "digits", threads=1).width == 8
