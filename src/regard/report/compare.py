"""Several models on one data set under one budget: train or load them, measure them alike, write one report.

Several models on one test set as a report: a page that stands alone, Markdown, and what to conclude.
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
from regard.config.defaults import parse_architecture
from regard.config.runs import RunConfig
from regard.data.pairs import ParallelTexts
from regard.errors import UsageError
from regard.pipeline.load import load_translator
from regard.pipeline.translation import Translation, TranslationPipeline
from regard.report.charts import Points, heat_map, line_chart
from regard.report.info import describe_folder
from regard.tasks.metrics import LONG, SHORT, bleu_short_long, paired_bootstrap, scores_by_length, translation_scores
from regard.training.listeners import Listener
from regard.training.run import train_run
from regard.view.selection import select_attention

SHOWN_WORDS = (8, 14)  # words of the sentence that is shown, where none is given
Tell = Callable[[str], object]


@dataclass(frozen=True)
class ComparedRun:
    """A model to compare: its name and its folder."""

    name: str
    folder: Path


def train_architectures(
    config: RunConfig, architectures: Sequence[str], out: Path, listeners: Sequence[Listener], notify: Tell
) -> list[ComparedRun]:
    """Train a model of each architecture under the same budget; those that are finished already are kept."""
    if len(set(architectures)) != len(architectures):
        raise UsageError("an architecture is named twice: name each once")
    configs = {
        entry: config.override(parse_architecture(entry)) for entry in architectures
    }  # a wrong one is told before any trains
    made = []
    for number, (entry, own) in enumerate(configs.items(), 1):
        folder = out / entry.replace(":", "-")
        notify(f"{number} of {len(configs)}: {entry}")
        report = train_run(own, folder, listeners=listeners)
        if not report.finished:
            raise UsageError(f"{report.reason} stopped {entry} at step {report.step}: the same command goes on")
        made.append(ComparedRun(entry, folder))
    return made


def compare(
    contenders: Sequence[ComparedRun],
    test: ParallelTexts,
    *,
    title: str,
    text: str = "",
    notify: Tell,
    threads: int = 0,
) -> ComparisonReport:
    """Translate the test set with every model and return the report; the same sentence is shown in each."""
    if len(contenders) < 2:
        raise UsageError("a comparison needs at least two models")
    place = _shown(test)
    sentence, reference = (text, "") if text else (test.source[place], test.target[place])
    measured = []
    for one in contenders:
        notify(f"{one.name}: translating {len(test):,} sentences")
        measured.append(_measure(one, test, sentence, threads))
    said = {one.name: found["said"] for one, found in zip(contenders, measured, strict=True)}
    sure = paired_bootstrap(said, test.target)
    models = []
    for one, found in zip(contenders, measured, strict=True):
        models.append(_compared(one, found, sure[one.name]))
    return ComparisonReport(title, models, sentence, reference, {"test sentences": len(test)})


def _compared(one: ComparedRun, found: dict[str, Any], sure: dict[str, Any]) -> ComparedModel:
    return ComparedModel(
        one.name,
        found["summary"],
        found["parameters"],
        found["scores"],
        sure["low"],
        sure["high"],
        sure["chance"],
        found["by_length"],
        found["decoding"],
        found["apart"],
        found["training"],
        found["minutes"],
        found["losses"],
        str(found["shown"]),
        _picture(found["shown"], found["looks"]),
    )


def _measure(one: ComparedRun, test: ParallelTexts, sentence: str, threads: int) -> dict[str, Any]:
    model: TranslationPipeline = load_translator(one.folder, threads=threads)
    known = describe_folder(one.folder)
    model(test.source[0])  # the first call prepares what later ones find ready
    began = time.perf_counter()
    said = [str(text) for text in model(list(test.source), split=False)]
    seconds = time.perf_counter() - began
    history = _history(one.folder)
    return {
        "summary": known.model.summary() if known.model else "",
        "parameters": known.parameters,
        "scores": translation_scores(said, test.target),
        "apart": bleu_short_long(test.source, said, test.target),
        "by_length": scores_by_length(test.source, said, test.target),
        "decoding": len(said) / seconds,
        "said": said,
        "shown": model(sentence, split=False),
        "looks": bool(model.models[0].cross_attention_sites()),
        **history,
    }


def _history(folder: Path) -> dict[str, Any]:
    """Return what a run's own files tell of its training: speed, minutes, validation losses."""
    finished = RunDirectory(folder).read_run().get("finished")
    if not finished:
        return {"training": None, "minutes": None, "losses": []}
    seconds, tokens = float(finished["seconds"]), finished.get("tokens")
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [(float(event["step"]), float(event["loss"])) for event in events if event["event"] == "evaluate"]
    return {"training": tokens / seconds if tokens else None, "minutes": seconds / 60, "losses": losses}


