"""Tables of the parts that models, training and views are composed of; plugins add to them by `regard.register`.

A config names a part in a setting whose choices are a table, so that names are checked with suggestions and those of
plugins are accepted in recipes, run.json and on the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from regard.tables import Registry


class Choices(Collection[str]):
    """Names of a table, with others before and after them.

    >>> list(Choices("none", Registry("number", {"pi": "math:pi"}), "all"))
    ['none', 'pi', 'all']
    """

    def __init__(self, *parts: str | Registry[Any]) -> None:
        self.parts = parts

    @property
    def tables(self) -> list[Registry[Any]]:
        """The tables among the parts."""
        return [part for part in self.parts if isinstance(part, Registry)]

    def __contains__(self, name: object) -> bool:
        return name in [part for part in self.parts if isinstance(part, str)] or any(
            name in table for table in self.tables
        )

    def __iter__(self) -> Iterator[str]:
        for part in self.parts:
            yield from [part] if isinstance(part, str) else part

    def __len__(self) -> int:
        return sum(1 for _ in self)


def tables_of(choices: Collection[str] | None) -> list[Registry[Any]]:
    """Tables that the choices of a setting are taken from.

    >>> [table.kind for table in tables_of(Choices("none", SCORES))], tables_of(("a", "b"))
    (['attention score'], [])
    """
    if isinstance(choices, Registry):
        return [choices]
    return choices.tables if isinstance(choices, Choices) else []


# ---- models


@dataclass(frozen=True)
class Family:
    """A model family: its config class and the module that is built from it, as objects or import strings."""

    config: Any
    model: Any
    engine: Any = None  # class with `from_weights(config, weights, precision)`; None: torch alone computes the model


FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        "transformer": Family(
            "regard.config.models:TransformerConfig",
            "regard.models.transformer:Transformer",
            engine="regard.engine.translator:TranslatorEngine",
        ),
        "seq2seq": Family("regard.config.rnn_models:Seq2SeqConfig", "regard.models.seq2seq:Seq2Seq"),
        "memory_network": Family(
            "regard.config.rnn_models:MemoryNetworkConfig", "regard.models.memory_network:MemoryNetwork"
        ),
        "elmo": Family("regard.config.rnn_models:ElmoConfig", "regard.models.elmo:Elmo"),
        "rnn_classifier": Family(
            "regard.config.rnn_models:RnnClassifierConfig", "regard.models.rnn_text:RnnClassifier"
        ),
        "rnn_tagger": Family("regard.config.rnn_models:RnnTaggerConfig", "regard.models.rnn_text:RnnTagger"),
        "bert": Family(
            "regard.config.models:BertConfig",
            "regard.models.bert:Bert",
            engine="regard.engine.encoder:EncoderEngine",
        ),
        "gpt": Family(
            "regard.config.models:GptConfig", "regard.models.gpt:Gpt", engine="regard.engine.causal:CausalEngine"
        ),
    },
)

_POSITIONS = "regard.attention.positions"
POSITIONS: Registry[Any] = Registry(  # subclasses of `Positions`
    "position scheme",
    {
        "sinusoidal": f"{_POSITIONS}:Sinusoidal",
        "interleaved": f"{_POSITIONS}:InterleavedSinusoidal",
        "concatenated": f"{_POSITIONS}:Concatenated",
        "learned": f"{_POSITIONS}:Learned",
        "rotary": f"{_POSITIONS}:Rotary",
        "alibi": f"{_POSITIONS}:Alibi",
        "relative": f"{_POSITIONS}:RelativeBias",
        "none": f"{_POSITIONS}:Positions",
    },
)

_SCORES = "regard.attention.scores"
SCORES: Registry[Any] = Registry(  # (query size, key size, hidden size) → Score
    "attention score",
    {
        "additive": f"{_SCORES}:Additive",
        "dot": f"{_SCORES}:Dot",
        "bilinear": f"{_SCORES}:Bilinear",
        "concat": f"{_SCORES}:Concat",
    },
)


# ---- training

OPTIMIZERS: Registry[Any] = Registry(  # subclasses of `UpdateRule`
    "optimizer",
    {
        "muon": "regard.training.update_rules:MuonRule",
        "adamw": "regard.training.update_rules:AdamWRule",
    },
)


# ---- views


@dataclass(frozen=True)
class View:
    """One way to show a record: a figure, lines of text, a view of the page; functions may be import strings."""

    description: str
    draw: Any = None  # (FigureRequest) → Drawing; None: there is no figure
    render: Any = None  # (TerminalRequest) → lines of text; None: there is none in the terminal
    in_page: bool = False  # whether the page can open with it


_FIGURES = "regard.view.figures"
_TERMINAL = "regard.view.terminal_views"
VIEWS: Registry[View] = Registry(
    "view",
    {
        "lines": View(
            "lines from queries to keys, for one token or for all",
            draw=f"{_FIGURES}.lines_figure:draw_lines",
            render=f"{_TERMINAL}:render_lines",
            in_page=True,
        ),
        "heads": View(
            "a thumbnail of every head",
            draw=f"{_FIGURES}.heads_figure:draw_heads",
            render=f"{_TERMINAL}:render_heads",
            in_page=True,
        ),
        "matrix": View(
            "attention matrix of one head",
            draw=f"{_FIGURES}.matrix_figure:draw_matrix",
            render=f"{_TERMINAL}:render_matrix",
            in_page=True,
        ),
        "decoding": View(
            "probability of each generated token, with alternatives",
            draw=f"{_FIGURES}.decoding_figure:draw_steps",
            render=f"{_TERMINAL}:render_steps",
            in_page=True,
        ),
        "beam-tree": View(
            "tree of the beam search",
            draw=f"{_FIGURES}.decoding_figure:draw_beam_tree",
            render=f"{_TERMINAL}:render_beams",
            in_page=True,
        ),
        "math": View(
            "six steps from a query to the output of a head",
            draw=f"{_FIGURES}.math_figure:draw_math",
            render=f"{_TERMINAL}:render_math",
            in_page=True,
        ),
        "positions": View(
            "positional encodings and their similarity",
            draw=f"{_FIGURES}.positions_figure:draw_positions",
            render=f"{_TERMINAL}:render_positions",
            in_page=True,
        ),
        "prediction": View(
            "probabilities of labels or answers",
            draw=f"{_FIGURES}.prediction_figure:draw_prediction",
            render=f"{_TERMINAL}:render_prediction",
            in_page=True,
        ),
        "flow": View(
            "attention rollout to one token through all layers",
            draw=f"{_FIGURES}.flow_figure:draw_flow",
            render=f"{_TERMINAL}:render_flow",
            in_page=True,
        ),
        "hops": View(
            "attention of each hop of a memory network",
            draw=f"{_FIGURES}.hops_figure:draw_hops",
            render=f"{_TERMINAL}:render_hops",
            in_page=True,
        ),
        "compare": View("two records side by side", in_page=True),
    },
)
