"""Comparison of several translation models on one test set: train or load, evaluate, write one report.

The report is a self-contained page, Markdown and JSON, with a conclusion drawn from a paired bootstrap.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.checkpoint.atomic import json_bytes, write_file
from regard.checkpoint.run_dir import RunDirectory
from regard.config.architecture import parse_architecture
from regard.config.task_runs import TranslateRun
from regard.data.pairs import ParallelTexts
from regard.errors import UsageError
from regard.pipeline.load import load_translator
from regard.pipeline.translation import TranslationPipeline
from regard.pipeline.translation_result import Translation
from regard.report.charts import PAGE_STYLE, Points, heat_map, line_chart
from regard.report.info import describe_folder
from regard.report.json_output import ComparedModelDict, ComparisonReportDict
from regard.tasks.metrics import (
    LONG_SOURCE_WORDS,
    SHORT_SOURCE_WORDS,
    LengthGroup,
    bleu_short_long,
    paired_bootstrap,
    scores_by_length,
)
from regard.tasks.scoring import translation_scores
from regard.training.listeners import Listener
from regard.training.run import train_run
from regard.view.selection import select_attention

EXAMPLE_WORDS = (8, 14)  # length range of the example sentence, where the user names none
SIGNIFICANCE_LEVEL = 0.05
Notify = Callable[[str], object]


@dataclass(frozen=True)
class ComparedRun:
    """A model to compare: its name and its folder."""

    name: str
    folder: Path


@dataclass(frozen=True)
class ComparedModel:
    """Evaluation of one model."""

    name: str
    summary: str
    parameters: int
    scores: dict[str, Any]  # BLEU and the other metrics, with signatures
    low: float  # BLEU of the 95 % interval, by bootstrap
    high: float
    p_value: float | None  # of the hypothesis that the best model is no better; None for the best model
    by_length: list[LengthGroup]
    sentences_per_second: float  # decoding
    bleu_short_long: tuple[float, float] | None = None  # BLEU on short and on long sources, where there are both
    tokens_per_second: float | None = None  # training, in target tokens; None for a model that was not trained here
    minutes: float | None = None  # of training
    losses: Points = ()  # update, validation loss
    prediction: str = ""  # translation of the example sentence
    picture: str = ""  # SVG of the attention on the example sentence

    @property
    def bleu(self) -> float:
        """Lower-cased BLEU, by which models are ranked."""
        return float(self.scores["bleu_lowercase"])

    @property
    def retained_on_long(self) -> float | None:
        """BLEU on long sources as a fraction of BLEU on short ones."""
        if self.bleu_short_long is None:
            return None
        short, long = self.bleu_short_long
        return long / short if short else None

    def to_dict(self) -> ComparedModelDict:
        """All but the picture as plain values."""
        short, long = self.bleu_short_long or (None, None)
        return {
            "name": self.name,
            "summary": self.summary,
            "parameters": self.parameters,
            "scores": self.scores,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
            "by_length": self.by_length,
            "sentences_per_second": self.sentences_per_second,
            "tokens_per_second": self.tokens_per_second,
            "minutes": self.minutes,
            "losses": [list(point) for point in self.losses],
            "prediction": self.prediction,
            "bleu_short": short,
            "bleu_long": long,
            "retained_on_long": self.retained_on_long,
        }


@dataclass(frozen=True)
class ComparisonReport:
    """A comparison in the order in which its models were named."""

    title: str
    models: Sequence[ComparedModel]
    sentence: str  # example that every model translates
    reference: str
    details: dict[str, Any] = field(default_factory=dict)  # data, budget, machine

    def conclusion(self) -> str:
        """State in one or two sentences which model is best, and which one is best on long sources.

        >>> first = ComparedModel("a", "", 1, {"bleu_lowercase": 30.0}, 29, 31, None, [], 1.0)
        >>> second = ComparedModel("b", "", 1, {"bleu_lowercase": 20.0}, 19, 21, 0.001, [], 1.0)
        >>> ComparisonReport("t", [second, first], "", "").conclusion()
        'a is best with 30.0 BLEU (29.0–31.0), significantly better than b.'
        """
        best = max(self.models, key=lambda model: model.bleu)
        p_values = {model.name: model.p_value for model in self.models if model.p_value is not None}
        worse = [name for name, p_value in p_values.items() if p_value < SIGNIFICANCE_LEVEL]
        level = [name for name, p_value in p_values.items() if p_value >= SIGNIFICANCE_LEVEL]
        ranking = f"{best.name} is best with {best.bleu:.1f} BLEU ({best.low:.1f}–{best.high:.1f})"
        if worse:
            ranking += f", significantly better than {_join_names(worse)}"
        if level:
            ranking += f"; the difference to {_join_names(level)} is not significant"
        on_long = self._conclusion_on_long_sources()
        return f"{ranking}. {on_long}" if on_long else f"{ranking}."

    def _conclusion_on_long_sources(self) -> str:
        """Compare the most and the least robust model; empty where fewer than two have long and short sources."""
        retained = {model.name: model.retained_on_long for model in self.models}
        fractions = {name: fraction for name, fraction in retained.items() if fraction is not None}
        if len(fractions) < 2:
            return ""
        highest = max(fractions, key=lambda name: fractions[name])
        lowest = min(fractions, key=lambda name: fractions[name])
        return (
            f"On sources of over {LONG_SOURCE_WORDS} words {highest} retains "
            f"{100 * fractions[highest]:.0f} % of its BLEU on short "
            f"ones, {lowest} {100 * fractions[lowest]:.0f} %."
        )

    def to_dict(self) -> ComparisonReportDict:
        """The report as plain values."""
        return {
            "title": self.title,
            "details": self.details,
            "conclusion": self.conclusion(),
            "sentence": self.sentence,
            "reference": self.reference,
            "models": [model.to_dict() for model in self.models],
        }

    def table(self) -> list[list[str]]:
        """Table of quality, size and speed, header first."""
        header = ["model", "BLEU (lower-cased)", "95 %", "cased", "chrF", "TER", "exact", "parameters"]
        has_lengths = any(model.bleu_short_long for model in self.models)
        if has_lengths:
            header += [f"up to {SHORT_SOURCE_WORDS} words", f"over {LONG_SOURCE_WORDS}", "retained"]
        header += ["training tokens/s", "sentences/s"]
        return [header, *(_table_row(model, has_lengths) for model in self.models)]

    def signature(self) -> str:
        """Signature of the BLEU by which models are ranked."""
        return f"BLEU: {self.models[0].scores['bleu_lowercase_signature']}"

    def curves(self) -> dict[str, str]:
        """Charts by title: quality by source length, and validation loss."""
        longest_list = max((model.by_length for model in self.models), key=len)
        group_names = [group["words"] for group in longest_list]
        charts: dict[str, str] = {}
        if len(group_names) > 1:
            title = "Quality by length of the source"
            bleu = {model.name: _bleu_by_group(model, group_names) for model in self.models}
            ticks = {float(index): name for index, name in enumerate(group_names)}
            charts[title] = line_chart(bleu, title=title, x_label="words of the source", y_label="BLEU", ticks=ticks)
        losses = {model.name: model.losses for model in self.models if len(model.losses) > 1}
        if losses:
            title = "Validation loss during training"
            charts[title] = line_chart(losses, title=title, x_label="updates", y_label="nats per token")
        return charts

    def markdown(self) -> str:
        """The report as Markdown."""
        header, *rows = self.table()
        alignment = ["---"] + ["---:"] * (len(header) - 1)
        table = [f"| {' | '.join(row)} |" for row in (header, alignment, *rows)]
        lines = [f"# {self.title}", "", self.conclusion(), "", *table, ""]
        if self.sentence:
            lines += [f"> {self.sentence}", ""]
            lines += [f"- **{model.name}**: {model.prediction}" for model in self.models]
            lines += [f"- *reference*: {self.reference}", ""]
        return "\n".join([*lines, self.signature(), ""])

    def page(self) -> str:
        """The report as one self-contained page."""
        title = html.escape(self.title)
        details = "; ".join(f"{name}: {detail}" for name, detail in self.details.items())
        return (
            f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<style>{PAGE_STYLE}</style></head><body><main><h1>{title}</h1>"
            f"<p class=lead>{html.escape(self.conclusion())}</p>{self._html_table()}{self._html_charts()}"
            f"{self._html_example()}<h2>Models</h2><dl>{self._html_models()}</dl>"
            f"<p class=small>{html.escape(details)}<br>"
            f"{html.escape(self.signature())}; intervals and p-values by paired bootstrap</p></main></body></html>\n"
        )

    def _html_table(self) -> str:
        header, *rows = ([html.escape(cell) for cell in row] for row in self.table())
        head = "".join(f"<th scope=col>{cell}</th>" for cell in header)
        body = ""
        for name, *cells in rows:
            body += f"<tr><th scope=row>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"

    def _html_charts(self) -> str:
        return "".join(
            f"<figure><figcaption><b>{title}</b></figcaption>{chart}</figure>" for title, chart in self.curves().items()
        )

    def _html_example(self) -> str:
        """The example sentence with the prediction and the attention of every model."""
        if not self.sentence:
            return ""
        figures = "".join(
            f"<figure><figcaption><b>{html.escape(model.name)}</b>: {html.escape(model.prediction)}</figcaption>"
            f"{model.picture}</figure>"
            for model in self.models
        )
        return (
            f"<h2>Attention on one sentence</h2><p>{html.escape(self.sentence)}<br>"
            f"<i>{html.escape(self.reference)}</i></p><div class=attention>{figures}</div>"
        )

    def _html_models(self) -> str:
        entries = ""
        for model in self.models:
            minutes = "" if model.minutes is None else f", {model.minutes:.1f} minutes of training"
            entries += f"<dt>{html.escape(model.name)}</dt><dd>{html.escape(model.summary)}{minutes}</dd>"
        return entries


def _table_row(model: ComparedModel, has_lengths: bool) -> list[str]:
    scores = model.scores
    row = [
        model.name,
        f"{model.bleu:.2f}",
        f"{model.low:.1f}–{model.high:.1f}",
        f"{scores['bleu']:.2f}",
        f"{scores['chrf']:.2f}",
        f"{scores['ter']:.2f}",
        f"{scores['exact_match']:.1f} %",
        f"{model.parameters / 1e6:.2f} M",
    ]
    if has_lengths:
        short, long = model.bleu_short_long or (0.0, 0.0)
        retained = model.retained_on_long
        row += [f"{short:.2f}", f"{long:.2f}", "" if retained is None else f"{100 * retained:.0f} %"]
    row.append("" if model.tokens_per_second is None else f"{model.tokens_per_second:,.0f}")
    row.append(f"{model.sentences_per_second:,.0f}")
    return row


def _bleu_by_group(model: ComparedModel, group_names: Sequence[str]) -> list[tuple[float, float]]:
    """BLEU of each length group, at the index of the group."""
    groups = [group for group in model.by_length if group["words"] in group_names]
    return [(float(group_names.index(group["words"])), group["bleu"]) for group in groups]


def _join_names(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def train_architectures(
    config: TranslateRun, architectures: Sequence[str], out: Path, listeners: Sequence[Listener], notify: Notify
) -> list[ComparedRun]:
    """Train a model of each architecture with the same budget; finished runs are not trained again."""
    if len(set(architectures)) != len(architectures):
        raise UsageError("an architecture is named twice: name each once")
    # all configs are built first: an unknown architecture raises before any training
    configs = {name: config.override(parse_architecture(name)) for name in architectures}
    runs = []
    for index, (name, run_config) in enumerate(configs.items(), 1):
        folder = out / name.replace(":", "-")
        notify(f"{index} of {len(configs)}: {name}")
        report = train_run(run_config, folder, listeners=listeners)
        if not report.is_finished:
            raise UsageError(f"{report.reason} stopped {name} at step {report.step}: the same command resumes")
        runs.append(ComparedRun(name, folder))
    return runs


def compare(
    runs: Sequence[ComparedRun],
    test: ParallelTexts,
    *,
    title: str,
    text: str = "",
    notify: Notify,
    threads: int = 0,
) -> ComparisonReport:
    """Translate the test set with every model and report; `text` is the example sentence, or one of the test set."""
    if len(runs) < 2:
        raise UsageError("a comparison needs at least two models")
    if text:
        sentence = text
        reference = ""
    else:
        example = _choose_example(test)
        sentence = test.source[example]
        reference = test.target[example]
    evaluations = []
    for run in runs:
        notify(f"{run.name}: translating {len(test):,} sentences")
        evaluations.append(_evaluate(run, test, sentence, threads))
    hypotheses = {evaluation.run.name: evaluation.hypotheses for evaluation in evaluations}
    significance = paired_bootstrap(hypotheses, test.target)
    models = [_build_model(evaluation, test, significance[evaluation.run.name]) for evaluation in evaluations]
    return ComparisonReport(title, models, sentence, reference, details={"test sentences": len(test)})


@dataclass(frozen=True)
class _Evaluation:
    """Translations and decoding speed of one model."""

    run: ComparedRun
    hypotheses: list[str]
    sentences_per_second: float
    example: Translation
    has_cross_attention: bool


def _evaluate(run: ComparedRun, test: ParallelTexts, sentence: str, threads: int) -> _Evaluation:
    """Translate the test set and the example sentence."""
    model: TranslationPipeline = load_translator(run.folder, threads=threads)
    model(test.source[0])  # warm-up: the first call fills caches
    start = time.perf_counter()
    hypotheses = [str(translation) for translation in model(list(test.source), split=False)]
    seconds = time.perf_counter() - start
    return _Evaluation(
        run,
        hypotheses,
        sentences_per_second=len(hypotheses) / seconds,
        example=model(sentence, split=False),
        has_cross_attention=bool(model.models_of()[0].cross_attention_sites()),
    )


def _build_model(evaluation: _Evaluation, test: ParallelTexts, significance: dict[str, Any]) -> ComparedModel:
    folder = evaluation.run.folder
    hypotheses = evaluation.hypotheses
    info = describe_folder(folder)
    history = _read_history(folder)
    return ComparedModel(
        evaluation.run.name,
        summary=info.model.summary() if info.model else "",
        parameters=info.parameters,
        scores=translation_scores(hypotheses, test.target),
        low=significance["low"],
        high=significance["high"],
        p_value=significance["chance"],
        by_length=scores_by_length(test.source, hypotheses, test.target),
        sentences_per_second=evaluation.sentences_per_second,
        bleu_short_long=bleu_short_long(test.source, hypotheses, test.target),
        tokens_per_second=history.tokens_per_second,
        minutes=history.minutes,
        losses=history.losses,
        prediction=str(evaluation.example),
        picture=_draw_attention(evaluation.example, evaluation.has_cross_attention),
    )


@dataclass(frozen=True)
class _TrainingHistory:
    """Speed, duration and validation losses of a training run; unknown for a model that was not trained here."""

    tokens_per_second: float | None = None
    minutes: float | None = None
    losses: Points = ()


def _read_history(folder: Path) -> _TrainingHistory:
    """Read the history from the files of a run."""
    result = RunDirectory(folder).read_run().get("result")
    if not result:
        return _TrainingHistory()
    seconds = float(result["seconds"])
    tokens = result.get("tokens")
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    return _TrainingHistory(
        tokens_per_second=tokens / seconds if tokens else None,
        minutes=seconds / 60,
        losses=[(float(event["step"]), float(event["loss"])) for event in events if event["event"] == "evaluate"],
    )


def _choose_example(test: ParallelTexts) -> int:
    """Index of the first sentence of a length that suits a figure, or 0."""
    low, high = EXAMPLE_WORDS
    suitable = (index for index, text in enumerate(test.source) if low <= len(text.split()) <= high)
    return next(suitable, 0)


def _draw_attention(translation: Translation, has_cross_attention: bool) -> str:
    """Heat map of the word-level attention of a translation; a note for a model without attention."""
    if not has_cross_attention:
        return "<p>no attention: nothing to show</p>"
    if not translation:
        return ""
    selection = select_attention(translation.record(), words=True)
    rows = [unit.label for unit in selection.rows]
    columns = [unit.label for unit in selection.columns]
    return heat_map(selection.table, rows, columns, title=f"attention while generating {translation}")


def write_report(report: ComparisonReport, out: Path) -> list[Path]:
    """Write the report as a page, as JSON and as Markdown; return the files."""
    contents = {
        "report.html": report.page().encode(),
        "report.json": json_bytes(report.to_dict()),
        "report.md": report.markdown().encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
