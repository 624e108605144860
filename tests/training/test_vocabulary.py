"""Extended vocabularies: old rows keep their bits, new ones are means, texts become shorter, other tools open them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.checkpoint.causal_dir import load_causal_lm
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.runs import RunConfig, build_run
from regard.errors import ConfigError, UsageError
from regard.tasks.classification import ClassificationObjective
from regard.text.tokenizer import OTHER_SIDE, SPECIAL_TOKENS, Tokenizer
from regard.text.train import train_tokenizer
from regard.training.batch_procedure import build_experiment
from regard.training.run import train_run
from tests.checkpoint.samples import random_model, small_config
from tests.encoders import saved_encoder
from tests.training.listener import Listener, sittings
from tests.training.task_data import SENTENCES, write_data

COMMON = {"training.threads": 1, "training.precision": "float32", "training.batch_tokens": 256, "training.steps": 3}
NEW_SENTENCES = tuple(sentence.replace("the w", "the wholesaled w") for sentence in SENTENCES)
TEXT = "the wholesaled was lovely"
ENCODER_TASKS = ("classify", "tag", "answer", "masked-lm")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, a language model and translators without the word wholesaled."""
    folder = tmp_path_factory.mktemp("models")
    saved_encoder(folder / "encoder", SENTENCES, kind="wordpiece")
    documents = {**COMMON, "preset": "micro", "tokenizer.kind": "bpe", "documents.sequence_length": 16}
    documents |= {"gpt.positions": "learned", "data.train": (str(write_data(folder, "causal-lm")),)}
    train_run(build_run("causal-lm", documents), folder / "causal-lm")
    pairs = {**COMMON, "preset": "micro", "training.tune_length_penalty": False}
    pairs["data.train"] = (str(write_data(folder, "translate")),)
    train_run(build_run("translate", {**pairs, "tokenizer.kind": "bpe"}), folder / "shared")
    separate = {"tokenizer.kind": "unigram", "tokenizer.joint": False, "model.output_bias": True}
    train_run(build_run("translate", {**pairs, **separate}), folder / "separate")
    rnn = {"architecture": "rnn", "tokenizer.kind": "wordpiece"}
    train_run(build_run("translate", {**pairs, **rnn}), folder / "rnn")
    return folder


def configure(folder: Path, task: str, base: Path, **settings: Any) -> RunConfig:
    """Config of a run with an extended vocabulary."""
    data = write_data(folder, task, NEW_SENTENCES)
    common = {**COMMON, "data.train": (str(data),), "pretrained": str(base), "tokenizer.extend": "texts"}
    if task in ("masked-lm", "causal-lm"):
        common["documents.sequence_length"] = 12
    return build_run(task, {**common, **settings})


def assert_extends(table: Tensor, old_table: Tensor, new: Tokenizer, old: Tokenizer) -> None:
    """Assert that old rows keep their bits, and that the row of a new word is the mean of those of its old subwords."""
    assert len(table) == new.vocab_size > old.vocab_size
    assert torch.equal(table[: old.vocab_size], old_table[: old.vocab_size])
    token_id = next(token_id for token_id in new.encode(TEXT).ids if token_id >= old.vocab_size)
    subwords = [piece.id for piece in old.backend.model.tokenize(new.backend.id_to_token(token_id))]
    assert len(subwords) > 1
    assert torch.allclose(table[token_id], old_table[subwords].mean(0), atol=1e-6)


@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_encoders_of_every_task_get_new_subwords(models: Path, tmp_path: Path, task: str) -> None:
    config = configure(tmp_path, task, models / "encoder")
    experiment = build_experiment(config, tmp_path / "prepared")
    experiment.prepare()
    initial = dict(experiment.trainable().model.state_dict())
    listener = Listener()
    train_run(config, tmp_path / "run", listeners=[listener])
    old = load_encoder(models / "encoder")
    new = load_encoder(tmp_path / "run")
    name = "token_embedding.weight"
    assert_extends(initial[name], old.weights[name], new.tokenizer, old.tokenizer)
    assert new.config.vocab_size == len(new.weights[name]) == new.tokenizer.vocab_size
    assert len(new.tokenizer.encode(TEXT).ids) < len(old.tokenizer.encode(TEXT).ids)
    assert any("new subwords; the training texts have" in line for line in listener.of("plan")[0]["lines"])


