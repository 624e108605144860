"""RNN classifiers and taggers over frozen features of every family: layers, folders, verbs, resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.checkpoint.model_dir import save_translator
from regard.cli import run
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.config.task_runs import ClassifyRun, TagRun
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.tasks.classification import TextClassificationObjective
from regard.tasks.feature_models import load_frozen_features
from regard.tasks.tagging_objectives import RnnTaggingObjective
from regard.training.run import train_run
from regard.view.record.record import Record
from tests.checkpoint.samples import tokenizers
from tests.model_folders import save_model_folders
from tests.rnn_text import saved_elmo
from tests.training.listener import Listener, sittings

TEXTS = ["the dog runs over the green hill", "a cat", "rain", "the cat sleeps in the house all day long while it rains"]
SIZES: dict[str, Any] = {
    "preset": "custom",
    "tokenizer.kind": "words",
    "training.batch_tokens": 64,
    "training.threads": 1,
    "training.precision": "float32",
    "training.steps": 3,
}
# folder, --feature-layers, layers that are read, and the size of the RNN's input from them
CASES: list[tuple[str, str, list[int], tuple[int, int]]] = [
    ("elmo", "auto", [0, 1, 2], (3, 10)),
    ("elmo", "last", [2], (1, 10)),
    ("bert", "auto", [1, 2], (1, 64)),
    ("bert", "mix", [0, 1, 2], (3, 32)),
    ("bert", "0", [0], (1, 32)),
    ("gpt", "auto", [0, 1, 2], (3, 24)),
    ("gpt", "1", [1], (1, 24)),
    ("transformer", "auto", [2], (1, 24)),
    ("transformer", "last4", [1, 2], (1, 48)),
    ("seq2seq", "auto", [2], (1, 14)),
    ("seq2seq", "mix", [1, 2], (2, 14)),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with random weights of each family whose layers are features, by family."""
    root = tmp_path_factory.mktemp("features")
    saved = save_model_folders(root)
    tokenizer = tokenizers(shared=True)["source"]
    size = tokenizer.vocab_size
    config = Seq2SeqConfig(
        source_vocab_size=size, target_vocab_size=size, embedding_size=5, hidden_size=7, num_layers=2
    )
    model = build_model(config)
    initialize_weights(model, 1)
    save_translator(
        root / "seq2seq",
        config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=DecodingConfig(),
        metadata={},
        card="",
    )
    return {
        "elmo": saved_elmo(root / "elmo", TEXTS),
        "bert": saved["embed"],
        "gpt": saved["generate"],
        "transformer": saved["translate"],
        "seq2seq": root / "seq2seq",
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "texts.tsv"
    texts = [f"{text} {number}" for number in range(5) for text in TEXTS]
    file.write_text("\n".join(f"{text}\t{'cat' if 'cat' in text else 'other'}" for text in texts) + "\n", "utf-8")
    return file


def classify_run(data: Path, folder: Path, layers: str = "auto", **changes: Any) -> ClassifyRun:
    sizes = {"rnn_classifier.encoder.hidden_size": 6, "rnn_classifier.encoder.embedding_size": 5}
    features = {"fine_tuning.features": str(folder), "fine_tuning.feature_layers": layers}
    return ClassifyRun.build(
        {**SIZES, **sizes, **features, "data.train": (str(data),), "data.valid": (str(data),), **changes}
    )


@pytest.mark.parametrize(("family", "layers", "numbers", "sizes"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_layers_are_those_of_the_model_at_its_subwords(
    folders: dict[str, Path], family: str, layers: str, numbers: list[int], sizes: tuple[int, int]
) -> None:
    features = load_frozen_features(folders[family], layers)
    assert (features.family, list(features.selection.layers)) == (family, numbers)
    assert (features.num_layers, features.hidden_size) == sizes
    text = TEXTS[0][:20]
    encoding = features.tokenizer.encode(text)
    ids = [*features.before, *encoding.ids, *features.after]
    all_layers = features.model.layer_states(Tokens.from_rows([ids]))
    inner = np.stack([all_layers[number] for number in numbers], axis=1)
    expected = inner[len(features.before) : len(ids) - len(features.after)].reshape(-1, *sizes)
    (extracted,) = features.extract([text], [encoding.spans])
    assert extracted.shape == expected.shape
    alone = [  # tokens of characters that no other token has
        index
        for index, (start, end) in enumerate(encoding.spans)
        if start < end and sum(left < end and start < right for left, right in encoding.spans) == 1
    ]
    np.testing.assert_allclose(extracted[alone], expected[alone], atol=1e-5)
    assert alone


def test_a_long_text_is_read_in_windows_and_nothing_is_lost(folders: dict[str, Path]) -> None:
    features = load_frozen_features(folders["bert"], "last")
    text = " ".join(TEXTS * 6)
    assert features.max_length == 64
    spans = features.tokenizer.encode(text).spans
    (layers,) = features.extract([text], [spans])
    assert layers.shape == (len(spans), 1, 32)
    (alone,) = features.extract([text[: spans[29][1]]], [spans[:30]])
    assert not np.allclose(layers[:30], alone, atol=1e-3)  # a window knows later words, too
    report = features.count_windows([*TEXTS, text])
    assert (report.windowed, report.windows, report.truncated_texts) == (1, len(TEXTS) + 3, 0)


@pytest.mark.parametrize("family", ["elmo", "bert", "gpt", "transformer", "seq2seq"])
def test_a_classifier_over_features_moves_with_its_folder(
    folders: dict[str, Path], data: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = Listener()
    source = shutil.copytree(folders[family], tmp_path / "source")
    train_run(classify_run(data, source), tmp_path / "run", listeners=[listener])
    shutil.rmtree(source)
    folder = shutil.move(tmp_path / "run", tmp_path / "moved")
    task = json.loads((folder / "task.json").read_text())["features"]
    case = next(case for case in CASES if case[0] == family)
    assert (task["family"], task["layers"], len(task["weights"])) == (family, case[2], case[3][0])
    notes = [event["text"] for event in listener.of("note")]
    assert any(note.startswith(f"features: frozen {family}, layer") for note in notes)
    label = regard.load(folder, threads=1)(TEXTS[1])
    assert label in ("cat", "other")
    record = label.record()
    assert [kind.name for kind in record.attention] == ["pooling", "mix"]
    assert run(["evaluate", str(folder), str(data)]) == 0
    assert f"features: frozen {family}, layer" in capsys.readouterr().err
    assert run(["info", str(folder)]) == 0
    assert f"features: frozen {family}, layer" in capsys.readouterr().out
    assert run(["heads", str(folder), str(data)]) == 0
    assert run(["see", str(folder), TEXTS[0], "--out", str(tmp_path / "page.html")]) == 0


def tag_run(folder: Path, features: Path, **changes: Any) -> TagRun:
    """Config of a tagger, whose data are written to a folder."""
    file = folder / "words.conll"
    sentences = ["\n".join(f"{word} {'A' if 'a' in word else 'B'}" for word in text.split()) for text in TEXTS * 5]
    file.write_text("\n\n".join(sentences) + "\n", "utf-8")
    sizes = {"rnn_tagger.encoder.hidden_size": 6, "rnn_tagger.encoder.embedding_size": 5}
    settings = {"fine_tuning.features": str(features), "data.train": (str(file),), "data.valid": (str(file),)}
    return TagRun.build({**SIZES, **sizes, **settings, **changes})


@pytest.mark.parametrize("family", ["bert", "gpt", "transformer", "seq2seq"])
def test_a_tagger_over_features_says_so_and_has_no_heads(
    folders: dict[str, Path], tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tag_run(tmp_path, folders[family])
    train_run(config, tmp_path / "run")
    out = str(tmp_path / "run")
    file = str(tmp_path / "words.conll")
    tagged: Any = regard.load(tmp_path / "run", threads=1)
    assert len(tagged.tag([TEXTS[0]])[0].tags) == 7
    assert run(["evaluate", out, file]) == 0
    assert run(["info", out]) == 0
    assert f"features: frozen {family}, layer" in capsys.readouterr().out
    assert run(["see", out, TEXTS[0], "--out", str(tmp_path / "record.json")]) == 0
    assert [kind.name for kind in Record.read(tmp_path / "record.json").attention] == ["mix"]
    assert run(["heads", out, file]) == 2
    assert "no attention: it is an RNN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "family", "objective"),
    [
        ("classify", "gpt", TextClassificationObjective),
        ("tag", "bert", RnnTaggingObjective),
        ("tag", "transformer", RnnTaggingObjective),
    ],
)
def test_an_interrupted_run_ends_in_the_same_bits(
    folders: dict[str, Path],
    data: Path,
    tmp_path: Path,
    task: str,
    family: str,
    objective: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5}
    features = folders[family]
    config: ClassifyRun | TagRun = (
        classify_run(data, features, **settings) if task == "classify" else tag_run(tmp_path, features, **settings)
    )
    train_run(config, tmp_path / "uninterrupted")
    num_starts = sittings(objective, lambda: train_run(config, tmp_path / "interrupted"), monkeypatch)
    assert num_starts > 1
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("uninterrupted", "interrupted")]
    assert weights[0] == weights[1]


def test_attribution_is_refused_and_exports_are_named(
    folders: dict[str, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    train_run(classify_run(data, folders["bert"], **{"training.steps": 1}), tmp_path / "run")
    assert run(["convert", out, str(tmp_path / "copy"), "--to", "regard"]) == 0
    copies = [regard.load(tmp_path / name, threads=1)(TEXTS[1]).probability for name in ("run", "copy")]
    assert copies[0] == copies[1]
    for arguments, message in [
        (
            ["see", out, TEXTS[0], "--attribution", "--out", str(tmp_path / "page.html")],
            "this one reads frozen features",
        ),
        (["convert", out, str(tmp_path / "hf")], "is for Regard alone (`regard classify` uses this one)"),
        (["convert", out, str(tmp_path / "int8"), "--precision", "int8"], "cannot be written for the engine"),
    ]:
        assert run(arguments) == 2
        assert message in capsys.readouterr().err


def test_other_features_than_those_of_training_are_refused(
    folders: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    train_run(classify_run(data, folders["bert"], **{"training.steps": 1}), tmp_path / "run")
    features = tmp_path / "run/features"
    weights = bytearray((features / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (features / "model.safetensors").write_bytes(weights)
    (features / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match="not the features that the model was trained with"):
        regard.load(tmp_path / "run")


def test_what_has_no_such_layers_is_refused(folders: dict[str, Path], data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--feature-layers 9: the model of the features has layers 0 to 2"):
        train_run(classify_run(data, folders["bert"], "9"), tmp_path / "run")
    with pytest.raises(UsageError, match="--feature-layers 0: the model of the features has layers 1 to 2"):
        train_run(classify_run(data, folders["seq2seq"], "0"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"or the number of a layer, not 'lasst' \(did you mean last\?\)"):
        classify_run(data, folders["bert"], "lasst")
    with pytest.raises(ConfigError, match=r"feature_layers \(mix\) needs --features"):
        ClassifyRun.build({"fine_tuning.feature_layers": "mix"})
    assert not (tmp_path / "run/features").exists()
