"""Tables of parts: scores, optimizers, positions and views that a package adds work wherever ours do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.dropout import Noise
from regard.attention.positions import Positions, build_positions
from regard.checkpoint.native import save_text_model
from regard.cli import run
from regard.components import FAMILIES, OPTIMIZERS, POSITIONS, SCORES, VIEWS, Choices, Family, View
from regard.config.data import TokenizerConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.config.settings import Config, knob
from regard.config.text_classifier import TextClassifierConfig
from regard.config.training import TrainingConfig
from regard.engine import causal
from regard.engine.translator import unsupported_transformer_reason
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.text_classifier import TextBatch, TextClassifierModel
from regard.packed_tokens import Tokens
from regard.plugins import TABLES
from regard.tables import PluginWarning, Registry, resolve
from regard.text.train import train_tokenizer
from regard.training.auto_config import resolve_training_config
from regard.training.flat_weights import FlatWeights
from regard.training.optimizer import Optimizer
from regard.training.update_rules import UpdateRule
from regard.view.drawing import Drawing
from regard.view.figure import figure
from regard.view.terminal_views import render_view
from tests.view.samples import sample_record

Extend = Callable[[str, str, Any], None]
SOURCE = Tokens.from_rows([[5, 6, 7, 1], [8, 1]])
TARGET = Tokens.from_rows([[3, 9, 10], [3, 4]])


@pytest.fixture
def extend() -> Iterator[Extend]:
    """Register a part, as a plugin does, until the test ends."""
    added: list[tuple[Registry[Any], str]] = []

    def register(kind: str, name: str, target: Any) -> None:
        regard.register(kind, name, target)
        added.append((resolve(TABLES[kind]), name))

    yield register
    for table, name in added:
        del table.entries[name], table.owners[name]


@pytest.mark.parametrize("table", [FAMILIES, POSITIONS, SCORES, OPTIMIZERS])
def test_every_entry_can_be_imported(table: Registry[Any]) -> None:
    assert len(table) >= 2 and all(entry is not None for entry in table.values())


def test_every_view_can_be_drawn_rendered_or_opened() -> None:
    for view in VIEWS.values():
        functions = [resolve(view.draw), resolve(view.render)]
        assert view.in_page and all(function is None or callable(function) for function in functions)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("positions", "rotary", "the position scheme 'rotary' of mine has the name of one of regard"),
        ("score", "dot", "the attention score 'dot' of mine"),
        ("optimizer", "muon", "the optimizer 'muon' of mine"),
        ("view", "heads", "the view 'heads' of mine"),
        ("family", "gpt", "the model family 'gpt' of mine"),
    ],
)
def test_a_name_that_is_taken_is_refused(kind: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        regard.register(kind, name, "mine.parts:PART")


def test_choices_are_names_and_tables_in_order(extend: Extend) -> None:
    choices = Choices("none", SCORES, "hard")
    assert list(choices) == ["none", "additive", "dot", "bilinear", "concat", "hard"]
    assert "dot" in choices and "none" in choices and "rotary" not in choices
    extend("score", "cosine", "mine.scores:Cosine")
    assert len(choices) == 7 and "cosine" in choices


def test_a_setting_accepts_the_names_of_a_table_that_grows(extend: Extend) -> None:
    @dataclass(frozen=True, kw_only=True)
    class PartConfig(Config):
        part: str = knob("rotary", "Part.", choices=POSITIONS)

    with pytest.raises(ConfigError, match=r"part must be one of .*, not 'spiral'"):
        PartConfig(part="spiral")
    extend("positions", "spiral", "mine.positions:Spiral")
    assert PartConfig.from_dict({"part": "spiral"}).part == "spiral"
    with pytest.raises(ConfigError, match=r"not 'spirl' \(did you mean spiral\?\)"):
        PartConfig(part="spirl")


# ---- families


@dataclass(frozen=True, kw_only=True)
class CountConfig(TextClassifierConfig):
    """A bag of words."""

    family: str = knob("count", "Model family.", choices=("count",))


class CountModel(TextClassifierModel):
    """Sum of the logits of a text's words."""

    def __init__(self, config: CountConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.num_labels)

    def label_logits(self, batch: TextBatch, noise: Noise | None = None) -> Tensor:
        ids, packed = self.to_tensors(batch.tokens)
        return packed.pad(self.token_embedding(ids)).sum(1)


