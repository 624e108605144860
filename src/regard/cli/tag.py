"""`regard tag`: token classification of texts, and the entities that the tags mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE_OPTIONS, EVALUATIONS, TEXT_FLAGS, TestSet, evaluator
from regard.cli.options import Option
from regard.cli.output import align_columns, note_each, note_features, print_result, write_lines
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.pipeline.tagging import TaggedText, TokenClassificationPipeline

HELP = """Tag the words of TEXT, of the lines of a file, or of standard input line by line.

Entities are printed in order, with tabs between the columns: index of the text, label, text of the entity, its start
and end in characters, probability. A model whose tags mark no entities prints every word with its tag.

\b
  regard tag runs/names "Ada Lovelace was born in London."
  regard tag runs/names --in news.txt --conll --out news.conll
  regard tag runs/names --json < news.txt
"""


@text_verb(
    HELP,
    [
        Option(
            ["--conll"],
            is_flag=True,
            help="Print CoNLL columns: a word and its tag per line, a blank line after each text.",
        ),
        Option(["--pretokenized", "is_pretokenized"], is_flag=True, help="Split words at white space only."),
        *ENGINE_OPTIONS,
    ],
    output=["regard.pipeline.tagging:TaggedTextDict"],
)
def tag(
    context: click.Context,
    folder: str,
    inputs: TextInput,
    conll: bool,
    is_pretokenized: bool,
    **load_options: Any,
) -> None:
    """Print the entities or the tags of each text."""

    def load_model() -> TokenClassificationPipeline:
        from regard.pipeline.load import load_tagger

        return load_tagger(folder, **load_options)

    process_texts(
        inputs,
        load_model,
        lambda model, window: model.stream(window, is_pretokenized=is_pretokenized),
        lambda model, index, tagged: format_tagged_text(tagged, index, conll=conll or not model.has_entities),
    )


def format_tagged_text(tagged: TaggedText, index: int, *, conll: bool) -> list[str]:
    """Format one text: words with tags, or entities."""
    from regard.data.conll import conll_lines

    if conll:
        return list(conll_lines([(tagged.words, tagged.tags)]))
    lines = []
    for entity in tagged.entities:
        cells = [str(index), entity.label, entity.text, str(entity.start), str(entity.end), f"{entity.probability:.4f}"]
        lines.append("\t".join(cells))
    return lines


@evaluator(*("--backend", "--out", "--metric", "--text", "--label", *TEXT_FLAGS), output=f"{EVALUATIONS}:TagEvaluation")
def evaluate_tags(test: TestSet) -> None:
    """Evaluate a tagger: strict F1 of entities, overall and by label."""
    from regard.data.conll import conll_lines, read_tagged
    from regard.pipeline.load import load_tagger

    examples = read_tagged(test.files, test.read_config)
    note_each(examples.notes)
    model = load_tagger(test.folder, **test.load_options)
    examples.tag_ids(model.tags)  # raises for an unknown tag before anything is computed
    note_features(model.task)
    predictions = model.tag_sentences(examples)
    if test.out:
        words = (sentence.words for sentence in examples.sentences)
        write_lines(test.out, conll_lines(zip(words, predictions, strict=True)))
    scores = model.evaluate(examples, predictions, metrics=test.metrics)
    entities = ""
    if model.has_entities:
        entities = f"F1 {scores['f1']:.2f} % (precision {scores['precision']:.2f} %, recall {scores['recall']:.2f} %), "
    summary = [
        f"{len(examples):,} sentences, {entities}{scores['accuracy']:.2f} % of the words have the right tag",
        *align_columns([[label, f"{f1:.2f}"] for label, f1 in scores["f1_by_label"].items()]),
        model.truncation_report.format(),
        *test.metric_lines(scores),
    ]
    print_result({**scores, "truncation": model.truncation_report.to_dict()}, summary, test.as_json)