@pytest.mark.parametrize(("task", "suffix"), [("classify", "SequenceClassification"), ("masked-lm", "MaskedLM")])
def test_transformers_opens_extended_encoders(models: Path, tmp_path: Path, task: str, suffix: str) -> None:
    transformers = pytest.importorskip("transformers")
    train_run(configure(tmp_path, task, models / "encoder"), tmp_path / "run")
    model = getattr(transformers, f"AutoModelFor{suffix}").from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    loaded = load_encoder(tmp_path / "run")
    assert model.config.vocab_size == len(tokenizer) == loaded.tokenizer.vocab_size
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert inputs["input_ids"][0, 1:-1].tolist() == loaded.tokenizer.encode(TEXT).ids
    with torch.no_grad():
        logits = model(**inputs).logits
    if task == "classify":
        probabilities = regard.load(str(tmp_path / "run"))(TEXT).probabilities
        expected = dict(zip(model.config.id2label.values(), logits.softmax(-1)[0].tolist(), strict=True))
        assert probabilities == pytest.approx(expected, abs=0.2)  # ours are calibrated
        assert max(probabilities, key=probabilities.__getitem__) == max(expected, key=expected.__getitem__)
    else:
        assert logits.shape[-1] == loaded.tokenizer.vocab_size


def test_a_language_model_gets_new_subwords(models: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = configure(tmp_path, "causal-lm", models / "causal-lm")
    experiment = build_experiment(config, tmp_path / "prepared")
    experiment.prepare()
    initial = dict(experiment.trainable().model.state_dict())
    train_run(config, tmp_path / "run")
    old = load_causal_lm(models / "causal-lm")
    new = load_causal_lm(tmp_path / "run")
    for name in {"token_embedding.weight", "lm_head.weight"} & initial.keys():
        assert_extends(initial[name], old.weights[name], new.tokenizer, old.tokenizer)
    assert len(new.tokenizer.encode(TEXT).ids) < len(old.tokenizer.encode(TEXT).ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval()
    assert (model.config.model_type, model.config.vocab_size) == ("gpt2", new.tokenizer.vocab_size)
    assert str(regard.load(str(tmp_path / "run"))("the wholesaled"))


@pytest.mark.parametrize("base", ["shared", "separate", "rnn"])
def test_translators_get_new_subwords_on_both_sides(models: Path, tmp_path: Path, base: str) -> None:
    config = configure(tmp_path, "translate", models / base)
    experiment = build_experiment(config, tmp_path / "prepared")
    (tmp_path / "prepared").mkdir()
    experiment.prepare()
    initial = dict(experiment.trainable().model.state_dict())
    train_run(config, tmp_path / "run")
    old = load_translator(models / base)
    new = load_translator(tmp_path / "run")
    is_shared = old.config.share_embeddings
    tables = {"token_embedding.weight": "source"} if is_shared else {"source_embedding.weight": "source"}
    for name, side in tables.items():
        assert_extends(initial[name], old.weights[name], getattr(new, side), getattr(old, side))
    for name in {"target_embedding.weight", "lm_head.weight", "lm_head_bias"} & initial.keys():
        size = old.target.vocab_size
        assert len(initial[name]) == new.target.vocab_size > size
        assert torch.equal(initial[name][:size], old.weights[name][:size])
    assert ("lm_head_bias" in initial) == (base == "separate")
    assert (new.config.source_vocab_size, new.config.target_vocab_size) == (
        new.source.vocab_size,
        new.target.vocab_size,
    )
    assert len(new.source.encode(TEXT).ids) < len(old.source.encode(TEXT).ids)
    assert len(new.target.encode(TEXT.upper()).ids) < len(old.target.encode(TEXT.upper()).ids)
    assert isinstance(str(regard.load(str(tmp_path / "run"))(TEXT)), str)


def over_one_vocabulary(source: Tokenizer, target: Tokenizer) -> list[Tokenizer]:
    """The tokenizers with one vocabulary, as those of Marian: the tokens of both, the other side's marked as unused."""
    tokens = [
        [tokenizer.backend.id_to_token(index) for index in range(tokenizer.vocab_size)]
        for tokenizer in (source, target)
    ]
    own = [tokens[0][len(SPECIAL_TOKENS) :], tokens[1][len(SPECIAL_TOKENS) :]]
    tokenizers = []
    for side, tokenizer in enumerate((source, target)):
        marks = ["" if side == owner else OTHER_SIDE for owner in (0, 1)]
        names = [
            *SPECIAL_TOKENS,
            *(mark + token for mark, side_tokens in zip(marks, own, strict=True) for token in side_tokens),
        ]
        content = json.loads(tokenizer.to_json())
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict):
            content["model"]["vocab"] = {token: token_id for token_id, token in enumerate(names)}
        else:
            scores = {str(token): float(score) for token, score in vocabulary}
            content["model"]["vocab"] = [[token, scores.get(token, 0.0)] for token in names]
        tokenizers.append(Tokenizer.from_json(json.dumps(content)))
    return tokenizers


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_two_tokenizers_over_one_vocabulary_stay_aligned(tmp_path: Path, kind: str) -> None:
    upper_sentences = [sentence.upper() for sentence in SENTENCES]
    trained = [train_tokenizer(texts, TokenizerConfig(kind=kind)) for texts in (SENTENCES, upper_sentences)]
    source, target = over_one_vocabulary(*trained)
    size = source.vocab_size
    assert target.vocab_size == size
    config = small_config(source_vocab_size=size, target_vocab_size=size)
    save_translator(
        tmp_path / "base",
        config,
        random_model(config).state_dict(),
        tokenizers={"source": source, "target": target},
        decoding=DecodingConfig(),
        metadata={},
        card="",
    )
    run = configure(tmp_path, "translate", tmp_path / "base", **{"training.tune_length_penalty": False})
    (tmp_path / "prepared").mkdir()
    experiment = build_experiment(run, tmp_path / "prepared")
    experiment.prepare()
    table = experiment.trainable().model.state_dict()["token_embedding.weight"]
    train_run(run, tmp_path / "run")
    new = load_translator(tmp_path / "run")
    old_table = load_translator(tmp_path / "base").weights["token_embedding.weight"]
    assert new.config.share_embeddings
    assert new.source.vocab_size == new.target.vocab_size == len(table) > size
    assert torch.equal(table[:size], old_table)
    for tokenizer, old, text in ((new.source, source, TEXT), (new.target, target, TEXT.upper())):
        new_ids = [token_id for token_id in tokenizer.encode(text).ids if token_id >= size]
        assert new_ids
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
        for token_id in new_ids:
            subwords = [piece.id for piece in old.backend.model.tokenize(tokenizer.backend.id_to_token(token_id))]
            assert torch.allclose(table[token_id], old_table[subwords].mean(0), atol=1e-6)
    assert not {*new.source.encode(TEXT).ids} & {*new.target.encode(TEXT.upper()).ids}


def test_lora_trains_the_embeddings_of_an_extended_vocabulary(models: Path, tmp_path: Path) -> None:
    config = configure(tmp_path, "translate", models / "separate", **{"lora.rank": 2})
    (tmp_path / "run").mkdir()
    experiment = build_experiment(config, tmp_path / "run")
    experiment.prepare()
    model = experiment.trainable().model
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad and "lora_" not in name}
    assert trained == {"source_embedding.weight", "target_embedding.weight", "lm_head_bias"}


