"""Report on linear probes of a model's layers: as table, TSV, JSON and page with a chart by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from regard.config.data import ReadConfig
from regard.data.conll import TaggedSentences, read_tagged
from regard.data.ledger import read_lines
from regard.errors import UsageError
from regard.interpret.layer_readers import load_layer_reader
from regard.interpret.probe_targets import split_sentences, without_sentences
from regard.interpret.probing import R2, LayerProbe, Notify, ProbeResult, probe_layers
from regard.report.charts import chart_page, html_table, line_chart
from regard.tasks.significance import ScoreInterval

SAMPLE = 1000  # sentences
METRIC_NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", R2: R2}


class IntervalDict(TypedDict):
    """JSON form of a score with its 95 % interval, by bootstrap over the test sentences."""

    value: float  # percent, or R²
    low: float
    high: float


class LayerProbeDict(TypedDict):
    """JSON form of the probe of one layer."""

    layer: int  # 0: the embeddings
    score: IntervalDict
    control: IntervalDict  # of random values by word type
    selectivity: IntervalDict  # score minus control
    gain: float  # over the baseline that knows each word
    p_value: float  # of no gain, adjusted for the number of layers
    beats_baseline: bool
    converged: bool  # whether both probes reached their optimum


class ProbeReportDict(TypedDict):
    """JSON form of a `ProbeReport`."""

    model: str
    side: str  # of a translation model: encoder or decoder
    data: str
    target: str  # tags, position or depth
    metric: str  # accuracy, macro_f1 or R²
    backend: str  # what computed the hidden states, and in which precision
    labels: list[str]  # tags to predict; none for numbers
    train_sentences: int
    train_words: int
    test_sentences: int
    test_words: int
    penalty: float  # L2
    seed: int
    constant_baseline: IntervalDict  # the most frequent tag, or the mean
    word_baseline: IntervalDict  # the most frequent tag, or the mean, of each word
    layers: list[LayerProbeDict]


@dataclass(frozen=True)
class ProbeReport:
    """Probes of all layers of a model, and what they were trained on."""

    model: str
    side: str
    data: str
    penalty: float
    seed: int
    result: ProbeResult

    def to_dict(self) -> ProbeReportDict:
        """Convert to plain values."""
        result = self.result
        return {
            "model": self.model,
            "side": self.side,
            "data": self.data,
            "target": result.target,
            "metric": result.metric,
            "backend": result.backend,
            "labels": [*result.labels],
            "train_sentences": result.num_train_sentences,
            "train_words": result.num_train_words,
            "test_sentences": result.num_test_sentences,
            "test_words": result.num_test_words,
            "penalty": self.penalty,
            "seed": self.seed,
            "constant_baseline": _interval_dict(result.constant_baseline),
            "word_baseline": _interval_dict(result.word_baseline),
            "layers": [_layer_dict(layer) for layer in result.layers],
        }

    @property
    def metric_name(self) -> str:
        """Name of the score, with its unit."""
        name = METRIC_NAMES[self.result.metric]
        return name if self.result.metric == R2 else f"{name} %"

    def summary(self) -> list[str]:
        """Describe what was measured, and which layers encode the target."""
        result = self.result
        guess = "the mean" if result.metric == R2 else "the most frequent tag"
        best = result.best
        better = [layer.layer for layer in result.layers if layer.beats_baseline]
        compared = f"better than {guess} of each word"
        lines = [
            f"{result.target} from each layer of {self.model} on {self.data}: {result.num_train_words:,} words of "
            f"{result.num_train_sentences:,} sentences to train, {result.num_test_words:,} of "
            f"{result.num_test_sentences:,} to test",
            f"baselines: {self._format(result.constant_baseline.mean)} for {guess} of all words, "
            f"{self._format(result.word_baseline.mean)} for {guess} of each word",
            f"best layer: {best.layer}, {self._format(best.score.mean)} ({self._format(best.score.low)} to "
            f"{self._format(best.score.high)}); {compared}: {_name_layers(better)} (p < 0.05, adjusted)",
            "control: the same probe on random values by word; selectivity: score minus control; layer 0: embeddings",
        ]
        if not all(layer.has_converged for layer in result.layers):
            lines.append("*: the probe did not reach its optimum: a larger --penalty converges faster")
        return lines

    def _format(self, value: float) -> str:
        return f"{value:.3f}" if self.result.metric == R2 else f"{value:.1f}"

    def table(self) -> list[list[str]]:
        """Titles, and one row for each layer."""
        rows = [["layer", self.metric_name, "low", "high", "control", "selectivity", "gain", "p"]]
        for layer in self.result.layers:
            values = (layer.score.mean, layer.score.low, layer.score.high, layer.control.mean, layer.selectivity.mean)
            name = f"{layer.layer}{'' if layer.has_converged else '*'}"
            cells = [self._format(value) for value in values]
            rows.append([name, *cells, f"{layer.gain:+.3g}", f"{layer.p_value:.2g}"])
        return rows

    def tsv(self) -> Iterable[str]:
        """Lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())

    def chart(self) -> str:
        """Scores by layer as SVG, beside the control and the baselines."""
        layers = self.result.layers

        def constant(score: ScoreInterval) -> list[tuple[float, float]]:
            return [(layer.layer, score.mean) for layer in layers]

        series: dict[str, list[tuple[float, float]]] = {
            self.result.target: [(layer.layer, layer.score.mean) for layer in layers],
            "control task": [(layer.layer, layer.control.mean) for layer in layers],
            "baseline: word": constant(self.result.word_baseline),
            "baseline: constant": constant(self.result.constant_baseline),
        }
        return line_chart(
            series,
            title=f"{self.result.target} by layer",
            x_label="layer (0: embeddings)",
            y_label=self.metric_name,
            ticks={layer.layer: str(layer.layer) for layer in layers},
        )

    def page(self) -> str:
        """The report as one self-contained page without scripts."""
        charts = {f"{self.result.target} by layer": self.chart()}
        title = f"Probes of {self.model}: {self.result.target}"
        return chart_page(title, self.summary(), charts, html_table(self.table()))


