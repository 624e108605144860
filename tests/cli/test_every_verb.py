"""What every verb prints: with `--json` objects that match its schema, and three lines at the end of a training."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator, ValidationError

from docs import reference
from regard.cli import run
from regard.cli.evaluation_output import evaluation_outputs
from regard.cli.json_schema import SchemaBuilder, verb_schema
from regard.cli.options import verb
from regard.cli.run_report import next_command
from regard.config.runs import read_run
from regard.registry import TASKS
from regard.report import demo
from regard.training.run import train_run
from regard.training.verdict import Verdict
from tests.task_data import write_task_data

VERBS = dict(reference.verbs())
SHORT = "--threads 1 --seed 1"
BATCHES = f"{SHORT} --steps 2 --batch-tokens 64 --precision float32"
DECODING = "--decoding.beam 2 --decoding.max_length_a 1 --decoding.max_length_b 3"
TRAINING = {  # model → command without --out
    "runs/translate": f"train translate pairs.csv {BATCHES} --preset micro {DECODING}",
    "runs/classify": f"train classify labels.csv --from encoder {BATCHES}",
    "runs/tag": f"train tag tags.conll --from encoder {BATCHES}",
    "runs/answer": f"train answer squad.json --from encoder {BATCHES}",
    "runs/masked-lm": f"train masked-lm texts.txt --from encoder --next-sentence {BATCHES}",
    "runs/causal-lm": f"train causal-lm texts.txt --tokenizer characters --preset micro {BATCHES}",
    "runs/elmo": f"train elmo texts.txt --preset micro {BATCHES}",
    "runs/story-qa": f"train story-qa walks.txt --epochs 2 --restarts 1 {SHORT}",
    "runs/distilled": f"distil runs/classify labels.csv --student-layers 1 {BATCHES}",
    "runs/seeds": f"train classify labels.csv --from encoder --seeds 2 {BATCHES}",
}
USING = [
    'translate runs/translate "ada went" "the house" --nbest 2 --align',
    'fill runs/masked-lm "ada saw the <mask>"',
    'generate runs/causal-lm "ada" --max-new-tokens 3 --samples 2',
    'classify runs/classify "ada went" ""',
    'tag runs/tag "ada went by London"',
    "answer runs/answer --passage texts.txt who",
    "answer runs/story-qa --story story.txt",
    'embed encoder "ada went"',
    "embed encoder --in texts.txt --out vectors.npy",
    'similar encoder "ada went" "the house" "the river"',
    'similar encoder "ada went" "the house" --corpus texts.txt --top-k 2',
    *(f"evaluate runs/{task} {file} {options}" for task, file, options in (
        ("translate", "pairs.csv", "--metric chrf --beam 1"),
        ("classify", "labels.csv", "--metric mcc"),
        ("tag", "tags.conll", ""),
        ("answer", "squad.json", ""),
        ("masked-lm", "texts.txt", "--metric accuracy"),
        ("causal-lm", "texts.txt", ""),
        ("elmo", "texts.txt", ""),
        ("story-qa", "walks.txt", "--metric accuracy"),
    )),
    "score runs/translate pairs.csv",
    'score runs/masked-lm --next-sentence "ada went" "the house"',
    'figure runs/translate "ada went"',
    'figure runs/translate "ada went" --out figure.svg',
    'see runs/translate "ada went" --store-qkv best',
    'see runs/classify "ada went" --attribution --importance',
    "see runs/answer who --passage texts.txt",
    'see runs/translate "ada went" --out page.html',
    "heads runs/translate pairs.csv --sample 2",
    "reach runs/translate runs/translate2 pairs.csv --sample 5 --out reach.html",
    "reach runs/causal-lm texts.txt --sample 5 --out reach.tsv",
    "heads encoder coreference.tsv --links",
    "probe encoder tags.conll --out probe.html",
    "probe runs/elmo tags.conll --target position --out probe.tsv",
    "probe runs/translate brackets.conll --target depth --side decoder",
    "compare runs/translate runs/translate2 --test pairs.csv --out comparison --threads 1",
    "compare labels.csv --task classify --arch counts,tuned:encoder --test labels.csv --out trained --threads 1 "
    "--set training.steps=2 --set training.batch_tokens=64 --set training.precision=float32",
    "info runs/translate",
    "info encoder",
    "convert encoder converted",
    "data check pairs.csv --valid pairs.csv",
    "data clean pairs.csv --out cleaned.tsv",
    "data join pairs.csv --out joined.tsv",
    "data make copy --count 3 --out copy.tsv",
    "data make recall --count 3 --distance 2-5 --out recall.tsv",
    "data make coreference --count 3 --out pronouns.tsv",
    "data make brackets --count 3 --out brackets.txt",
    "doctor --quick",
    "bench encoder --quick --rounds 1 --count 2 --threads 1",
    "cost --lengths 3 --threads 1 --hidden-size 8 --num-layers 1 --batch-tokens 5 --rounds 1 --out cost.html",
    "demo --seconds 1 --out demo",
]  # fmt: skip


def verb_name(command: str) -> str:
    """Name of the verb of a command, with its group."""
    first, second, *_ = command.split()
    return f"{first} {second}" if first in ("train", "data") else first


def validator(name: str) -> Draft202012Validator:
    schema = verb_schema(name, VERBS[name])
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def run_json(command: str, capfd: pytest.CaptureFixture[str]) -> list[Any]:
    """Run a command with --json and validate every line."""
    capfd.readouterr()
    assert run([*shlex.split(command), "--json"]) == 0, capfd.readouterr().err
    lines = [json.loads(line, parse_constant=reject_constant) for line in capfd.readouterr().out.splitlines()]
    assert lines
    schema = validator(verb_name(command))
    for line in lines:
        schema.validate(line)
    return lines


def reject_constant(name: str) -> None:
    raise AssertionError(f"JSON has no {name}")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(write_task_data(folder))
        Path("story.txt").write_text("1 Mary went to the kitchen.\n2 Where is Mary?\tkitchen\t1\n")
        assert run(["data", "make", "coreference", "--count", "5", "--out", "coreference.tsv"]) == 0
        assert run(["data", "make", "brackets", "--count", "20", "--lengths", "4-9", "--out", "brackets.conll"]) == 0
        patch.setattr(demo, "NUM_PAIRS", {"train": 500, "valid": 11})  # as in the demo's own test
        patch.setattr(demo, "NUM_TEST_DATES", 43)
        yield folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The models of all tasks."""
    for out, command in TRAINING.items():
        if not Path(out).exists():
            assert run([*shlex.split(command), "--out", out]) == 0
    shutil.copytree("runs/translate", "runs/translate2")
    return folder


