"""No flipped bit changes an answer, a score, a label or a resumed weight without a message."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import regard
from benchmarks.random_models import save_random_translator
from regard.checkpoint import atomic
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.export.convert import convert
from regard.checkpoint.hf import sentence_transformers
from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig
from regard.checkpoint.model_dir import load_translator
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.config.runs import build_run
from regard.engine.library import unavailable_reason
from regard.errors import CheckpointError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.training.run import train_run
from tests.checkpoint.bit_flips import find_silent_changes, flip_bit, random_flips
from tests.encoders import saved_encoder
from tests.model_folders import TEXTS, VOCAB_SIZE, predict, save_model_folders
from tests.scale import scaled

NUM_FLIPS = {"run": scaled(200, 3), "native": scaled(600, 25), "engine": scaled(600, 25), "hf": scaled(600, 25)}
needs_engine = pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=40)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_model_folders(tmp_path_factory.mktemp("models"))


def load_and_predict(task: str, folder: Path) -> object:
    return predict(task, regard.load(folder, backend="torch" if unavailable_reason() else "auto"))


def save_transformer(folder: Path, **changes: Any) -> Path:
    sizes = {"hidden_size": 32, "encoder": STACK, "decoder": STACK, "source_vocab_size": VOCAB_SIZE}
    config = TransformerConfig(**(sizes | {"target_vocab_size": VOCAB_SIZE} | changes))  # type: ignore[arg-type]
    decoding = DecodingConfig(beam=2, max_length_a=1.0, max_length_b=3)
    return save_random_translator(folder, config, decoding, card="a card")


def save_gpt(folder: Path, source: Path, positions: str) -> Path:
    loaded = load_causal_lm(source)
    config = GptConfig(
        vocab_size=loaded.config.vocab_size, hidden_size=32, stack=STACK, max_positions=32, positions=positions
    )
    model = build_model(config)
    initialize_weights(model, 1)
    save_causal_lm(folder, config, model.state_dict(), tokenizer=loaded.tokenizer, metadata={}, card="")
    return folder


def assert_no_flip_is_silent(folder: Path, kind: str, answer: Callable[[Path], object], share: float = 1.0) -> None:
    count = max(1, round(NUM_FLIPS[kind] * share))
    assert find_silent_changes(folder, random_flips(folder, count, seed=7), answer) == []


@pytest.mark.parametrize("task", ["classify", "translate", "generate"])
def test_no_flip_in_a_folder_for_hugging_face_is_silent(task: str, folders: dict[str, Path]) -> None:
    assert_no_flip_is_silent(folders[task], "hf", partial(load_and_predict, task), 0.25)


def test_no_flip_in_a_folder_with_pooling_is_silent(folders: dict[str, Path], tmp_path: Path) -> None:
    modules = SentenceTransformersConfig(pooling=("max",), normalize=True)
    source = shutil.copytree(folders["embed"], tmp_path / "source")
    for name, content in sentence_transformers.serialize_modules(modules).items():
        (source / name).write_bytes(content)
    sentence_transformers.write_pooling(source, modules, 32)
    folder = convert(source, tmp_path / "pooled").folder
    assert (folder / "1_Pooling" / atomic.MANIFEST).is_file()
    assert_no_flip_is_silent(folder, "hf", partial(load_and_predict, "embed"), 0.25)


def test_no_flip_in_a_folder_of_our_own_is_silent(tmp_path: Path) -> None:
    folder = save_transformer(tmp_path / "model", positions="learned")
    assert_no_flip_is_silent(folder, "native", partial(load_and_predict, "translate"))


@needs_engine
@pytest.mark.parametrize("task", ["classify", "translate"])
def test_no_flip_in_an_engine_folder_is_silent(task: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = convert(folders[task], tmp_path / "engine", precision="int8").folder
    assert_no_flip_is_silent(folder, "engine", partial(load_and_predict, task), 0.5)


# ---- runs


def write_pairs(folder: Path) -> dict[str, Any]:
    """Write a small parallel corpus; return the settings of a run on it."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = [" ".join(words[(start + step) % 7] for step in range(3 + start % 3)) for start in range(60)]
    for name in ("train", "valid"):
        for side in ("a", "b"):
            part = lines if name == "train" else lines[::9]
            text = "\n".join(line.upper() if side == "b" else line for line in part)
            (folder / f"{name}.{side}").write_text(text + "\n", "utf-8")
    return {
        "data.train": [str(folder / "train.a"), str(folder / "train.b")],
        "data.valid": [str(folder / "valid.a"), str(folder / "valid.b")],
        "preset": "custom",
        "model.hidden_size": 16,
        **{f"model.{side}.num_layers": 1 for side in ("encoder", "decoder")},
        **{f"model.{side}.num_heads": 2 for side in ("encoder", "decoder")},
        **{f"model.{side}.feed_forward_size": 16 for side in ("encoder", "decoder")},
        "tokenizer.kind": "words",
        "training.steps": 6,
        "training.evaluate_every": 3,
        "training.save_every": 2,
        "training.batch_tokens": 64,
        "training.precision": "float32",
        "training.threads": 1,
        "training.tune_length_penalty": False,
    }


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that was stopped after its fourth step, and its settings."""
    folder = tmp_path_factory.mktemp("run")
    settings = write_pairs(folder)
    result = train_run(build_run("translate", settings), folder / "run", listeners=[Stopper()])
    assert not result.is_finished
    return folder / "run", settings


def resume(folder: Path, settings: dict[str, Any]) -> bytes:
    """Resume a copy of a run; return its weights."""
    copy = folder.with_name("resumed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    messages = Notes()
    train_run(build_run("translate", settings), copy, listeners=[messages])
    for text in messages.texts:
        if "damaged" in text:
            raise CheckpointError(text)
    return (copy / "model.safetensors").read_bytes()


class Stopper:
    """Stops a run after its second checkpoint."""

    num_saved = 0

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        self.num_saved += event == "save"
        if event == "save" and self.num_saved == 2:
            signal.raise_signal(signal.SIGINT)


class Notes:
    """The notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        if event == "note":
            self.texts.append(data["text"])


