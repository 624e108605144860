"""The verdict on a run: reported everywhere where it learned nothing, silent where it learned."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import run
from regard.config.task_runs import TranslateRun
from regard.tasks.translation import TranslationObjective
from regard.training.run import train_run
from regard.training.verdict import Limit, TrivialBaseline, judge
from tests.encoders import saved_encoder
from tests.stories import write
from tests.training.listener import sittings

Output = pytest.CaptureFixture[str]

WORDS = "ada alan grace went saw liked the big old red house tree river in near by London Paris Rome".split()
TRANSLATOR = {
    "preset": "custom",
    "model.hidden_size": 32,
    "model.encoder.num_layers": 1,
    "model.decoder.num_layers": 1,
    "model.encoder.feed_forward_size": 32,
    "model.decoder.feed_forward_size": 32,
    "model.dropout": 0.0,
    "training.batch_tokens": 256,
    "training.learning_rate": 0.005,
    "training.threads": 1,
    "training.precision": "float32",
}


def to_options(settings: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data for every task, and an encoder with random weights."""
    folder = tmp_path_factory.mktemp("verdict")
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(3, 7))) for _ in range(300)]
    (folder / "texts.txt").write_text("\n".join(texts))
    rows = [rng.choices("abcdef", k=rng.randint(2, 4)) for _ in range(600)]
    (folder / "reverse.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows))
    labels = [("long" if len(text.split()) > 4 else "short") for text in texts]
    (folder / "labels.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)))
    multi_label = [
        f"{text}\t{label}{'; river' if 'river' in text else ''}\n" for text, label in zip(texts, labels, strict=True)
    ]
    (folder / "several.tsv").write_text("".join(multi_label))
    tags = ["\n".join(f"{word}\t{'B-place' if word[0].isupper() else 'O'}" for word in text.split()) for text in texts]
    (folder / "places.conll").write_text("\n\n".join(tags) + "\n")
    paragraphs = []
    for text in texts[:60]:
        passage = f"{text} and then Alan Turing went home"
        answers = [{"text": "Alan Turing", "answer_start": passage.index("Alan Turing")}]
        paragraphs.append({"context": passage, "qas": [{"question": "what went home then", "answers": answers}]})
    (folder / "asked.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    write(folder, "walks.txt", 61, seed=1)
    saved_encoder(folder / "encoder", [*texts, "and then home", "what thing"])
    return folder


FILES = {
    "translate": "reverse.tsv --steps 3",
    "translate, rnn": "reverse.tsv --arch rnn --steps 3",
    "causal-lm": "texts.txt --document-boundary line --steps 3",
    "elmo": "texts.txt --document-boundary line --steps 3",
    "masked-lm": "texts.txt --document-boundary line --steps 3",
    "classify": "labels.tsv --steps 1 --learning-rate 1e-7",
    "classify, seeds": "labels.tsv --steps 1 --learning-rate 1e-7 --seeds 2",
    "classify, bert": "labels.tsv --from DATA/encoder --steps 1 --learning-rate 1e-7",
    "classify, several": "several.tsv --from DATA/encoder --label-separator ; --steps 1 --learning-rate 1e-7",
    "tag": "places.conll --steps 1 --learning-rate 1e-7",
    "tag, bert": "places.conll --from DATA/encoder --steps 1 --learning-rate 1e-7",
    "answer": "asked.json --from DATA/encoder --steps 1 --learning-rate 1e-7",
    "story-qa": "walks.txt --epochs 1 --learning-rate 1e-7 --restarts 1 --training.linear_start=false",
}


def command(data: Path, name: str, out: Path) -> list[str]:
    file, *options = FILES[name].replace("DATA", str(data)).split()
    task, *_ = name.split(",")
    precision = [] if task == "story-qa" else ["--precision", "float32"]  # memory networks have no other
    return ["train", task, str(data / file), *options, "--threads", "1", *precision, "--out", str(out)]


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_learned_nothing_is_reported_everywhere(
    name: str, data: Path, tmp_path: Path, capfd: Output
) -> None:
    assert run(command(data, name, tmp_path / "run")) == 0
    training, result, advice = capfd.readouterr().out.splitlines()
    assert training.startswith("trained  ")
    label, reason = result.split(maxsplit=1)
    assert label == "result"
    assert reason.startswith("learned nothing: ")
    assert "train longer: --" in reason
    assert "with another --out" in reason
    assert advice.startswith(f"next     regard train {name.split(',')[0]} ")
    assert advice.endswith(f" --out {tmp_path / 'run-2'}")

    for file in ("run.json", "task.json"):
        record = json.loads((tmp_path / "run" / file).read_text())
        verdict = record.get("result", record)["verdict"]
        assert verdict["status"] == "learned_nothing", file
        assert verdict["baseline"]
    assert f"**L{reason[1:]}.**" in (tmp_path / "run/README.md").read_text()

    assert run(["info", str(tmp_path / "run")]) == 0
    assert reason in capfd.readouterr().out.splitlines()

    assert run([*command(data, name, tmp_path / "run"), "--json"]) == 0  # finished before: still the same verdict
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert report["verdict"] == verdict


def test_a_model_that_learned_has_no_warning(data: Path, tmp_path: Path, capfd: Output) -> None:
    arguments = ["train", "translate", str(data / "reverse.tsv"), "--out", str(tmp_path / "run"), "--steps", "350"]
    assert run([*arguments, *to_options(TRANSLATOR)]) == 0
    training, result, advice = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"trained  Transformer, .+; [\d,]+ parameters, on \d+ pairs, 350 steps in .+: .+/run", training)
    assert re.fullmatch(r"result   BLEU [\d.]+ on validation data; baseline [\d.]+ \(.+\)", result)
    assert advice == f'next     regard translate {tmp_path / "run"} "A text to translate."'
    record = json.loads((tmp_path / "run/task.json").read_text())
    assert record["verdict"]["status"] == "ok"
    assert 4 < record["verdict"]["baseline"]["token frequencies"]["perplexity"] < 9  # six letters and the end
    assert run(["info", str(tmp_path / "run")]) == 0
    assert "needed" not in capfd.readouterr().out


def test_a_run_that_was_too_short_advises_how_long_to_train(data: Path, tmp_path: Path, capfd: Output) -> None:
    arguments = ["train", "translate", str(data / "reverse.tsv"), "--out", str(tmp_path / "run"), "--steps", "160"]
    assert run([*arguments, *to_options(TRANSLATOR)]) == 0
    _, result, advice = capfd.readouterr().out.splitlines()
    assert "; more time is needed: validation " in result
    assert result.endswith("train longer: --steps 640, with another --out")
    assert advice.startswith(f"next     regard train translate {data / 'reverse.tsv'} ")
    assert advice.endswith(f" --steps 640 --out {tmp_path / 'run-2'}")


def test_an_interrupted_run_has_the_verdict_of_an_uninterrupted_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**TRANSLATOR, "data.train": (str(data / "reverse.tsv"),), "training.steps": 160}
    config = TranslateRun().override({**settings, "training.save_every": 19})
    uninterrupted = train_run(config, tmp_path / "uninterrupted").verdict
    assert uninterrupted is not None
    assert uninterrupted.status == "needs_more_time"
    assert sittings(TranslationObjective, lambda: train_run(config, tmp_path / "killed"), monkeypatch, every=45) > 2
    assert train_run(config, tmp_path / "killed").verdict == uninterrupted


def test_the_python_interface_warns(data: Path, tmp_path: Path) -> None:
    settings = {"steps": 3, "threads": 1, "precision": "float32"}
    with pytest.warns(UserWarning, match="learned nothing: 3 updates are too few"):
        regard.train("translate", data / "reverse.tsv", out=tmp_path / "run", **settings)


# ---- the decision


def history(scores: Callable[[float], dict[str, float]], steps: int = 2000) -> list[dict[str, Any]]:
    """Twenty evaluations over a run, each of them the best so far."""
    evaluation_steps = [steps * (index + 1) // 20 for index in range(20)]
    return [{"step": step, "best": True, **scores(step / steps)} for step in evaluation_steps]


TOKENS = TrivialBaseline("token frequencies", {"perplexity": 300.0}, {"perplexity": 15.0})
MINUTES = Limit("--minutes", 10)


def test_a_converged_run_needs_no_more_time() -> None:
    evaluations = history(
        lambda progress: {"bleu": 30 - 0.5 / progress, "loss": 1.8 + 0.1 / progress, "perplexity": 7.0}
    )
    assert judge(evaluations, metric="bleu", updates=2000, baselines=[TOKENS], limit=MINUTES).status == "ok"


def test_a_perfect_model_is_fine_even_where_the_baseline_is_perfect_too() -> None:
    majority = TrivialBaseline("always “yes”", {"accuracy": 100.0})
    evaluations = [{"step": 3, "accuracy": 100.0, "loss": 0.5, "best": True}]
    assert judge(evaluations, metric="accuracy", updates=3, baselines=[majority], limit=MINUTES).status == "ok"


def test_a_run_that_still_improves_needs_more_time_unless_patience_ended_it() -> None:
    evaluations = history(lambda progress: {"bleu": 20 * progress, "loss": 4 - progress, "perplexity": 60.0})
    verdict = judge(evaluations, metric="bleu", updates=2000, baselines=[TOKENS], limit=MINUTES)
    assert verdict.status == "needs_more_time"
    assert verdict.reason == "validation BLEU still rose from 16 to 20 in the last 20 % of the run"
    assert verdict.remedy == "train longer: --minutes 40, with another --out"
    assert judge(evaluations, metric="bleu", updates=2000, baselines=[TOKENS], limit=None).status == "ok"


def test_a_run_whose_time_ended_within_the_first_epoch_needs_more_time() -> None:
    majority = TrivialBaseline("always “entity”", {"accuracy": 22.6})
    evaluations = [{"step": step, "accuracy": 47.0, "loss": 1.37, "best": step == 18} for step in range(4, 22)]

    def judge_epochs(epochs: float, limit: Limit = MINUTES, updates: int = 21, is_pretrained: bool = False) -> str:
        verdict = judge(
            evaluations,
            metric="accuracy",
            updates=updates,
            baselines=[majority],
            limit=limit,
            epochs=epochs,
            is_pretrained=is_pretrained,
        )
        return verdict.text

    reason = "more time is needed: the time ended after 21 updates, on 13 % of the training data"
    assert judge_epochs(0.13).startswith(f"{reason}; train longer: --minutes 40")
    assert not judge_epochs(1.5)
    assert not judge_epochs(0.13, Limit("--steps", 21))
    assert not judge_epochs(0.13, updates=500)
    assert not judge_epochs(0.13, is_pretrained=True)


def test_a_score_after_the_best_is_no_reason_for_more_time() -> None:
    evaluations = history(lambda progress: {"bleu": 20 * progress, "loss": 4 - progress, "perplexity": 60.0})
    evaluations[-1] |= {"bleu": 18.0, "loss": 3.1, "best": False}
    assert judge(evaluations, metric="bleu", updates=2000, baselines=[TOKENS], limit=MINUTES).status == "ok"


def test_more_updates_are_no_remedy_after_many_without_success() -> None:
    evaluations = history(lambda progress: {"bleu": 0.0, "exact_match": 0.0, "loss": 6.0, "perplexity": 400.0}, 9000)
    verdict = judge(evaluations, metric="bleu", updates=9000, baselines=[TOKENS], limit=MINUTES)
    assert verdict.status == "learned_nothing"
    assert verdict.reason == "validation perplexity 400 is no better than token frequencies (300) after 9,000 updates"
    assert "--learning-rate" in verdict.remedy


def test_few_updates_of_a_pretrained_model_may_be_enough() -> None:
    evaluations = [{"step": 5, "bleu": 31.0, "loss": 1.9, "perplexity": 6.7, "best": True}]
    assert (
        judge(evaluations, metric="bleu", updates=5, baselines=[TOKENS], limit=MINUTES, is_pretrained=True).status
        == "ok"
    )
    assert judge(evaluations, metric="bleu", updates=5, baselines=[TOKENS], limit=MINUTES).status == "learned_nothing"
