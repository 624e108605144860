"""The report of a comparison as a table, as Markdown and as one self-contained page without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.checkpoint.atomic import json_bytes, write_file
from regard.formatting import format_p_value
from regard.metric_table import METRICS, Metric
from regard.registry import resolve
from regard.report.charts import html_figures, html_table, interval_chart, line_chart, static_page
from regard.report.comparison.evaluation import LearningCurve
from regard.report.comparison.report import ComparedModel, ComparisonReport

METHOD = (
    "Intervals: 95 %, bootstrap over examples, with Student's t for the seeds. p: approximate randomization against "
    "the best model, adjusted for all pairs of models (Holm), as the best is chosen on the same examples; between the "
    "best with attention and the best without, adjusted for all pairs of one with and one without. A difference is "
    "significant if p < 0.05 and its interval excludes 0."
)
MISSING = "–"


def report_table(report: ComparisonReport) -> list[list[str]]:
    """Table of quality, size and speed, header first."""
    has_seeds = any(model.statistics.num_seeds > 1 for model in report.models)
    others = [name for name in report.models[0].scores if name != report.metric]
    units = {model.history.unit for model in report.models if model.history.unit}
    unit = f"{min(units)}/s" if len(units) == 1 else "per second"
    header = ["model", report.metric_row.field_name, "95 %", *(["± seeds"] if has_seeds else [])]
    header += ["to best", "p", *(METRICS[name].field_name for name in others)]
    header += ["parameters", "minutes", f"training {unit}", "inference texts/s"]
    rows = []
    for model in report.models:
        history = model.history
        deviation = _format_number(model.statistics.deviation)
        row = [model.name, _format_score(report.metric, model.mean)]
        low, high = map(report.metric_row.format_difference, (model.interval.low, model.interval.high))
        row += [
            f"{low} to {high}" if "−" in low else f"{low}–{high}",
            *([deviation] if has_seeds else []),
            *_format_test(model, report.metric_row),
        ]
        row += [_format_mean(name, model.scores.get(name, ())) for name in others]
        row += [_format_count(model.parameters), _format_number(history.minutes)]
        counted = f" {history.unit}" if len(units) > 1 else ""
        rate = MISSING if history.rate is None else f"{history.rate:,.0f}{counted}"
        row += [rate, _format_rate(model.examples_per_second)]
        rows.append(row)
    return [header, *rows]


def _format_test(model: ComparedModel, metric: Metric) -> list[str]:
    """Difference from the best model, with a star where it is significant, and its p-value."""
    if model.test is None:
        return ["best", ""]
    star = " *" if model.test.is_significant else ""
    p_value = format_p_value(model.test.p_value).removeprefix("p ").removeprefix("= ")
    sign = "−" if model.test.difference < 0 else "+"
    difference = sign + metric.format_difference(abs(model.test.difference))
    return [f"{difference}{star}", p_value]


def _format_score(metric: str, value: float) -> str:
    return METRICS[metric].format.format(value)


def _format_mean(metric: str, values: Sequence[float]) -> str:
    return _format_score(metric, sum(values) / len(values)) if values else MISSING


def _format_number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _format_rate(rate: float) -> str:
    """Examples per second.

    >>> _format_rate(1234.5), _format_rate(0.123)
    ('1,234', '0.12')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _format_count(count: int) -> str:
    """Number of parameters.

    >>> _format_count(0), _format_count(12), _format_count(1234), _format_count(2_500_000)
    ('–', '12', '1.2 K', '2.50 M')
    """
    if count < 1000:
        return str(count or MISSING)
    return f"{count / 1e6:.2f} M" if count >= 100_000 else f"{count / 1e3:.1f} K"


def signatures(report: ComparisonReport) -> list[str]:
    """Signatures of the metrics that have one."""
    names = [name for name in report.models[0].scores if METRICS[name].signature]
    return [f"{METRICS[name].field_name}: {resolve(METRICS[name].signature)()}" for name in names]


def format_details(report: ComparisonReport) -> str:
    """Data, budget and processor of a comparison on one line."""
    return "; ".join(f"{name}: {detail}" for name, detail in report.details.items())