def test_no_flip_in_a_stopped_run_changes_the_resumed_weights_silently(
    stopped_run: tuple[Path, dict[str, Any]],
) -> None:
    folder, settings = stopped_run
    assert_no_flip_is_silent(folder, "run", partial(resume, settings=settings))


def test_a_changed_file_of_a_run_is_named(stopped_run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = stopped_run
    run = shutil.copytree(folder, tmp_path / "run")
    config = build_run("translate", settings)
    content = (run / "run.json").read_bytes()
    assert b'"batch_tokens": 64' in content
    (run / "run.json").write_bytes(content.replace(b'"batch_tokens": 64', b'"batch_tokens": 74'))
    with pytest.raises(CheckpointError, match=r"run\.json: damaged or edited: .* start anew with another --out"):
        train_run(config, run)
    (run / "run.json").write_bytes(content)
    tokenizer = next(path for path in sorted((run / "tokenizers").iterdir()))
    flip_bit(tokenizer, 8 * (tokenizer.read_bytes().index(b"seven") + 1))
    with pytest.raises(CheckpointError, match=rf"{tokenizer.name}: changed since the run began: restore it"):
        train_run(config, run)
    flip_bit(tokenizer, 8 * (tokenizer.read_bytes().index(b"s") + 1))
    valid = Path(settings["data.valid"][0])
    before = valid.read_text("utf-8")
    valid.write_text(before.replace("two", "too", 1), "utf-8")
    shutil.copytree(folder, tmp_path / "again")
    with pytest.raises(UsageError, match=r"the data changed since .* began \(valid: .*valid\.a, .*valid\.b\)"):
        train_run(config, tmp_path / "again")
    valid.write_text(before, "utf-8")


# ---- folders from elsewhere, which have no digests


def encoder_shape(folder: Path) -> object:
    config = load_encoder(folder).config
    stack = config.stack
    sizes = (config.vocab_size, config.hidden_size, config.max_positions, config.num_token_types, config.embedding_dim)
    return sizes, stack.num_layers, stack.num_heads, stack.feed_forward_size, config.activation


def causal_shape(folder: Path) -> object:
    config = load_causal_lm(folder).config
    return config.vocab_size, config.hidden_size, config.max_positions, config.stack.to_dict(), config.activation


def translator_shape(folder: Path) -> object:
    config = load_translator(folder).config
    assert isinstance(config, TransformerConfig)
    sizes = (config.source_vocab_size, config.target_vocab_size, config.hidden_size, config.max_positions)
    return sizes, config.encoder.to_dict(), config.decoder.to_dict(), config.activation


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "gpt_neox", "marian"])
def test_no_flip_in_a_foreign_config_changes_the_shape_silently(
    model_type: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shape: Callable[[Path], object]
    if model_type == "bert":
        saved_encoder(folder, TEXTS)
        shape = encoder_shape
    elif model_type == "marian":
        save_transformer(folder, norm_placement="post")
        shape = translator_shape
    else:
        save_gpt(folder, folders["generate"], "learned" if model_type == "gpt2" else "rotary")
        shape = causal_shape
    (folder / atomic.MANIFEST).unlink()
    config = folder / "config.json"
    assert f'"{model_type}"' in config.read_text("utf-8")
    flips = [(config, bit) for bit in range(0, 8 * config.stat().st_size, scaled(11, 97))]
    assert find_silent_changes(folder, flips, shape) == []
