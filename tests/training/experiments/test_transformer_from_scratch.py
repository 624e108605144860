"""Transformers that are trained on labelled texts from scratch: learning, resuming, folders, positions and pooling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import regard
from regard.attention.dropout import Noise, drop_tokens
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.hf.encoder_types import NATIVE_TYPE
from regard.checkpoint.hf.encoders import hf_model_type
from regard.cli import run
from regard.components import POSITIONS
from regard.config.models import POOLING_KINDS, BertConfig
from regard.config.runs import build_run
from regard.engine.library import unavailable_reason
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.tasks.span_objective import SpanObjective
from regard.tasks.tagging_objectives import TaggingObjective
from regard.text.special_tokens import SpecialTokens
from regard.training.batch_procedure import build_experiment
from regard.training.run import train_run
from regard.view.record.record import Record
from tests.training.killing import train_killed_and_whole
from tests.training.listener import sittings
from tests.training.task_data import write_data

Output = pytest.CaptureFixture[str]
TASKS = ("classify", "tag", "answer")
SIZES = {
    "preset": "custom",
    "transformer.hidden_size": 24,
    "transformer.stack.num_layers": 2,
    "transformer.stack.num_heads": 3,
    "transformer.stack.feed_forward_size": 40,
}
FAST = {"training.threads": 1, "training.precision": "float32", "training.batch_tokens": 96}
TORCH_POSITIONS = ("interleaved", "concatenated")  # which the engine leaves to torch
THINGS = ("tree", "house", "river", "road", "tower", "garden", "lake", "bridge")
SENTENCES = tuple(  # the last word of each is its label, its only entity or its answer
    f"the {thing} {verb} {word}"
    for thing in THINGS
    for verb in ("was", "seemed", "stayed")
    for word in ("lovely", "dull")
)
TEXT = SENTENCES[0]


def train(folder: Path, task: str, steps: int, **settings: Any) -> Path:
    """Train a small Transformer on small data of a task; return the run directory."""
    folder.mkdir(exist_ok=True)
    data = {"data.train": [str(write_data(folder, task, SENTENCES))], "training.steps": steps}
    train_run(build_run(task, {"architecture": "transformer", **SIZES, **FAST, **data, **settings}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A trained model of each task."""
    folder = tmp_path_factory.mktemp("scratch")
    fast = {"training.learning_rate": 0.005, "training.optimizer": "adamw", "training.evaluate_every": 30}
    seeds = {"classify": 2}  # with which it knows a text by its own label, not by the absence of the other
    return {
        task: train(folder / task, task, steps=150, **fast, **{"training.seed": seeds.get(task, 1)}) for task in TASKS
    }


def predict(folder: Path, task: str, backend: str) -> tuple[str, float]:
    """Prediction for a text, and its probability."""
    pipeline: Any = regard.load(folder, backend=backend, threads=1)
    if task == "classify":
        result = pipeline(TEXT)
        return str(result), result.probability
    if task == "tag":
        (entity,) = pipeline("the lake was dull").entities
        return entity.text, entity.probability
    result = pipeline("was w1", TEXT)
    return result.text, result.score


def logits(folder: Path, backend: str) -> NDArray[np.float32]:
    """Logits of two texts of different lengths."""
    pipeline: Any = regard.load(folder, backend=backend, threads=1)
    special_tokens = SpecialTokens(load_encoder(folder).tokenizer)
    model = (pipeline.classifier if pipeline.task_name == "classify" else pipeline.tagger).model
    tokens, _ = special_tokens.encode_batch([TEXT, "dull lake"], max_length=32)
    result: NDArray[np.float32] = model.logits(tokens)
    return result


# ---- each task


@pytest.mark.parametrize(("task", "expected"), [("classify", "lovely"), ("tag", "dull"), ("answer", "lovely")])
def test_a_separable_task_is_learned_and_both_backends_agree(
    runs: Mapping[str, Path], task: str, expected: str
) -> None:
    text, score = predict(runs[task], task, "torch")
    assert text == expected
    metrics = json.loads((runs[task] / "task.json").read_text())["metrics"]
    assert metrics[{"classify": "valid_accuracy", "tag": "valid_f1", "answer": "valid_f1"}[task]] > 95
    assert "valid_baseline" in metrics
    if task == "classify":
        assert json.loads((runs[task] / "task.json").read_text())["temperature"] > 0
    if not unavailable_reason():
        engine_text, engine_score = predict(runs[task], task, "engine")
        assert engine_text == text
        assert engine_score == pytest.approx(score, abs=1e-4)