class CountEngine(CountModel):
    """The same in NumPy."""

    @classmethod
    def from_weights(cls, config: CountConfig, weights: dict[str, Any], precision: str) -> Self:
        engine = cls(config)
        engine.table = weights["token_embedding.weight"]
        return engine

    def probabilities(self, batch: TextBatch) -> Any:
        exponentials = np.exp([self.table[row].sum(0) for row in batch.tokens])
        return exponentials / exponentials.sum(1, keepdims=True)


def test_a_family_with_an_engine_builder_runs_in_it_and_one_without_in_torch(extend: Extend, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["good bad"], TokenizerConfig(vocab_size=280))
    config = CountConfig(vocab_size=tokenizer.vocab_size, num_labels=2)
    extend("family", "count", Family(CountConfig, CountModel, engine=CountEngine))
    weights = CountModel(config).state_dict()
    metadata = {"labels": ["no", "yes"], "max_length": 9}
    save_text_model(tmp_path, config, weights, tokenizer=tokenizer, task="classify", metadata=metadata, card="")
    engine = regard.load(tmp_path, backend="engine")
    in_torch = regard.load(tmp_path, backend="torch")
    assert isinstance(engine.classifier.model, CountEngine) and type(in_torch.classifier.model) is CountModel
    assert engine("good").probability == pytest.approx(in_torch("good").probability, abs=1e-6)
    FAMILIES.entries["count"] = Family(CountConfig, CountModel)
    with pytest.raises(UsageError, match="the family count has no engine builder, torch computes it"):
        regard.load(tmp_path, backend="engine")
    with pytest.warns(PluginWarning, match="the family count has no engine builder: torch computes it"):
        regard.load(tmp_path)


# ---- positions


class Parity(Positions):
    """Tokens prefer keys at a distance of two."""

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances = key_positions[:, None, :] - query_positions[:, :, None]
        return (distances % 2 == 0).float()[:, None]


def test_positions_of_a_package_change_what_a_transformer_computes(extend: Extend) -> None:
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    config = GptConfig(vocab_size=11, hidden_size=4, stack=stack, positions="none")
    extend("positions", "parity", Parity)
    plain = build_model(config)
    initialize_weights(plain, 1)
    biased = build_model(config.override({"positions": "parity"}))
    biased.load_state_dict(plain.state_dict())
    assert not np.allclose(plain.logits(SOURCE), biased.logits(SOURCE), atol=1e-4)
    assert isinstance(build_positions("parity", 8, 4), Parity)


def test_the_engine_names_positions_that_it_lacks(extend: Extend) -> None:
    extend("positions", "parity", Parity)
    reason = "it has no parity positions"
    assert unsupported_transformer_reason(TransformerConfig(positions="parity")) == reason
    assert causal.unsupported_reason(GptConfig(positions="parity")) == reason
    for name in ("sinusoidal", "learned", "rotary", "none", "alibi", "relative"):
        assert not unsupported_transformer_reason(TransformerConfig(positions=name))
        assert not causal.unsupported_reason(GptConfig(positions=name))


# ---- scores


class NegativeDistance:
    """The negative distance of query and key, which has no matrix that multiplies queries."""

    @classmethod
    def build(cls, query_size: int, key_size: int, hidden_size: int) -> Self:
        assert query_size == key_size
        return cls()

    def prepare(self, key: Tensor) -> Tensor:
        return key

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return -torch.cdist(query.to(key.dtype), key)


@pytest.mark.parametrize("input_feeding", ["none", "context", "output"])
def test_a_score_of_a_package_attends_at_once_and_step_by_step(extend: Extend, input_feeding: str) -> None:
    extend("score", "distance", NegativeDistance)
    sizes = {"source_vocab_size": 13, "target_vocab_size": 13, "embedding_size": 5, "hidden_size": 6}
    config = Seq2SeqConfig(**sizes, attention="distance", directions="one", input_feeding=input_feeding)
    model = build_model(config).eval()
    with regard.trace() as captured, torch.no_grad():
        hidden = model(SOURCE, TARGET)
        whole = torch.log_softmax(model.output_logits(hidden)[:, :13].float(), dim=-1)
    assert captured["decoder.attention"].weights.shape[2:] == (3, 4)
    state = model.start(SOURCE, max_length=4)
    for step, row in enumerate(((0, 3), (1, 4))):  # rows of the first two tokens of both targets
        tokens = np.array([TARGET.row(0)[step], TARGET.row(1)[step]], dtype=np.int32)
        candidates, state = model.step(tokens, state, 0)
        np.testing.assert_allclose(candidates.logprobs, whole[list(row)].numpy(), atol=1e-5)