def charts(report: ComparisonReport) -> dict[str, str]:
    """Charts by title: scores with intervals, scores by length, and learning curves."""
    metric = report.metric_row
    name = metric.field_name
    names = [model.name for model in report.models]
    drawn = {
        f"{_capitalize(name)} with 95 % intervals": interval_chart(
            {model.name: (model.mean, model.interval.low, model.interval.high) for model in report.models},
            title=f"{name} with 95 % intervals",
            x_label=name,
        )
    }
    groups = [group.words for group in report.models[0].by_length]
    if len(groups) > 1:
        title = f"{_capitalize(name)} by length of the text"
        lines = {
            model.name: [(float(index), group.score) for index, group in enumerate(model.by_length)]
            for model in report.models
        }
        ticks = {float(index): words for index, words in enumerate(groups)}
        drawn[title] = line_chart(
            lines, title=title, x_label="words of the text", y_label=name, ticks=ticks, colours=names
        )
    drawn |= _draw_curves({model.name: model.history.metric for model in report.models}, name)
    return drawn | _draw_curves({model.name: model.history.loss for model in report.models}, "loss")


def _draw_curves(curves: Mapping[str, LearningCurve], name: str) -> dict[str, str]:
    """Chart of the learning curves that have several points; none where there are no such curves."""
    legend = {model: model if curve.is_validation else f"{model} (train)" for model, curve in curves.items()}
    lines = {legend[model]: curve.points for model, curve in curves.items() if len(curve.points) > 1}
    title = f"{_capitalize(name)} during training, first seed"
    chart = line_chart(lines, title=title, x_label="minutes of training", y_label=name, colours=[*legend.values()])
    return {title: chart} if chart else {}


def _capitalize(name: str) -> str:
    """First letter in upper case, the others as they are."""
    return name[:1].upper() + name[1:]


def markdown(report: ComparisonReport) -> str:
    """The report as Markdown."""
    header, *rows = [[cell.replace("|", r"\|") for cell in row] for row in report_table(report)]
    alignment = ["---"] + ["---:"] * (len(header) - 1)
    table = [f"| {' | '.join(row)} |" for row in (header, alignment, *rows)]
    lines = [f"# {report.title}", "", report.conclusion, "", *table, ""]
    if report.text:
        lines += [f"> {report.text}", ""]
        lines += [f"- **{model.name}**: {model.example.prediction}" for model in report.models]
        lines += [f"- *reference*: {report.reference}", ""]
    lines += ["Models:", "", *(f"- **{model.name}**: {model.summary}" for model in report.models), ""]
    return "\n".join([*lines, f"{format_details(report)}\n", METHOD, *signatures(report), ""])


def page(report: ComparisonReport) -> str:
    """The report as one self-contained page."""
    best = next(index for index, model in enumerate(report.models) if model.test is None)
    notes = [format_details(report), METHOD, *signatures(report)]
    return static_page(
        report.title,
        f"<p class=lead>{html.escape(report.conclusion)}</p>{html_table(report_table(report), best=best)}"
        f"<div class=charts>{html_figures(charts(report))}</div>{_html_example(report)}"
        f"<h2>Models</h2><dl>{_html_models(report)}</dl>"
        f"<p class=small>{'<br>'.join(html.escape(note) for note in notes)}</p>",
    )


def _html_example(report: ComparisonReport) -> str:
    """The example with the prediction and the attention of every model."""
    if not report.text:
        return ""
    figures = ""
    for model in report.models:
        picture = model.example.picture
        site = html.escape(model.example.site) or "no attention to show"
        caption = f"<b>{html.escape(model.name)}</b>: {html.escape(model.example.prediction)}"
        figures += f"<figure><figcaption>{caption}</figcaption>{picture}<p class=small>{site}</p></figure>"
    return (
        f"<h2>One example through every model</h2><p>{html.escape(report.text)}<br>"
        f"<i>reference: {html.escape(report.reference)}</i></p>"
        "<p class=small>Rows attend to columns; shades are relative to the largest weight of a model.</p>"
        f"<div class=attention>{figures}</div>"
    )


def _html_models(report: ComparisonReport) -> str:
    entries = ""
    for model in report.models:
        minutes = "" if model.history.minutes is None else f", {model.history.minutes:.1f} minutes of training"
        entries += f"<dt>{html.escape(model.name)}</dt><dd>{html.escape(model.summary)}{minutes}</dd>"
    return entries


def write_report(report: ComparisonReport, out: Path) -> list[Path]:
    """Write the report as a page, as JSON and as Markdown; return the files."""
    contents = {
        "report.html": page(report).encode(),
        "report.json": json_bytes(report.to_dict()),
        "report.md": markdown(report).encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