def test_the_tokenizer_is_the_runs_own_with_the_special_tokens_of_bert(runs: Mapping[str, Path]) -> None:
    source = load_encoder(runs["answer"])
    assert source.tokenizer.subwords([source.tokenizer.bos_id, source.tokenizer.eos_id]) == ["[CLS]", "[SEP]"]
    assert source.tokenizer.backend.token_to_id("lovely") is not None
    assert source.config.vocab_size == source.tokenizer.vocab_size < 200
    assert source.config.num_token_types == 2  # question and passage


def test_a_run_says_what_it_trains_and_its_model_says_what_it_is(tmp_path: Path, capfd: Output) -> None:
    data = write_data(tmp_path, "classify", SENTENCES)
    command = ["train", "classify", str(data), "--arch", "transformer", "--causal", "--steps", "2", "--threads", "1"]
    assert run([*command, "--out", str(tmp_path / "run"), "--precision", "float32"]) == 0
    captured = capfd.readouterr()
    assert "tokens: wordpiece, vocabulary of" in captured.err
    assert "(tiny, for " in captured.err
    trained, result, following = captured.out.splitlines()[-3:]
    assert trained.startswith("trained  causal Transformer, 2 layers of 64, 4 heads, ")
    assert "learned positions, mean pooling, 2 labels" in trained
    assert (result[:8], following[:8]) == ("result  ", "next    ")
    assert run(["info", str(tmp_path / "run")]) == 0
    assert "causal Transformer, 2 layers of 64" in capfd.readouterr().out
    assert "causal Transformer, 2 layers" in (tmp_path / "run" / "README.md").read_text()


def test_answering_without_a_model_or_an_architecture_names_both_ways(tmp_path: Path, capfd: Output) -> None:
    data = write_data(tmp_path, "answer", SENTENCES)
    assert run(["train", "answer", str(data), "--out", str(tmp_path / "run")]) == 2
    assert "add --from MODEL to fine-tune one, or --arch transformer to train one from" in capfd.readouterr().err


