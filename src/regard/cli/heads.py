"""`regard heads`: statistics of every attention head on a corpus, and its importance by ablation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE_OPTIONS, FILES, MODEL_ARGUMENT, READ_OPTIONS
from regard.cli.options import FiniteRange, Option, changed_settings, is_on_command_line, verb
from regard.cli.output import align_columns, check_report_name, print_result, show_progress, write_report
from regard.config.data import ReadConfig
from regard.errors import DataError, UsageError

if TYPE_CHECKING:
    from regard.interpret.head_report import HeadReport
    from regard.interpret.link_report import LinkReport
    from regard.tasks.alignment import ReferenceLinks

HELP = """Measure statistics and importance of every attention head of a model on FILES.

Statistics of attention weights: entropy, distance, and the fraction on special tokens, on the previous token
(previous), the token itself (itself), the next token (next), other occurrences of the token (same), and near the
diagonal. The pattern names what dominates; ± is the standard error of importance.

For importance, each head is ablated once and the model is evaluated on a sample: translation models by the loss of the
reference translations or BLEU; classifiers, taggers and question answering by loss, accuracy or F1; language models by
loss; encoders without a task head by the angle between embeddings. For translation models, the head with the best word
alignment is named.

--minutes limits the sample; its size is reported. The sample suffices where the standard errors of importance are small
beside the differences between heads; four times the examples halve them. Classifiers are measured on the columns of
their training, unless --text or --label is set. The file of --out has all heads, even without --all.

--links scores every head on sentences with a pronoun instead: how often the pronoun attends more to its antecedent than
to another noun, with a confidence interval, compared with the baseline that takes the nearest noun. FILES then have the
columns sentence, pronoun (index of the word, from 0), right and wrong (the nouns), as `regard data make coreference`
writes them. The best of many heads looks good by chance, so heads are chosen on one half of the pairs and scored on the
other. Where a column scenario names what sentences have in common, a half has whole scenarios.

\b
  regard heads runs/en-de dev.tsv
  regard heads runs/en-de dev.en dev.de --metric bleu --minutes 10
  regard heads runs/mood dev.csv --metric f1 --out heads.html
  regard heads runs/en-de dev.tsv --sort entropy --all
  regard heads sentence-transformers/all-MiniLM-L6-v2 texts.txt --out heads.tsv
  regard heads bert-base-uncased coreference.tsv --links
"""
MAX_TERMINAL_ROWS = 20
HEAD_STUDY_FLAGS = ("--metric", "--minutes", "--alignment", "--sort")


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        FILES,
        Option(
            ["--metric"],
            default="",
            metavar="NAME",
            help="Metric of importance: loss; bleu (translations); accuracy or f1 (labels, tags); f1 or exact_match "
            "(answers); change (embeddings). [default: loss, f1 of answers, change of embeddings]",
        ),
        Option(
            ["--sample"],
            type=click.IntRange(1),
            metavar="N",
            help="Examples to evaluate; with --links, pairs of sentences. [default: as many as time allows, at most "
            "1,000; with --links, all]",
        ),
        Option(
            ["--minutes"],
            type=FiniteRange(0.05),
            default=4.0,
            help="Time limit, unless --sample is set. [default: 4]",
        ),
        Option(
            ["--alignment"],
            metavar="FILE",
            help="Gold word alignments (0-0 1p2 …; p: a possible link), one line per pair: adds alignment error rates "
            "(AER) of heads.",
        ),
        Option(
            ["--links"],
            is_flag=True,
            help="Score heads by coreference: whether pronouns attend to their antecedents, in files of sentences with "
            "pronouns.",
        ),
        Option(
            ["--sort"],
            default="importance",
            metavar="COLUMN",
            help="Column that rows are sorted by, the largest numbers first: head, pattern, importance, ±, entropy, "
            "distance, special, previous, itself, next, same, diagonal, alignment or AER. [default: importance]",
        ),
        Option(["--all", "all_heads"], is_flag=True, help="Show all heads, not only the first 20."),
        Option(["--out"], metavar="FILE", help="Write the table here: .html (a page), .tsv or .json."),
        *READ_OPTIONS,
        *ENGINE_OPTIONS,
    ],
    output=["regard.interpret.head_report:HeadReportDict", "regard.interpret.link_report:LinkReportDict"],
)
def heads(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    metric: str,
    sample: int | None,
    minutes: float,
    alignment: str | None,
    links: bool,
    sort: str,
    all_heads: bool,
    out: str | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Study the heads of a model."""
    check_report_name(out)
    read_config = ReadConfig().override(changed_settings(context, ReadConfig))
    data = " ".join(Path(file).name for file in files)
    report: HeadReport | LinkReport
    if links:
        _reject_head_study_options(context)
        report = _study_links(folder, files, read_config, sample or 0, data, load_options)
    else:
        from regard.interpret.head_report import find_column
        from regard.interpret.head_study import build_subject, study_heads
        from regard.pipeline.load import load

        find_column(sort)  # raises for an unknown column before anything is computed
        report = study_heads(
            build_subject(load(folder, **load_options), files, read_config),
            metric=metric,
            sample=sample or 0,
            minutes=minutes,
            gold=_read_alignments(alignment, read_config) if alignment else None,
            model=folder,
            data=data,
            progress=show_progress,
        ).sorted_by(sort)
    write_report(report, out)
    print_result(report.to_dict(), report.lines(align_columns, 0 if all_heads else MAX_TERMINAL_ROWS), as_json)


def _reject_head_study_options(context: click.Context) -> None:
    for flag in HEAD_STUDY_FLAGS:
        if is_on_command_line(context, flag):
            raise UsageError(f"{flag} is for importance and alignment of heads: leave it out with --links")


def _study_links(
    folder: str, files: tuple[str, ...], read_config: ReadConfig, sample: int, data: str, load_options: dict[str, Any]
) -> LinkReport:
    """Coreference links of the heads of a model; an encoder is loaded without its head."""
    from regard.checkpoint.model_dir import is_encoder_folder
    from regard.data.coreference import read_coreference
    from regard.interpret.coreference_links import sentence_attention, study_links
    from regard.pipeline.load import load

    sentences = read_coreference(files, read_config)
    pipeline = load(folder, task="embed" if is_encoder_folder(folder) else "", **load_options)
    return study_links(sentence_attention(pipeline), sentences, sample=sample, model=folder, data=data)


def _read_alignments(path: str, read_config: ReadConfig) -> list[ReferenceLinks]:
    """Word alignments of a file in Pharaoh format, one line per sentence pair."""
    from regard.data.ledger import read_lines
    from regard.tasks.alignment import parse_pharaoh

    alignments = []
    for line_number, line in enumerate(read_lines(path, read_config), 1):
        try:
            alignments.append(parse_pharaoh(line))
        except UsageError as error:
            raise DataError(str(error), location=f"{path}:{line_number}") from None
    return alignments
