"""The command line as a process: help, errors, settings, data files and the doctor."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from regard.cli import VERBS, regard, run
from regard.cli.options import KnobOption
from regard.cli.renamed import RENAMED, SYNONYMS
from regard.cli.train import configure_run, train_command
from regard.config.models import TransformerConfig
from regard.config.runs import build_run, run_config_class, trained_tasks
from regard.config.task_runs import TranslateRun
from regard.errors import ConfigError, UsageError
from regard.metric_table import default_metrics, metrics_of
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parents[2]


def run_process(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "regard", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, env=environment, timeout=HANG_GUARD)


def verbs() -> dict[str, click.Command]:
    """Every command by its full name."""
    context = click.Context(regard)
    commands = {}
    for name in VERBS:
        verb = regard.get_command(context, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            for inner in verb.list_commands(context):
                command = verb.get_command(context, inner)
                assert command is not None
                commands[f"{name} {inner}"] = command
        else:
            commands[name] = verb
    return commands


# ---- help


def test_no_arguments_show_the_help() -> None:
    done = run_process()
    assert done.returncode == 0
    assert "Commands:" in done.stdout
    assert all(f"  {name}" in done.stdout for name in VERBS)


@pytest.mark.parametrize("name", sorted(verbs()))
def test_every_option_has_help_and_every_verb_json_and_an_example(name: str) -> None:
    verb = verbs()[name]
    flags = [flag for option in verb.params for flag in option.opts]
    assert "--json" in flags
    assert len(flags) == len(set(flags))
    assert f"regard {name}" in (verb.help or ""), "the help shows an example"
    for option in verb.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.opts} has no help"
            if not option.is_flag and isinstance(option.default, str | int | float):
                assert "[default:" in option.help, f"{option.opts} does not say its default"


@pytest.mark.parametrize("task", trained_tasks())
def test_every_setting_of_a_run_is_a_flag_and_no_other(task: str) -> None:
    options = train_command(task).params
    paths = {option.path for option in options if isinstance(option, KnobOption)}
    expected = {knob.path for knob in run_config_class(task).knobs() if not knob.path.startswith("distillation.")}
    assert paths == expected - {"task", "data.train"}


@pytest.mark.parametrize("task", trained_tasks())
def test_the_help_of_a_task_is_short(task: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", task, "--help"]) == 0
    common = re.findall(r"^  (-\S+)", capfd.readouterr().out, re.MULTILINE)
    assert run(["train", task, "--help-all"]) == 0
    everything = re.findall(r"^  (-\S+)", capfd.readouterr().out, re.MULTILINE)
    assert len(common) <= 40 and len(everything) <= 80
    assert set(common) < set(everything)
    assert {"--out", "--valid", "--seed", "--help-all"} <= set(common)
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize("name", sorted(verbs()))
def test_the_help_lists_a_setting_once(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    verb = verbs()[name]
    options = {flag: option for option in verb.params for flag in (*option.opts, *option.secondary_opts)}
    has_help_all = "--help-all" in options
    assert run([*name.split(), "--help-all" if has_help_all else "--help"]) == 0
    flags = re.findall(r"^  (--[\w.-]+)", capfd.readouterr().out, re.MULTILINE)
    listed = [flag for flag in flags if flag.replace("--no-", "--") not in flags or not flag.startswith("--no-")]
    settings = [option.path for flag in listed if isinstance(option := options.get(flag), KnobOption)]
    assert len(settings) == len(set(settings))


def test_the_synonyms_of_verbs_lead_to_verbs() -> None:
    assert set(SYNONYMS.values()) <= set(VERBS) and not set(SYNONYMS) & set(VERBS)


@pytest.mark.parametrize("name", sorted(verbs()))
def test_a_section_of_the_help_has_at_most_fifteen_options(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    has_help_all = any("--help-all" in option.opts for option in verbs()[name].params)
    for flag in ("--help", "--help-all") if has_help_all else ("--help",):
        assert run([*name.split(), flag]) == 0
        _, *sections = re.split(r"^(?=\S.*:$)", capfd.readouterr().out, flags=re.MULTILINE)
        assert sections
        for section in sections:
            assert len(re.findall(r"^  -", section, re.MULTILINE)) <= 15, section


@pytest.mark.parametrize("task", trained_tasks())
def test_the_help_of_a_task_names_its_own_metrics_and_no_other_task(
    task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", task, "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capfd.readouterr().out))
    names = {name for other in trained_tasks() for name in metrics_of(other)}
    common = {"loss", "error", "precision", "accuracy"}  # words of other help lines, too
    assert words & names - common == {*metrics_of(task)} - common
    assert words.isdisjoint({*trained_tasks()} - {task, "translate", "tag", "answer", "elmo"})
    assert set(default_metrics(task)) <= words


def test_the_help_of_a_student_is_about_students(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["distil", "--help-all"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert "--from" not in text and "SQuAD format, scored" not in text
    assert "[default: the teacher's]" in text and "[default: 384]" not in text
    assert "auto: accuracy or micro_f1 or f1. Names:" in text


def test_the_help_of_presets_lists_the_sizes_of_the_task_and_no_other_is_accepted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "masked-lm", "--help"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert "--preset auto|tiny|mini|small|medium|base|large|custom" in text
    assert "tiny 2×128" in text and "12×768" in text
    assert run(["train", "masked-lm", "a.txt", "--preset", "big", "--out", str(tmp_path / "x")]) == 2
    assert "'big' is not one of 'auto', 'tiny', 'mini'" in capfd.readouterr().err


@pytest.mark.parametrize("name", sorted(verbs()))
def test_help_uses_the_terms_of_the_field(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    has_help_all = any("--help-all" in option.opts for option in verbs()[name].params)
    assert run([*name.split(), "--help-all" if has_help_all else "--help"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert not re.findall(r"its ending|faulty|short timing|[Ss]hare of|for causal-lm", text)
    if "--words / --subwords" in text or "--split / --no-split" in text:
        assert re.search(r"\[default: --(subwords|split|no- ?split)", text)


def test_options_without_an_effect_do_not_exist(capfd: pytest.CaptureFixture[str]) -> None:
    for name, option in [
        ("evaluate", "--nbest"),
        ("evaluate", "--diversity-penalty"),
        ("compare", "--nbest"),
        ("score", "--label"),
        ("data check", "--text"),
        ("similar", "--normalize"),
    ]:
        assert run([*name.split(), option, "1"]) == 2
        assert f"no such option: {option}" in capfd.readouterr().err.lower()


def test_train_without_a_task_lists_the_tasks(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train"]) == 0
    out = capfd.readouterr().out
    assert all(f"\n  {task} " in out for task in trained_tasks())
    assert "embed" not in out


def test_an_option_of_another_task_is_answered_with_its_tasks(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "classify", "a.tsv", "--mask-rate", "0.3", "--out", "x"]) == 2
    assert "no such option: --mask-rate is for masked-lm, not for classify" in capfd.readouterr().err
    assert run(["train", "story-qa", "a.txt", "--masking.mask_rate", "0.3", "--out", "x"]) == 2
    assert "--masking.mask_rate is for masked-lm" in capfd.readouterr().err
    assert run(["train", "translte", "a.txt", "--out", "x"]) == 2
    assert "unknown task 'translte' (did you mean translate?)" in capfd.readouterr().err


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean train?"),
        (["export", "runs/mood", "out"], "no such command: export (did you mean convert?)"),
        (["train", "translate", "--setps", "3"], "no such option: --setps (did you mean --steps?)"),
        (["train", "translate", "--out", "x", "--model.encoder.layer=3"], "--model.encoder.num_layers"),
        (["train", "translate", "a.tsv"], "missing option '--out'"),
        (["train", "translate", "a.tsv", "--out", "x", "--steps", "-1"], "--steps"),
        (["train", "translate", "a.tsv", "--out", "x", "--preset", "tinny"], "tiny"),
        (
            ["train", "translate", "--valid", "a.tsv", "b.tsv", "--out", "x"],
            "the files after --valid are validation data",
        ),
        (["train", "translat", "a.tsv", "--out", "x"], "did you mean translate?"),
        (["train", "--recipe", "no-such.json", "--out", "x"], "no-such.json"),
        (
            ["train", "translate", "a", "--out", "x", "--seed", "1", "--model.heads", "2"],
            "no such option: --model.heads",
        ),
        (["translate", "no-such-folder", "text"], "no-such-folder"),
        (["evaluate", "no-such-folder", "a", "b"], "no-such-folder: no such folder"),
        (["score", "no-such-folder", "a", "b"], "a: no such file"),
        (["info", "no-such-folder"], "no such folder"),
        (["convert", "no-such-folder", "out"], "no-such-folder"),
        (["data", "check", "no-such-file.tsv"], "no-such-file.tsv"),
        (["data", "make", "dats", "--out", "x.tsv"], "did you mean dates?"),
        (["data", "make", "dates", "--out", "x.doc"], "must end in .tsv"),
        (["data", "make", "copy", "--lengths", "7", "--out", "x.tsv"], "as in 24-30"),
        (["data", "make", "dates", "--count", "3", "--out", "/dev/null/x.tsv"], "cannot be written"),
    ],
)
def test_an_error_is_one_message_and_exit_code_two(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith("regard: ")
    assert message in error
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_a_recipe_with_an_unknown_setting_names_the_nearest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"task": "translate", "training": {"stesp": 3}}))
    assert run(["train", "--recipe", str(recipe), "--out", str(tmp_path / "x")]) == 2
    error = capfd.readouterr().err
    assert "recipe.json.training: unknown setting 'stesp' (did you mean steps?)" in error


def test_an_unexpected_error_is_one_message_and_a_saved_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError("all is lost")

    monkeypatch.setattr("regard.report.doctor.diagnose", fail)
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    assert run(["doctor"]) == 1
    error = capfd.readouterr().err
    match = re.fullmatch(r"regard: unexpected ZeroDivisionError: all is lost\n  .*please report it with (\S+)\n", error)
    assert match
    report = Path(match[1])
    assert "ZeroDivisionError: all is lost" in report.read_text()
    report.unlink()
    monkeypatch.setenv("REGARD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.report.doctor.diagnose", interrupt)
    assert run(["doctor"]) == 130
    assert capfd.readouterr().err.strip() == ""


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m regard train --help | head -n 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert done.stderr == ""


@pytest.mark.parametrize(("verb", "old"), [(verb, old) for verb, names in RENAMED.items() for old in names])
def test_an_old_option_is_answered_with_the_new_one(verb: str, old: str, capfd: pytest.CaptureFixture[str]) -> None:
    new = RENAMED[verb][old]
    matching = [name for name in verbs() if f"{name} ".startswith(f"{verb} ".lstrip())]
    flags = {name: _flags(verbs()[name]) for name in matching}
    owners = [name for name in matching if new in flags[name] and old not in flags[name]]
    assert owners, f"no verb has {new}"
    for name in owners:
        assert run([*name.split(), old]) == 2
        assert f"regard: {old} is now {new}\n" in capfd.readouterr().err


def _flags(command: click.Command) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


# ---- settings


def test_auto_is_a_value_on_the_command_line_in_recipes_and_in_run_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = build_run("translate", {"training.threads": "auto", "training.learning_rate": 0.01})
    assert (config.training.threads, config.to_dict()["training"]["threads"]) == (0, "auto")
    assert config.to_dict()["training"]["learning_rate"] == 0.01
    assert run_config_class("translate").from_dict(config.to_dict()) == config
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"task": "translate", "data": {"train": ["a"]}, "training": {"threads": 3}}))
    from_recipe, _ = configure_run("translate", (), str(recipe), {"training.threads": "auto"})
    assert from_recipe.training.threads == 0
    for option, value, allowed in [
        ("--threads", "0", "auto, or a whole number from 1"),
        ("--threads", "many", "auto, or a whole number from 1"),
        ("--learning-rate", "0", "auto, or a number above 0"),
    ]:
        assert run(["train", "translate", "a.tsv", option, value, "--out", str(tmp_path / "x")]) == 2
        assert f"'{value}': must be {allowed}\n" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="threads must be a whole number or auto, not 'many'"):
        build_run("translate", {"training.threads": "many"})
    with pytest.raises(ConfigError, match="must be a whole number or auto, not False"):
        build_run("translate", {"training.threads": False})


def test_files_flags_and_dotted_settings_are_one_config() -> None:
    settings = {"training.steps": 7, "data.valid": ("c", "d"), "decoding.beam": 3}
    config, _ = configure_run("translate", ("a", "b"), None, settings)
    assert isinstance(config, TranslateRun)
    assert config.data.train == ("a", "b")
    assert config.data.valid == ("c", "d")
    assert (config.training.steps, config.decoding.beam, config.preset) == (7, 3, "auto")


def test_flags_override_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(
        json.dumps({"task": "translate", "data": {"train": ["a", "b"]}, "training": {"steps": 5, "seed": 3}})
    )
    config, _ = configure_run("translate", (), str(recipe), {"training.steps": 9})
    assert isinstance(config, TranslateRun)
    assert (config.training.steps, config.training.seed, config.data.train) == (9, 3, ("a", "b"))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.json")), ids=lambda path: path.name)
def test_every_recipe_is_a_run(path: Path) -> None:
    config, _ = configure_run("translate", (), str(path), {})
    assert config.data.train
    assert config.data.valid


def test_model_settings_change_the_named_preset_and_need_one() -> None:
    config = TranslateRun.build({"preset": "tiny", "model.dropout": 0.05})
    assert config.preset == "custom"
    assert (config.model.hidden_size, config.model.dropout) == (128, 0.05)
    custom = TranslateRun.build({"preset": "custom", "model.hidden_size": 64})
    assert (custom.model.hidden_size, custom.model.encoder.num_layers) == (64, TransformerConfig().encoder.num_layers)
    with pytest.raises(ConfigError, match="--preset micro, tiny, small, base, big, or custom"):
        build_run("translate", {"model.hidden_size": 64})
    with pytest.raises(ConfigError, match="must divide hidden_size"):
        build_run("translate", {"preset": "tiny", "model.encoder.num_heads": 5})


def test_training_needs_files_and_a_known_task(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no training files"):
        configure_run("translate", (), None, {})
    file = tmp_path / "a.tsv"
    file.touch()
    assert run(["train", str(file), "--out", "x"]) == 2
    assert f"regard train translate {file}" in capfd.readouterr().err
    with pytest.raises(UsageError, match="unknown task 'nothing'"):
        build_run("nothing", {})


def test_a_recipe_names_its_task(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"task": "elmo", "data": {"train": [str(tmp_path / "none.txt")]}}))
    assert run(["train", "--recipe", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert "none.txt: no such file" in capfd.readouterr().err
    assert run(["train", "tag", "--recipe", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert "is for the task elmo: regard train elmo --recipe" in capfd.readouterr().err
    recipe.write_text(json.dumps({"data": {"train": ["a"]}}))
    assert run(["train", "--recipe", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert "the task of a recipe must be one of translate, classify, " in capfd.readouterr().err
    recipe.write_text(json.dumps({"task": "elmo", "masking": {"mask_rate": 0.3}}))
    assert run(["train", "elmo", "a.txt", "--recipe", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert "unknown setting 'masking' of the task elmo: it is a setting of masked-lm" in capfd.readouterr().err


# ---- data, doctor


def test_synthetic_data_are_written_checked_joined_and_cleaned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = str(tmp_path / "all.tsv")
    left = str(tmp_path / "in.txt.gz")
    right = str(tmp_path / "out.txt")
    assert run(["data", "make", "sort", "--count", "53", "--out", both]) == 0
    assert run(["data", "make", "sort", "--count", "53", "--out", left, right, "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"rows": 53, "out": [left, right]}
    rows = [line.split("\t") for line in Path(both).read_text().splitlines()]
    assert gzip.decompress(Path(left).read_bytes()).decode().splitlines() == [row[0] for row in rows]
    assert Path(right).read_text().splitlines() == [row[1] for row in rows]
    assert all(sorted(source.split()) == target.split() for source, target in rows)

    assert run(["data", "check", left, right, "--test", both, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["splits"]["train"]["pairs"] == 53
    assert report["overlaps"]["test"]["pairs"] == 53

    clean = str(tmp_path / "clean.jsonl")
    joined = str(tmp_path / "joined.tsv")
    assert run(["data", "join", both, "--max-pairs", "3", "--out", joined, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == len(Path(joined).read_text().splitlines()) < 53
    assert run(["data", "clean", both, "--max-words", "7", "--out", clean, "--json"]) == 0
    counts = json.loads(capfd.readouterr().out)
    pairs = [json.loads(line) for line in Path(clean).read_text().splitlines()]
    assert len(pairs) == counts["kept"] == sum(len(source.split()) <= 7 for source, _ in rows)
    assert counts["kept"] + sum(counts["removed"].values()) == 53


def test_a_text_with_a_tab_is_not_written_to_a_tsv(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"source": "a\tb", "target": "c"}) + "\n")
    out = tmp_path / "out.tsv"
    code = run(["data", "clean", str(source), "--out", str(out)])
    assert (code, out.exists()) == (2, False)
    assert "tab" in capfd.readouterr().err


def test_the_doctor_describes_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--quick", "--json"]) == 0
    diagnosis = json.loads(capfd.readouterr().out)
    assert diagnosis["cores"] >= 1
    assert diagnosis["versions"]["torch"]
    assert diagnosis["products"] == {}
    assert run(["doctor", "--quick"]) == 0
    assert "advice" in capfd.readouterr().out or not diagnosis["advice"]