def test_the_recipe_of_a_run_trains_the_same_model_again(runs: Mapping[str, Path], tmp_path: Path) -> None:
    recipe = runs["classify"] / "run.json"
    assert run(["train", "--recipe", str(recipe), "--out", str(tmp_path / "again")]) == 0
    weights = [load_encoder(folder).weights for folder in (runs["classify"], tmp_path / "again")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_killed_process_resumes_with_the_same_bits(tmp_path: Path) -> None:
    data = write_data(tmp_path, "classify", SENTENCES)
    options = "--arch transformer --steps 40 --batch-tokens 96 --transformer.token_dropout 0.2"
    killed, whole = train_killed_and_whole(["classify", str(data), *options.split()], tmp_path)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("task", "objective", "causal"), [("tag", TaggingObjective, True), ("answer", SpanObjective, False)]
)
def test_interrupted_runs_end_in_the_same_bits(
    tmp_path: Path, task: str, objective: type, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.save_every": 3, "transformer.token_dropout": 0.2, "transformer.causal": causal}
    whole = train(tmp_path / "whole", task, 9, **settings)
    assert sittings(objective, lambda: train(tmp_path / "killed", task, 9, **settings), monkeypatch, every=5) > 1
    killed = tmp_path / "killed" / "run"
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("task", TASKS)
def test_models_are_traced_explained_studied_and_ablated(
    runs: Mapping[str, Path], tmp_path: Path, task: str, capfd: Output
) -> None:
    folder = str(runs[task])
    data = str(write_data(tmp_path, task, SENTENCES))
    passage = tmp_path / "passage.txt"
    passage.write_text(TEXT)
    text = [TEXT] if task != "answer" else ["--passage", str(passage), "was w1"]
    assert run(["see", folder, *text, "--out", str(tmp_path / "page.html"), "--threads", "1"]) == 0
    if task != "tag":  # taggers have attention alone
        path = tmp_path / "record.json"
        assert run(["see", folder, *text, "--attribution", "--importance", "--out", str(path), "--threads", "1"]) == 0
        record = Record.read(path)
        occlusion = next(values for values in record.attribution if values.method == "occlusion")
        assert record.texts["source"].tokens[int(np.argmax(occlusion.values))].strip("▁ ") == "lovely"
        assert record["encoder.self"].importance is not None
    figure = ["figure", folder, *text, "--view", "heads", "--out", str(tmp_path / "heads.svg"), "--threads", "1"]
    assert run(figure) == 0
    assert run([task, folder, *text, "--ablate", "encoder.0.self:1", "--threads", "1"]) == 0
    assert run(["evaluate", folder, data, "--threads", "1", "--json"]) == 0
    capfd.readouterr()
    assert run(["heads", folder, data, "--threads", "1", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["heads"]) == 6


def test_several_seeds_are_summarized(tmp_path: Path) -> None:
    folder = train(tmp_path, "tag", 3, **{"fine_tuning.seeds": 2})
    metrics = json.loads((folder / "run.json").read_text())["result"]["metrics"]
    assert "valid_f1_deviation" in metrics


# ---- positions, pooling and direction


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_position_scheme_is_trained_saved_and_computed_by_both_backends(tmp_path: Path, positions: str) -> None:
    folder = train(tmp_path, "tag", 3, **{"transformer.positions": positions, "transformer.stack.num_heads": 4})
    assert load_encoder(folder).config.positions == positions
    assert f"{'no' if positions == 'none' else positions} positions" in load_encoder(folder).config.summary()
    torch_logits = logits(folder, "torch")
    assert np.isfinite(torch_logits).all()
    if not unavailable_reason() and positions not in TORCH_POSITIONS:
        np.testing.assert_allclose(logits(folder, "engine"), torch_logits, atol=1e-4)


POOLINGS = [(kind, causal) for kind in POOLING_KINDS for causal in (False, True) if kind != "first" or not causal]


@pytest.mark.parametrize(("pooling", "causal"), POOLINGS)
def test_every_pooling_is_trained_saved_and_computed_by_both_backends(
    tmp_path: Path, pooling: str, causal: bool
) -> None:
    settings = {"transformer.pooling": pooling, "transformer.causal": causal}
    folder = train(tmp_path, "classify", 3, **settings)
    config = load_encoder(folder).config
    assert (config.pooling, config.causal) == (pooling, causal)
    torch_logits = logits(folder, "torch")
    if not unavailable_reason() and pooling != "attention":  # which torch computes
        np.testing.assert_allclose(logits(folder, "engine"), torch_logits, atol=1e-4)


def test_a_model_has_as_many_positions_as_its_rows_or_those_that_are_set(tmp_path: Path) -> None:
    folder = train(tmp_path / "rows", "classify", 2, **{"data.max_length": 31})
    source = load_encoder(folder)
    assert (source.config.max_positions, source.max_length) == (31, 31)
    assert len(source.weights["position_embedding.weight"]) == 31
    settings = {"transformer.positions": "rotary", "transformer.max_positions": 61, "data.max_length": 31}
    assert load_encoder(train(tmp_path / "more", "classify", 2, **settings)).config.max_positions == 61


def test_no_answer_stands_at_a_token_of_a_causal_model_that_sees_the_passage(tmp_path: Path) -> None:
    settings = {**SIZES, **FAST, "architecture": "transformer", "transformer.causal": True}
    data = str(write_data(tmp_path, "answer", SENTENCES))
    experiment: Any = build_experiment(build_run("answer", {**settings, "data.train": [data]}), tmp_path / "prepared")
    experiment.prepare()
    rows = experiment.valid.rows
    assert rows.no_answer_positions == [len(row) - 1 for row in rows.rows]
    folder = train(tmp_path, "answer", 2, **{"transformer.causal": True})
    encoded = regard.load(folder, threads=1).encode([("was w1", TEXT)])  # type: ignore[attr-defined]
    assert encoded.no_answer_positions == [len(encoded.rows[0]) - 1]


def test_causal_changes_the_direction_and_nothing_else(tmp_path: Path) -> None:
    configs = []
    changes = []
    for causal in (False, True):
        folder = train(tmp_path / str(causal), "tag", 3, **{"transformer.causal": causal})
        source = load_encoder(folder)
        configs.append(source.config)
        model = Bert(source.config).eval()
        model.load_state_dict(source.weights)
        rows = Tokens.from_rows([[2, 7, 8, 9, 3], [2, 7, 8, 10, 3]])
        both = model.logits(rows).reshape(2, 5, -1)
        changes.append(np.abs(both[0, :3] - both[1, :3]).max())
    assert configs[1] == configs[0].override({"causal": True})
    assert changes[0] > 1e-4  # earlier tokens attend to the one that differs
    assert changes[1] == 0


def test_a_causal_masked_language_model_is_fine_tuned_by_its_last_token(tmp_path: Path) -> None:
    data = write_data(tmp_path, "masked-lm", SENTENCES)
    small = {path.replace("transformer.", "bert."): value for path, value in SIZES.items()}
    settings = {**small, **FAST, "training.steps": 2, "bert.causal": True, "data.train": [str(data)]}
    train_run(build_run("masked-lm", settings), tmp_path / "bert")
    labelled = {"data.train": [str(write_data(tmp_path, "classify", SENTENCES))], "pretrained": str(tmp_path / "bert")}
    train_run(build_run("classify", {**FAST, **labelled, "training.steps": 2}), tmp_path / "tuned")
    config = load_encoder(tmp_path / "tuned").config
    assert (config.causal, config.pooling, config.head) == (True, "last", "label")


def test_token_dropout_leaves_out_whole_tokens_in_training_alone(tmp_path: Path) -> None:
    embedded = torch.ones(997, 3)
    dropped = drop_tokens(embedded, 0.25, Noise(seed=1, step=2))
    assert set(dropped.sum(1).round(decimals=3).tolist()) == {0.0, 4.0}
    assert 0.2 < float((dropped[:, 0] == 0).float().mean()) < 0.3
    assert torch.equal(drop_tokens(embedded, 0.25, None), embedded)
    plain, noisy = (train(tmp_path / str(rate), "tag", 3, **{"transformer.token_dropout": rate}) for rate in (0.0, 0.5))
    weights = [load_encoder(folder).weights["token_embedding.weight"] for folder in (plain, noisy)]
    assert not torch.equal(*weights)


# ---- folders


def test_what_berts_config_expresses_is_written_as_bert(tmp_path: Path) -> None:
    settings = {"transformer.norm_placement": "post", "transformer.pooling": "first", "transformer.pooler": True}
    bert = train(tmp_path / "bert", "classify", 3, **settings)
    assert load_encoder(bert).model_type == "bert"
    native = train(tmp_path / "native", "classify", 3, **{"transformer.positions": "relative"})
    assert load_encoder(native).model_type == NATIVE_TYPE
    transformers = pytest.importorskip("transformers")
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(bert, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    with torch.inference_mode():
        expected = theirs.eval()(**tokenizer(TEXT, return_tensors="pt")).logits[0].numpy()
    np.testing.assert_allclose(logits(bert, "torch")[0], expected, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_position_scheme_and_pooling_has_a_type_of_folder(positions: str) -> None:
    for pooling in POOLING_KINDS:
        settings = {"vocab_size": 11, "head": "label", "num_labels": 3, "positions": positions, "pooling": pooling}
        model_type, reason = hf_model_type(BertConfig().override(settings))
        assert (model_type == NATIVE_TYPE) == bool(reason) == ((positions, pooling) != ("learned", "first"))


@pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")
@pytest.mark.parametrize("task", TASKS)
def test_models_are_packed_for_the_engine(runs: Mapping[str, Path], tmp_path: Path, task: str, capfd: Output) -> None:
    assert run(["convert", str(runs[task]), str(tmp_path / "packed"), "--precision", "float32"]) == 0
    text, score = predict(tmp_path / "packed", task, "engine")
    assert (text, pytest.approx(score, abs=1e-4)) == predict(runs[task], task, "torch")
    assert run(["convert", str(runs[task]), str(tmp_path / "hf")]) == 2
    assert "no Hugging Face type has norm_placement 'pre'" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_every_direction_is_exported_to_onnx(tmp_path: Path, pooling: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = {"transformer.causal": pooling == "attention", "transformer.pooling": pooling}
    folder = train(tmp_path / "model", "classify", 3, **settings)
    assert run(["convert", str(folder), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    session = onnxruntime.InferenceSession(next((tmp_path / "onnx").glob("*.onnx")))
    encoded = SpecialTokens(load_encoder(folder).tokenizer).encode(TEXT)
    ones = [1] * len(encoded.ids)
    arrays = {"input_ids": [encoded.ids], "attention_mask": [ones], "token_type_ids": [encoded.token_types]}
    names = [tensor.name for tensor in session.get_inputs()]
    output = session.run(None, {name: np.array(arrays[name], dtype=np.int64) for name in names})[0]
    np.testing.assert_allclose(output[0], logits(folder, "torch")[0], atol=1e-4)


def test_a_model_from_scratch_is_fine_tuned_frozen_and_distilled(runs: Mapping[str, Path], tmp_path: Path) -> None:
    data = str(write_data(tmp_path, "classify", SENTENCES))
    common = ["--steps", "3", "--threads", "1"]
    base = str(runs["classify"])
    for name, options in (("tuned", []), ("frozen", ["--freeze-encoder"])):
        command = ["train", "classify", data, "--from", base, "--out", str(tmp_path / name)]
        assert run([*command, *common, *options]) == 0
        assert predict(tmp_path / name, "classify", "torch")[0] == "lovely"  # the head is kept, too
    command = ["distil", base, data, "--student-layers", "1", "--out", str(tmp_path / "student"), *common]
    assert run(command) == 0
    assert load_encoder(tmp_path / "student").config.stack.num_layers == 1
