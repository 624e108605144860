"""`regard info`: what a folder holds, also where its weights are pickled or its type is not read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.checkpoint import weights
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.export.convert import convert
from regard.cli import run
from regard.config.models import BertConfig, StackConfig
from regard.errors import CheckpointError
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.load import load
from regard.report.info import describe_folder
from tests.encoders import saved_encoder
from tests.scale import HANG_GUARD

TEXTS = ["the dog runs", "a cat sleeps", "rain"]
ALBERT = BertConfig(
    hidden_size=16,
    embedding_size=8,
    layer_groups=1,
    stack=StackConfig(num_layers=12, num_heads=2, feed_forward_size=20),
    head="masked",
    norm_eps=1e-12,
)


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model of type albert, as others publish it: without digests."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = load_encoder(saved_encoder(folder / "bert", TEXTS)).tokenizer
    model = Bert(ALBERT.override({"vocab_size": tokenizer.vocab_size}))
    initialize_bert(model, 1)
    model_type = save_encoder(
        folder / "albert",
        model.config,
        model.state_dict(),
        tokenizer=tokenizer,
        task="",
        metadata={},
        card="",
        preferred_type="albert",
    )
    assert model_type == "albert"
    (folder / "albert" / "MANIFEST.json").unlink()
    return folder / "albert"


def test_a_folder_with_pickled_weights_alone_has_its_type_head_and_size(
    albert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = describe_folder(albert)
    assert expected.parameters == sum(tensor.numel() for tensor in load_encoder(albert).weights.values())
    pickled = shutil.copytree(albert, tmp_path / "pickled")
    torch.save(load_encoder(albert).weights, pickled / weights.PICKLED_FILE)
    (pickled / weights.FILE).unlink()
    description = describe_folder(pickled)
    assert description.model == expected.model
    assert description.parameters == expected.parameters
    assert run(["info", str(pickled)]) == 0
    output = capsys.readouterr().out
    assert f"{expected.parameters:,} parameters (type albert)" in output
    assert "masked head" in output
    assert "only pickled ones, which are not opened" in output


@pytest.mark.parametrize("verb", ["info", "load", "convert", "classify"])
def test_an_unknown_model_type_is_answered_with_all_types_and_the_nearest(
    verb: str, albert: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(albert, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    message = r"a model of type 'gpt_neo', which is not read \(did you mean gpt_neox\?\): bert, .*marian.*regard-elmo"
    for model_type in ("gpt_neo", ["bert"], None, 7):
        (folder / "config.json").write_text(json.dumps({**fields, "model_type": model_type}), "utf-8")
        expected = message if model_type == "gpt_neo" else "no model_type|which is not read: bert, "
        with pytest.raises(CheckpointError, match=expected):
            match verb:
                case "info":
                    describe_folder(folder)
                case "convert":
                    convert(folder, tmp_path / "out")
                case "classify":
                    load(folder, task="classify")
                case _:
                    load(folder)


def test_hostile_small_files_are_named(albert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(albert, tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps({**content, "model": "x"}), "utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: model: an object is needed"):
        describe_folder(folder)


def test_the_documented_loading_works_after_import_regard_alone(tmp_path: Path) -> None:
    folder = saved_encoder(tmp_path / "model", TEXTS)
    code = f"import regard; print(regard.load({str(folder)!r}, task='embed').embed(['a dog']).vectors.shape)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_GUARD)
    assert process.stdout == "(1, 32)\n", process.stderr