def run_probes(
    model: str,
    files: Sequence[str],
    target: str = "tags",
    read_config: ReadConfig | None = None,
    *,
    test: Sequence[str] = (),
    metric: str = "",
    sample: int = SAMPLE,
    side: str = "encoder",
    source: str = "",
    penalty: float = 1.0,
    seed: int = 0,
    notify: Notify = lambda line: None,
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 0,
) -> ProbeReport:
    """Probe every layer of a model on files of tagged sentences.

    Without `test` files, a fifth of the sampled sentences is held out. `source` names a file with the source of each
    sentence of `files`, which the decoder reads; without it, the source is empty.
    """
    sentences = read_tagged(files, read_config)
    sources = _read_sources(source, sentences, test)
    if test:
        test_sentences = read_tagged(test, read_config)
        test_sentences = test_sentences.select(range(min(sample, len(test_sentences))))
        train_sentences = without_sentences(sentences, test_sentences, sample=sample)
    else:
        train_sentences, test_sentences = split_sentences(sentences, sample=sample, seed=seed)
    reader = load_layer_reader(model, side=side, sources=sources, device=device, precision=precision, threads=threads)
    result = probe_layers(
        reader,
        target,
        train_sentences,
        test_sentences,
        metric=metric,
        penalty=penalty,
        seed=seed,
        notify=notify,
    )
    return ProbeReport(
        model, side, " ".join(Path(file).name for file in (*files, *test)), penalty=penalty, seed=seed, result=result
    )


def _read_sources(path: str, sentences: TaggedSentences, test: Sequence[str]) -> dict[str, str]:
    """Source of each sentence, from a file with one line for each."""
    if not path:
        return {}
    if test:
        raise UsageError(
            "--source belongs to the sentences of FILES: leave out --test, and a fifth of them is held out"
        )
    lines = read_lines(path)
    if len(lines) != len(sentences):
        raise UsageError(f"{path}: {len(lines):,} lines for {len(sentences):,} sentences: exactly one each is needed")
    return {sentence.text: line for sentence, line in zip(sentences.sentences, lines, strict=True)}


def _interval_dict(score: ScoreInterval) -> IntervalDict:
    return {"value": round(score.mean, 5), "low": round(score.low, 5), "high": round(score.high, 5)}


def _layer_dict(layer: LayerProbe) -> LayerProbeDict:
    return {
        "layer": layer.layer,
        "score": _interval_dict(layer.score),
        "control": _interval_dict(layer.control),
        "selectivity": _interval_dict(layer.selectivity),
        "gain": round(layer.gain, 5),
        "p_value": round(layer.p_value, 6),
        "beats_baseline": layer.beats_baseline,
        "converged": layer.has_converged,
    }


def _name_layers(layers: Sequence[int]) -> str:
    """Layers as ranges.

    >>> _name_layers([0, 2, 3, 4]), _name_layers([])
    ('layers 0, 2-4', 'no layer')
    """
    if not layers:
        return "no layer"
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and ranges[-1][-1] == layer - 1:
            ranges[-1].append(layer)
        else:
            ranges.append([layer])
    names = [str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in ranges]
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(names)}"
