"""The table of measures: what a claim can measure of a model, by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from recipes.claims.rules import HAS_REACHED, VALUE
from regard.errors import ConfigError, nearest
from regard.registry import resolve

if TYPE_CHECKING:
    from recipes.claims.data import ClaimData
    from regard.config.runs import RunConfig

Points = tuple[tuple[float, float], ...]
HEAD_STATISTICS = ("itself", "previous", "next", "special", "largest", "broad", "distance")


@dataclass(frozen=True)
class Subject:
    """What is measured: a trained model with its data, or settings where nothing is trained."""

    settings: Mapping[str, Any]  # of this model, those that all share included
    seed: int
    threads: int
    folder: Path  # of the run, or of the measure's own files
    data: ClaimData | None = None
    run: RunConfig | None = None  # None where nothing is trained


@dataclass(frozen=True)
class Measurement:
    """Numbers of one model and seed."""

    numbers: dict[str, float]
    curve: Points = ()  # for the figure
    samples: dict[str, list[float]] = field(default_factory=dict)  # number → its value for every example

    @classmethod
    def from_value(cls, value: float, **numbers: float) -> Measurement:
        """A measurement of one main number, and others beside it.

        >>> Measurement.from_value(3.5, parameters=7).numbers
        {'value': 3.5, 'parameters': 7}
        """
        return cls({VALUE: float(value), **numbers})

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {"numbers": self.numbers, "curve": [list(point) for point in self.curve], "samples": self.samples}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Build from the values of `to_dict`."""
        curve = tuple((float(x), float(y)) for x, y in values["curve"])
        return cls(dict(values["numbers"]), curve, samples=dict(values["samples"]))


@dataclass(frozen=True)
class Measure:
    """One measure; its function takes a `Subject` and parameters by name."""

    function: str  # module:function below recipes.claims.measures
    unit: str  # of its numbers
    numbers: tuple[str, ...] = (VALUE,)  # names; {groups} stands for each value of a parameter, * for anything
    trains: bool = True  # whether models are trained before
    is_exact: bool = False  # whether a number has no spread: its interval is the number itself
    has_samples: bool = False  # whether the interval is over examples where there is one seed
    x_label: str = ""  # of its curve
    quick: Mapping[str, Any] = field(default_factory=dict)  # parameters of a short trial
    quick_steps: int = 2  # updates of a short trial

    def min_seeds(self, usual: int) -> int:
        """Fewest seeds that give an interval."""
        return 1 if self.is_exact or self.has_samples else usual

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for a parameter that the measure does not have, or one that it lacks."""
        _, *known = inspect.signature(self.resolve()).parameters.values()
        names = [parameter.name for parameter in known]
        for name in parameters:
            if name not in names:
                allowed = ", ".join(names) or "none"
                raise ConfigError(f"measure: unknown parameter {name!r}{nearest(name, names)}: there are {allowed}")
        for parameter in known:
            if parameter.default is parameter.empty and parameter.name not in parameters:
                raise ConfigError(f"measure: the parameter {parameter.name} is missing")

    def number_names(self, parameters: Mapping[str, Any]) -> list[str]:
        """Names that its numbers may have with these parameters; `*` stands for anything.

        >>> MEASURES["metric_by_length"].number_names({"groups": [5, 10]})
        ['upto_5', 'upto_10', 'over_5', 'over_10']
        """
        names = []
        for template in self.numbers:
            lists = {name: parameters[name] for _, name, _, _ in Formatter().parse(template) if name}
            for name, values in lists.items():
                if not isinstance(values, list):
                    raise ConfigError(f"measure: {name} must be a list of numbers, not {values!r}")
            for combination in product(*lists.values()):
                names.append(template.format(**dict(zip(lists, combination, strict=True))))
        return names

    def resolve(self) -> Any:
        """The function; torch is imported here."""
        return resolve(f"recipes.claims.measures.{self.function}")


MEASURES: dict[str, Measure] = {
    "test_metric": Measure("quality:test_metric", "metric on test data"),
    "validation_metric": Measure("quality:validation_metric", "metric on validation data", x_label="updates"),
    "metric_by_length": Measure(
        "quality:metric_by_length",
        "metric on test data",
        ("upto_{groups}", "over_{groups}"),
        x_label="words of the source",
    ),
    "probability_by_position": Measure(
        "quality:probability_by_position",
        "probability of the right token",
        ("first", "last"),
        x_label="source position",
    ),
    "minutes_to": Measure("quality:minutes_to", "minutes of training to the metric", (VALUE, HAS_REACHED)),
    "parameters": Measure("cost:parameters", "parameters", is_exact=True),
    "training_rate": Measure("cost:training_rate", "tokens trained on per second", quick_steps=20),
    "cost_by_length": Measure(
        "cost:cost_by_length",
        "seconds per update",
        ("seconds_{lengths}_{threads}", "speedup_{lengths}", "growth"),
        trains=False,
        x_label="tokens of source and target",
        quick={"rounds": 1, "tokens": 64},
    ),
    "prediction_rate": Measure(
        "cost:prediction_rate",
        "predictions learned from per second",
        ("every_position", "last_position"),
        trains=False,
        quick={"repeats": 1, "length": 8},
    ),
    "influence": Measure(
        "reach:influence",
        "influence on the prediction",
        ("near", "far", "retained"),
        x_label="tokens between",
        quick={"predictions": 20},
    ),
    "probe": Measure(
        "probes:probe",
        "R² of a linear probe",
        ("layer_*", "embeddings", "last", "best"),
        x_label="layer (0: embeddings)",
    ),
    "head_statistics": Measure(
        "heads:head_statistics", "mean over heads", ("argmax_itself", *HEAD_STATISTICS), quick={"examples": 4}
    ),
    "head_distance": Measure("heads:head_distance", "mean distance between heads of a layer, 0–1"),
    "encoder_heads": Measure(
        "heads:head_statistics",
        "mean over heads",
        ("argmax_itself", *HEAD_STATISTICS),
        trains=False,
        has_samples=True,
        quick={"examples": 4},
    ),
    "coreference_links": Measure(
        "heads:coreference_links",
        "% right",
        ("chosen", "both", "nearest", "best"),
        trains=False,
        quick={"pairs": 4},
    ),
    "shift_error": Measure(
        "positions:shift_error", "largest error of a linear map", trains=False, is_exact=True, x_label="shift"
    ),
}