# ---- optimizers


class Momentum(UpdateRule):
    """Gradient descent with momentum."""

    schedule = "constant"
    max_warmup_steps = 7

    def __init__(self, weights: FlatWeights, gradient: Tensor, **context: Any) -> None:
        super().__init__(weights, gradient, **context)
        self.velocity = torch.zeros_like(gradient)

    @classmethod
    def default_learning_rate(cls, hidden_size: int) -> float:
        return 0.25

    def step(self, rate: float) -> None:
        self.velocity.mul_(0.9).add_(self.gradient)
        self.weights.master.sub_(self.velocity, alpha=rate)

    def tensors(self, num_updates: int) -> dict[str, Tensor]:
        return {"velocity": self.velocity}


def build_weights() -> FlatWeights:
    model = build_model(GptConfig(vocab_size=11, hidden_size=4, stack=StackConfig(num_layers=1, num_heads=2)))
    initialize_weights(model, 1)
    return FlatWeights(model, "float32")


def update(optimizer: Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.weights.gradient.normal_(generator=torch.Generator().manual_seed(optimizer.updates))
        optimizer.reduce_gradient(1.0)
        optimizer.update(0.1)


def test_an_optimizer_of_a_package_updates_and_resumes_with_the_same_bits(extend: Extend) -> None:
    extend("optimizer", "momentum", Momentum)
    config = resolve_training_config(TrainingConfig(optimizer="momentum", max_gradient_norm=0.0), 4, 1000)
    assert (config.learning_rate, config.schedule) == (0.25, "constant")
    uninterrupted = Optimizer(build_weights(), config)
    update(uninterrupted, 3)
    interrupted = Optimizer(build_weights(), config)
    update(interrupted, 2)
    resumed = Optimizer(build_weights(), config)
    resumed.weights.master.copy_(interrupted.weights.master)
    resumed.load({name: tensor.clone() for name, tensor in interrupted.state().items()})
    update(resumed, 1)
    assert torch.equal(resumed.weights.master, uninterrupted.weights.master)
    assert not torch.equal(resumed.weights.master, build_weights().master)


# ---- views


def draw_title(request: Any) -> Drawing:
    drawing = Drawing(request.width, request.theme, height=20.0)
    drawing.text(0.0, 10.0, f"title: {request.record.title}")
    return drawing


def render_title(request: Any) -> list[str]:
    return [f"title: {request.record.title}"]


def test_a_view_of_a_package_is_drawn_and_printed(extend: Extend, tmp_path: Path) -> None:
    extend("view", "title", View("the title alone", draw=draw_title, render=render_title))
    record = sample_record()
    drawing = figure(record, "title")
    assert f"title: {record.title}" in drawing.svg and drawing.about == "title: the title alone"
    assert render_view(record, "title", width=80) == f"title: {record.title}"
    saved = str(record.save(tmp_path / "record.json", True))
    assert run(["figure", saved, "--view", "title", "--out", str(tmp_path / "title.svg")]) == 0
    assert run(["see", saved, "--view", "title", "--out", str(tmp_path / "see.svg")]) == 0
    assert (tmp_path / "title.svg").read_text() == (tmp_path / "see.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["see", "RECORD", "--view", "title", "--out", "x.html"], "the view title is not in the page: `regard figure`"),
        (
            ["see", "RECORD", "--view", "compare", "--out", "x.svg"],
            "the view compare is not a figure: the page shows it",
        ),
        (["figure", "RECORD", "--view", "compare", "--out", "x.svg"], "the view compare has no figure"),
        (["figure", "RECORD", "--view", "compare"], "the view compare is not for a terminal"),
        (["figure", "RECORD", "--view", "titel"], "unknown view 'titel' (did you mean title?)"),
    ],
)
def test_a_view_that_an_output_lacks_is_refused(
    extend: Extend, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    extend("view", "title", View("the title alone", draw=draw_title))
    saved = str(sample_record().save(tmp_path / "record.json", True))
    assert run([saved if argument == "RECORD" else argument for argument in arguments]) == 2
    assert message in capsys.readouterr().err
