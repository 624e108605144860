"""A claim as a recipe file states it: models, data, what is measured, and the rule that decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.claims.measure import MEASURES, Measure
from recipes.claims.rules import Rule
from regard.checkpoint.atomic import read_json
from regard.config.settings import Config, knob
from regard.errors import ConfigError, UsageError, nearest
from regard.metric_table import METRICS

FOLDER = Path(__file__).parent
MIN_SEEDS = 3  # of a claim whose interval is over seeds
MAX_MINUTES = 8.0  # on two cores
PROSE = ("claim", "source", "topic", "method", "remark", "minutes")  # what may be reworded without a new run
TOPICS = (  # sections of the page of results
    "Recurrence and the bottleneck",
    "Parts of a Transformer",
    "Positions",
    "Heads",
    "Cost",
    "Pre-training and transfer",
    "Memory networks",
)
DATA = "data"  # setting of a model that replaces the claim's data


@dataclass(frozen=True, kw_only=True)
class ClaimConfig(Config):
    """A claim, as read from its JSON file."""

    claim: str = knob("", "the claim in one sentence")
    source: str = knob("", "who makes it, and where")
    topic: str = knob(TOPICS[0], "section of the page of results", choices=TOPICS)
    method: str = knob("", "how it is checked here")
    remark: str = knob("", "what else must be known to read the verdict")
    data: dict[str, Any] = knob(dict, "a named data set, or a kind of synthetic data with its settings")
    measure: dict[str, Any] = knob(dict, "name of the measure, with its parameters")
    settings: dict[str, Any] = knob(dict, "settings that all models share")
    bases: dict[str, Any] = knob(dict, "models that are trained first, with each seed; others start from them as @NAME")
    models: dict[str, Any] = knob(dict, "the models by name, each with its settings")
    seeds: tuple[int, ...] = knob((1, 2, 3), "every model is trained and measured with each seed")
    rule: tuple[str, ...] = knob((), "what must hold: 'plain < 20', 'attending - plain > 30'")
    minutes: float = knob(MAX_MINUTES, "needed on two cores", low=0, high=MAX_MINUTES)

    def check(self) -> None:
        """Reject an incomplete claim, rules about unknown models, and too few seeds for an interval."""
        for name in ("data", "measure", "settings", "bases", "models"):
            if not isinstance(getattr(self, name), dict):
                raise ConfigError(f"{name} must be an object of names and values")
        missing = [name for name in ("claim", "source", "measure", "models", "rule") if not getattr(self, name)]
        if missing:
            raise ConfigError(f"a claim needs {', '.join(missing)}")
        measure_name = self.measure.get("name")
        if measure_name not in MEASURES:
            suggestion = nearest(str(measure_name), MEASURES)
            raise ConfigError(f"measure: unknown name {measure_name!r}{suggestion}: there are {', '.join(MEASURES)}")
        for rule in self.rules:
            for model, _ in rule.references():
                if model not in self.models:
                    suggestion = nearest(model, self.models)
                    raise ConfigError(f"rule: {rule.text!r} names {model!r}, which is no model here{suggestion}")
        if len(self.seeds) < self.measure_row.min_seeds(MIN_SEEDS):
            raise ConfigError(f"seeds: an interval over seeds needs at least {MIN_SEEDS}, not {len(self.seeds)}")

    @property
    def rules(self) -> list[Rule]:
        """The rules, parsed."""
        return [Rule.parse(text) for text in self.rule]

    @property
    def measure_row(self) -> Measure:
        """What is measured."""
        return MEASURES[self.measure["name"]]

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the measure."""
        return {name: value for name, value in self.measure.items() if name != "name"}

    @property
    def unit(self) -> str:
        """What the numbers are, with the name of the metric that is measured.

        >>> read_claim(find_claim("positions-are-needed")).unit
        'exact match on test data'
        """
        metric = self.measure.get("metric")
        return self.measure_row.unit.replace("metric", METRICS[metric].field_name if metric else "metric")

    def digest(self) -> str:
        """SHA-256 of all that decides the verdict; the prose is not part of it."""
        return self._digest(PROSE)

    def run_digest(self) -> str:
        """SHA-256 of all that is trained and measured: another rule needs no new runs."""
        return self._digest((*PROSE, "rule"))

    def _digest(self, excluded: Sequence[str]) -> str:
        values = {name: value for name, value in self.to_dict().items() if name not in excluded}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def budget(self) -> float:
        """Minutes of training that the time limits add up to; those of runs without a limit are not known."""
        entries = [*({**self.settings, **entry} for entry in self.models.values()), *self.bases.values()]
        return len(self.seeds) * sum(float(entry.get("training.minutes", 0.0)) for entry in entries)


def read_claim(path: Path) -> ClaimConfig:
    """Read a claim from its recipe file."""
    return ClaimConfig.from_dict(read_json(path), where=str(path))


def claim_files() -> dict[str, Path]:
    """The recipe files of this folder by the name of their claim."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


def find_claim(name: str) -> Path:
    """Recipe file of a claim's name, or the file of that path."""
    files = claim_files()
    path = files.get(name, Path(name))
    if not path.is_file():
        raise UsageError(f"no claim {name!r}{nearest(name, files)}: --list shows them; a file's path works, too")
    return path