@pytest.mark.parametrize("out", TRAINING)
def test_the_events_and_the_report_of_a_training_match_the_schema(out: str, capfd: pytest.CaptureFixture[str]) -> None:
    if out == "runs/distilled":
        run_json(f"{TRAINING['runs/classify']} --out runs/classify", capfd)
    lines = run_json(f"{TRAINING[out]} --out {out}", capfd)
    assert lines[-1]["event"] == "report"
    assert {"plan", "evaluate", "done"} <= {line["event"] for line in lines} or "--seeds" in TRAINING[out]


@pytest.mark.parametrize("out", TRAINING)
def test_a_run_ends_with_what_was_trained_how_good_it_is_and_what_to_run_next(
    out: str, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(f"{TRAINING[out]} --out {out}")) == 0  # finished before
    training, result, advice = capfd.readouterr().out.splitlines()
    summary = r"trained  .+; [\d,]+ parameters, .+, \d+ (steps|epochs|seeds) in .+ \(finished before\): "
    assert re.fullmatch(summary + out, training)
    assert result.startswith("result   ")
    assert advice.startswith("next     regard ")


@pytest.mark.parametrize("out", TRAINING)
def test_the_command_after_a_training_runs_as_it_stands(
    out: str, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = read_run(json.loads(Path(out, "run.json").read_text())["config"], where=out)
    report = train_run(config, Path(out))
    assert report.verdict is not None
    program, *arguments = shlex.split(next_command(replace(report, verdict=Verdict()), config, ["train"]))
    assert program == "regard"
    assert run(arguments) == 0, capfd.readouterr().err
    if report.verdict.retry:
        retry = shlex.split(next_command(report, config, shlex.split(f"{TRAINING[out]} --out {out}")))
        option, value, *new_folder = retry[-4:]
        assert f"{option} {value}" == report.verdict.retry
        assert new_folder == ["--out", f"{out}-2"]
        assert run([*retry[1:-4], option, "1", *new_folder]) == 0, capfd.readouterr().err  # shortened


@pytest.mark.parametrize("command", USING)
def test_the_output_of_a_verb_matches_its_schema(
    command: str, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_json(command, capfd)


def test_every_verb_runs_here() -> None:
    assert {verb_name(command) for command in (*TRAINING.values(), *USING)} == VERBS.keys()


@pytest.mark.parametrize("name", VERBS)
def test_a_schema_describes_only_the_declared_fields(name: str) -> None:
    schema = verb_schema(name, VERBS[name])
    Draft202012Validator.check_schema(schema)
    assert all(definition["additionalProperties"] is False for definition in schema["$defs"].values())


def test_a_field_that_the_schema_lacks_is_an_error(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (diagnosis,) = run_json("doctor --quick", capfd)
    (label,) = run_json("classify runs/classify ada", capfd)
    for name, line in (("doctor", diagnosis), ("classify", label)):
        with pytest.raises(ValidationError, match="further"):
            validator(name).validate({**line, "further": 1})
        missing = copy.copy(line)
        del missing[next(iter(line))]
        with pytest.raises(ValidationError, match="is a required property"):
            validator(name).validate(missing)


def test_a_verb_without_a_declared_output_has_no_schema() -> None:
    @verb("Help.")
    def mystery(context: click.Context, as_json: bool) -> None:
        """Print something."""

    with pytest.raises(ValueError, match="regard mystery does not say what --json prints"):
        verb_schema("mystery", mystery)


def test_every_task_that_is_evaluated_has_a_schema() -> None:
    assert {output.task for output in evaluation_outputs()} == {name for name, task in TASKS.items() if task.evaluate}


def test_a_comment_behind_a_field_is_its_description() -> None:
    builder = SchemaBuilder()
    builder.schema(evaluation_outputs()[0])
    schema = verb_schema("answer", VERBS["answer"])["$defs"]["Answer"]["properties"]
    assert schema["score"]["description"] == "probability of the span among all candidate spans, or of no answer"
    assert schema["windows"]["description"] == "in which the passage was read"


def test_the_site_has_a_schema_of_every_command() -> None:
    files = reference.schema_files()
    assert len(files) == len(VERBS)
    page = reference.pages()["reference/json/index.md"]
    for path, text in files.items():
        Draft202012Validator.check_schema(json.loads(text))
        assert f"]({Path(path).name})" in page