def test_words_of_a_file_become_single_tokens(models: Path, tmp_path: Path) -> None:
    words = tmp_path / "terms.txt"
    words.write_text("wholesaled\n\nw0w1\n", "utf-8")
    config = configure(tmp_path, "classify", models / "encoder", **{"tokenizer.extend": str(words)})
    train_run(config, tmp_path / "run")
    tokenizer = load_encoder(tmp_path / "run").tokenizer
    assert tokenizer.encode("wholesaled").subwords == ["wholesaled"]
    assert tokenizer.vocab_size == load_encoder(models / "encoder").tokenizer.vocab_size + 2


def test_an_interrupted_run_keeps_its_vocabulary(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tmp_path / "terms.txt"
    words.write_text("wholesaled\n", "utf-8")
    settings = {"tokenizer.extend": str(words), "training.steps": 8, "training.save_every": 3, "lora.rank": 2}
    config = configure(tmp_path, "classify", models / "encoder", **settings)
    train_run(config, tmp_path / "whole")

    def resume() -> None:
        if (tmp_path / "killed/run.json").exists():
            words.write_text("another\n", "utf-8")  # the run has its own copy of the vocabulary
        train_run(config, tmp_path / "killed")

    assert sittings(ClassificationObjective, resume, monkeypatch, every=5) > 1
    whole = load_encoder(tmp_path / "whole")
    killed = load_encoder(tmp_path / "killed")
    assert whole.tokenizer.digest == killed.tokenizer.digest
    assert all(torch.equal(killed.weights[name], tensor) for name, tensor in whole.weights.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora.rank": 2, "lora.keep_adapter": True}, "an adapter fits the vocabulary of its base model"),
        ({"fine_tuning.freeze_encoder": True}, "adds embeddings that have to be trained: leave out --freeze-encoder"),
        ({"distillation.student_layers": 1}, "a student has the vocabulary of its teacher"),
        ({"trainable.freeze": "*embedding*"}, r"freezes token_embedding\.weight, whose new rows have to be trained"),
        ({"pretrained": "", "architecture": "pretrained"}, "extends that of a model: add --from MODEL"),
        ({"pretrained": "", "architecture": "rnn"}, "extends that of a model: add --from MODEL"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    models: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_run(configure(tmp_path, "classify", models / "encoder", **settings), tmp_path / "run")


def test_a_vocabulary_of_characters_is_not_extended(tmp_path: Path) -> None:
    pairs = {**COMMON, "preset": "micro", "data.train": (str(write_data(tmp_path, "translate")),)}
    train_run(build_run("translate", {**pairs, "tokenizer.kind": "characters"}), tmp_path / "base")
    with pytest.raises(UsageError, match="the tokens of the model are single characters"):
        train_run(configure(tmp_path, "translate", tmp_path / "base"), tmp_path / "run")