def _shown(test: ParallelTexts) -> int:
    """Return which sentence to show: the first of a length that fits a picture, or the first."""
    low, high = SHOWN_WORDS
    fitting = (number for number, text in enumerate(test.source) if low <= len(text.split()) <= high)
    return next(fitting, 0)


def _picture(said: Translation, looks: bool) -> str:
    """Return where a model looked, word by word; a model without attention has nothing to show."""
    if not looks or not said:
        return "" if looks else "<p>no attention: nothing to see</p>"
    chosen = select_attention(said.record(), words=True)
    rows = [unit.label for unit in chosen.rows]
    columns = [unit.label for unit in chosen.columns]
    return heat_map(chosen.table, rows, columns, title=f"where it looked while writing {said}")


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


SURE = 0.05  # chance of error below which a difference counts


@dataclass(frozen=True)
class ComparedModel:
    """What is known of one model."""

    name: str
    summary: str
    parameters: int
    scores: dict[str, Any]  # BLEU and the others, with signatures
    low: float  # BLEU of the 95 % interval, by bootstrap
    high: float
    p_value: float | None  # that the best is no better than this one; None for the best itself
    by_length: list[dict[str, Any]]  # words, sentences, bleu
    decoding: float  # sentences a second
    bleu_short_long: tuple[float, float] | None = None  # BLEU of short sources and of long ones, where there are both
    training: float | None = None  # target tokens a second, where the model was trained here
    minutes: float | None = None
    losses: Points = ()  # update, validation loss
    prediction: str = ""  # its translation of the shown sentence
    picture: str = ""  # an SVG of where it looked

    @property
    def bleu(self) -> float:
        """Lower-cased BLEU, which decides."""
        return float(self.scores["bleu_lowercase"])

    @property
    def kept(self) -> float | None:
        """The share of its BLEU on short sources that it keeps on long ones."""
        return (
            self.bleu_short_long[1] / self.bleu_short_long[0]
            if self.bleu_short_long and self.bleu_short_long[0]
            else None
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the picture as plain values."""
        made = {name: value for name, value in vars(self).items() if name not in ("picture", "apart")}
        short, long = self.bleu_short_long or (None, None)
        return {**made, "bleu_short": short, "bleu_long": long, "kept_on_long": self.kept}


@dataclass(frozen=True)
class ComparisonReport:
    """A comparison, ready to be shown; models in the order in which they were given."""

    title: str
    models: Sequence[ComparedModel]
    sentence: str  # the one that every model translates
    reference: str
    facts: dict[str, Any] = field(default_factory=dict)  # data, budget, machine

    def conclusion(self) -> str:
        """Return what to conclude, in two sentences.

        >>> one = ComparedModel("a", "", 1, {"bleu_lowercase": 30.0}, 29, 31, None, [], 1.0)
        >>> two = ComparedModel("b", "", 1, {"bleu_lowercase": 20.0}, 19, 21, 0.001, [], 1.0)
        >>> ComparisonReport("t", [two, one], "", "").conclusion()
        'a is best with 30.0 BLEU (29.0–31.0), surely better than b.'
        """
        best = max(self.models, key=lambda one: one.bleu)
        beaten = [one.name for one in self.models if one.p_value is not None and one.p_value < SURE]
        level = [one.name for one in self.models if one.p_value is not None and one.p_value >= SURE]
        first = f"{best.name} is best with {best.bleu:.1f} BLEU ({best.low:.1f}–{best.high:.1f})"
        first += f", surely better than {_listed(beaten)}" if beaten else ""
        first += f"; from {_listed(level)} the test set cannot tell it" if level else ""
        kept = {one.name: share for one in self.models if (share := one.kept) is not None}
        if len(kept) < 2:
            return f"{first}."
        most, least = max(kept, key=lambda name: kept[name]), min(kept, key=lambda name: kept[name])
        shares = f"{most} keeps {100 * kept[most]:.0f} % of its BLEU on short ones, {least} {100 * kept[least]:.0f} %"
        return f"{first}. On sources of over {LONG} words {shares}."

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "title": self.title,
            **self.facts,
            "conclusion": self.conclusion(),
            "sentence": self.sentence,
            "reference": self.reference,
            "models": [one.to_dict() for one in self.models],
        }

    def markdown(self) -> str:
        """Return the report as Markdown."""
        head, *rows = self.table()
        shown = [f"| {' | '.join(row)} |" for row in (head, ["---"] + ["---:"] * (len(head) - 1), *rows)]
        words = [f"- **{one.name}**: {one.prediction}" for one in self.models] if self.sentence else []
        said = [f"> {self.sentence}", "", *words, f"- *reference*: {self.reference}", ""] if self.sentence else []
        return "\n".join([f"# {self.title}", "", self.conclusion(), "", *shown, "", *said, self.signature(), ""])

    def table(self) -> list[list[str]]:
        """Return the table of quality, size and speed, its head first."""
        head = ["model", "BLEU (lower-cased)", "95 %", "cased", "chrF", "TER", "exact", "parameters"]
        apart = any(one.bleu_short_long for one in self.models)
        lengths = [f"up to {SHORT} words", f"over {LONG}", "kept"] if apart else []
        made = [[*head, *lengths, "training tokens/s", "sentences/s"]]
        for one in self.models:
            scores = one.scores
            made.append(
                [
                    one.name,
                    f"{one.bleu:.2f}",
                    f"{one.low:.1f}–{one.high:.1f}",
                    *(f"{scores[name]:.2f}" for name in ("bleu", "chrf", "ter")),
                    f"{scores['exact_match']:.1f} %",
                    f"{one.parameters / 1e6:.2f} M",
                    *(_apart(one) if apart else []),
                    "" if one.training is None else f"{one.training:,.0f}",
                    f"{one.decoding:,.0f}",
                ]
            )
        return made

    def signature(self) -> str:
        """Return the signature of the BLEU that decides."""
        return f"BLEU: {self.models[0].scores['bleu_lowercase_signature']}"

    def curves(self) -> dict[str, str]:
        """Return the charts by title: quality by length, and loss while training."""
        groups = max((one.by_length for one in self.models), key=len)
        names = [group["words"] for group in groups]
        quality = {
            one.name: [
                (float(names.index(group["words"])), group["bleu"])
                for group in one.by_length
                if group["words"] in names
            ]
            for one in self.models
        }
        ticks = {float(place): name for place, name in enumerate(names)}
        charts: dict[str, str] = {}
        if len(names) > 1:
            title = "Quality by length of the source"
            charts[title] = line_chart(quality, title=title, x_label="words of the source", y_label="BLEU", ticks=ticks)
        losses = {one.name: one.losses for one in self.models if len(one.losses) > 1}
        if losses:
            title = "Validation loss while training"
            charts[title] = line_chart(losses, title=title, x_label="updates", y_label="nats a token")
        return charts

    def page(self) -> str:
        """Return the report as one page that loads nothing from anywhere."""
        head, *rows = ([html.escape(cell) for cell in row] for row in self.table())
        body = "".join(f"<tr><th scope=row>{row[0]}</th>{_cells(row[1:])}</tr>" for row in rows)
        about = "".join(
            f"<dt>{html.escape(one.name)}</dt><dd>{html.escape(one.summary)}"
            + (f", {one.minutes:.1f} minutes of training" if one.minutes is not None else "")
            + "</dd>"
            for one in self.models
        )
        said = "".join(
            f"<figure><figcaption><b>{html.escape(one.name)}</b>: {html.escape(one.prediction)}</figcaption>"
            f"{one.picture}</figure>"
            for one in self.models
        )
        given, wanted = html.escape(self.sentence), html.escape(self.reference)
        shown = f"<h2>One sentence in every model</h2><p>{given}<br><i>{wanted}</i></p><div class=looks>{said}</div>"
        drawn = "".join(
            f"<figure><figcaption><b>{title}</b></figcaption>{chart}</figure>" for title, chart in self.curves().items()
        )
        facts = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return (
            f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(self.title)}</title>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<style>{STYLE}</style></head><body><main><h1>{html.escape(self.title)}</h1>"
            f"<p class=lead>{html.escape(self.conclusion())}</p><div class=wide><table><thead><tr>"
            f"{''.join(f'<th scope=col>{cell}</th>' for cell in head)}</tr></thead><tbody>{body}</tbody></table></div>"
            f"{drawn}{shown if given else ''}"
            f"<h2>What was compared</h2><dl>{about}</dl><p class=small>{html.escape(facts)}<br>"
            f"{html.escape(self.signature())}; intervals and chances by paired bootstrap</p></main></body></html>\n"
        )


def _apart(one: ComparedModel) -> list[str]:
    """Return BLEU of short sources and of long ones, and how much is kept."""
    short, long = one.bleu_short_long or (0.0, 0.0)
    return [f"{short:.2f}", f"{long:.2f}", "" if one.kept is None else f"{100 * one.kept:.0f} %"]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0}main{max-width:76rem;margin:auto;"
    "padding:1.5rem}.lead{font-size:1.15rem}.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:"
    "tabular-nums}th,td{padding:.3rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid #8884}"
    "th:first-child{text-align:left}figure{margin:1.5rem 0}svg{max-width:100%;height:auto}.looks{display:grid;gap:1rem;"
    "grid-template-columns:repeat(auto-fill,minmax(18rem,1fr))}.looks figure{margin:0}dt{font-weight:600}"
    ".small{font-size:.85rem;opacity:.8}"
)
