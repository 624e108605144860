"""Bars of fine-tuning: one encoder taught to classify, to tag and to answer, beside baselines and other people's loops.

    python -m benchmarks.bars.fine_tuning DATA --from FOLDER --out runs [--part sst2 --seeds 5]

DATA holds sst2, trec, wnut17, uner_en_ewt, qamr, policyqa and squad_xquad_en; FOLDER is a small BERT (MiniLM).
All is done by the public commands. Parts: sst2, trec (accuracy, calibration, baseline), labels (kinds of entities that
a sentence names, none to several: macro-F1 before and after thresholds are tuned), wnut, uner (strict entity F1
beside Hugging Face's Trainer from the same weights, data and passes), answers (F1 and exact match beside the same
training with transformers).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bars.command import regard_json
from benchmarks.bars.elmo_trec import questions, report

ACCURACY = {"sst2": 87.5, "trec": 95.0}
MINUTES, CALIBRATION = 10.0, 0.04
BELOW, OVER_OVERLAP = 1.0, 15.0  # points: at most below the peer, at least over word overlap
PASSES = {"wnut": 5, "uner": 5, "answers": 2}
Arguments = argparse.Namespace


def trained(arguments: Arguments, task: str, train: object, name: str, *more: object) -> dict[str, Any]:
    """Return the report of training from the folder, over the seeds."""
    options = ("--from", arguments.start, "--seeds", arguments.seeds, "--threads", arguments.threads)
    return report(task, train, *options, *more, "--out", arguments.out / name)


def shown(name: str, found: Mapping[str, float], measure: str) -> str:
    """Return a mean with its deviation over seeds."""
    return f"{name}: {measure.replace('_', ' ')} {found[measure]:.2f} ± {found.get(measure + '_deviation', 0.0):.2f}"


def classified(arguments: Arguments, name: str, files: Mapping[str, Path]) -> bool:
    """Classify by one label; the baseline and the calibration stand beside."""
    valid = ("--valid", files["valid"]) if "valid" in files else ()
    done = trained(arguments, "classify", files["train"], name, *valid, "--test", files["test"])
    found, minutes = done["metrics"], done["seconds"] / 60 / arguments.seeds
    print(shown(name, found, "test_accuracy"), f"(baseline {found['test_baseline']:.2f}), {minutes:.1f} min a seed")
    print(
        f"{name}: calibration error {found['test_calibration_error']:.4f}, "
        f"before calibration {found['test_calibration_error_before']:.4f}"
    )
    holds = found["test_accuracy"] >= ACCURACY[name] and (name != "sst2" or minutes <= MINUTES)
    if name == "sst2":
        after, before = found["test_calibration_error"], found["test_calibration_error_before"]
        holds = holds and after <= CALIBRATION and after < before
    print(json.dumps({"part": name, "holds": holds, "minutes": minutes, **found}), flush=True)
    return holds


def sst2(arguments: Arguments) -> bool:
    """Moods of sentences."""
    files = {role: arguments.data / f"sst2/{file}.tsv" for role, file in _ROLES.items()}
    return classified(arguments, "sst2", files)


_ROLES = {"train": "train", "valid": "dev", "test": "test"}


def trec(arguments: Arguments) -> bool:
    """Kinds of questions."""
    data, out = arguments.data / "trec", arguments.out
    files = {name: questions(data / f"TREC.{name}.all", out / f"trec-{name}.tsv") for name in ("train", "test")}
    return classified(arguments, "trec", files)


def kinds_named(source: Path, out: Path) -> Path:
    """Write sentences with the kinds of entities that each names: none, one or several."""
    from regard.data.tagged import read_tagged

    rows = []
    for sentence in read_tagged([source]).sentences:
        found = sorted({tag.split("-", 1)[1] for tag in sentence.tags if "-" in tag})
        rows.append({"text": sentence.text, "label": found})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return out


def labels(arguments: Arguments) -> bool:
    """Say which kinds of entities a sentence names; thresholds are tuned on validation texts."""
    data, out = arguments.data / "wnut17", arguments.out
    files = {role: kinds_named(data / f"{file}.conll", out / f"kinds-{role}.jsonl") for role, file in _ROLES.items()}
    parts = ("--valid", files["valid"], "--test", files["test"])
    found = trained(arguments, "classify", files["train"], "labels", "--separator", ";", *parts)["metrics"]
    before, after = found["test_macro_f1_before"], found["test_macro_f1"]
    print(shown("labels, thresholds of 0.5", found, "test_macro_f1_before"))
    print(shown("labels, thresholds tuned", found, "test_macro_f1"), f"(baseline {found['test_baseline']:.2f})")
    holds = bool(after > before)
    print(json.dumps({"part": "labels", "holds": holds, **found}), flush=True)
    return holds


def tagged(arguments: Arguments, name: str, train: Path, test: Path) -> bool:
    """Tag entities, beside Hugging Face's Trainer; both keep the last weights' passes and the best on held-out data."""
    passes = arguments.passes or PASSES[name]
    found = trained(arguments, "tag", train, name, "--epochs", passes, "--test", test)["metrics"]
    print(shown(name, found, "test_f1"), f"(each word's usual tag {found['test_baseline']:.2f})")
    if not arguments.peers:
        return True
    from benchmarks.bars.fine_tuning_peers import tagged as peer

    given = (arguments.start, train, test, passes)
    theirs = [peer(*given, seed, arguments.bf16) for seed in range(1, arguments.seeds + 1)]
    mean = statistics.fmean(theirs)
    print(f"{name}: Hugging Face's Trainer {mean:.2f} ({', '.join(f'{one:.2f}' for one in theirs)})")
    holds = bool(found["test_f1"] >= mean - BELOW)
    print(json.dumps({"part": name, "holds": holds, "f1": found["test_f1"], "peer": mean}), flush=True)
    return holds


def wnut(arguments: Arguments) -> bool:
    """Emerging entities in noisy text."""
    return tagged(arguments, "wnut", arguments.data / "wnut17/train.conll", arguments.data / "wnut17/test.conll")


def uner(arguments: Arguments) -> bool:
    """Entities in cleaner text; the development file is learned from."""
    files = [arguments.data / f"uner_en_ewt/en_ewt-ud-{part}.iob2.gz" for part in ("dev", "test")]
    return tagged(arguments, "uner", *files)


def span_questions(folder: Path, part: str, out: Path) -> Path:
    """Write questions of QAMR, whose answers are numbers of words, in the form of SQuAD; those in one piece only."""
    with gzip.open(folder / "wiki-sentences.tsv.gz", "rt", encoding="utf-8") as file:
        texts = dict(line.rstrip("\n").split("\t", 1) for line in file)
    asked: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(folder / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            cells = line.rstrip("\n").split("\t")
            words = texts[cells[0]].split(" ")
            answers = []
            for given in (cells[6], *(cell.split(":", 1)[1] for cell in cells[7:9])):
                places = sorted({int(place) for place in given.split()})
                if places and places == [*range(places[0], places[-1] + 1)]:
                    start = len(" ".join([*words[: places[0]], ""]))
                    answers.append({"text": " ".join(words[places[0] : places[-1] + 1]), "answer_start": start})
            if answers:
                asked.setdefault(cells[0], []).append({"id": str(number), "question": cells[5], "answers": answers})
    paragraphs = [{"context": texts[name], "qas": found} for name, found in asked.items()]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"data": [{"title": part, "paragraphs": paragraphs}]}), "utf-8")
    return out


def answers(arguments: Arguments) -> bool:
    """Learn from QAMR's and PolicyQA's development files; answer SQuAD's paragraphs and QAMR's test."""
    data, out = arguments.data, arguments.out
    train = [span_questions(data / "qamr", "dev", out / "qamr-dev.json"), data / "policyqa/dev.json.gz"]
    tests = {
        "squad": data / "squad_xquad_en/dev.json.gz",
        "qamr": span_questions(data / "qamr", "test", out / "qamr-test.json"),
    }
    passes = arguments.passes or PASSES["answers"]
    options = ("--from", arguments.start, "--epochs", passes, "--threads", arguments.threads)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in tests}
    for seed in range(1, arguments.seeds + 1):
        folder = out / f"answers-{seed}"
        report("answer", *train, *options, "--seed", seed, "--out", folder)
        for name, test in tests.items():
            found[name].append(regard_json("evaluate", folder, test, "--threads", arguments.threads)[0])
    theirs: list[list[dict[str, float]]] = []
    if arguments.peers:
        from benchmarks.bars.fine_tuning_peers import answered as peer

        given = (arguments.start, train, [*tests.values()], passes)
        theirs = [peer(*given, seed, arguments.bf16) for seed in range(1, arguments.seeds + 1)]
    holds = True
    for place, (name, test) in enumerate(tests.items()):
        means = {key: statistics.fmean(one[key] for one in found[name]) for key in ("f1", "exact")}
        line: dict[str, Any] = {"part": f"answers, {name}", **means, "overlap_f1": overlap(test)}
        holds = holds and means["f1"] >= line["overlap_f1"] + OVER_OVERLAP
        if theirs:
            line |= {f"peer_{key}": statistics.fmean(one[place][key] for one in theirs) for key in ("f1", "exact")}
            holds = holds and means["f1"] >= line["peer_f1"] - BELOW
        print(json.dumps({**line, "holds": holds}), flush=True)
    return holds


def overlap(test: Path) -> float:
    """Return the F1 of the run of words that stands nearest to the question's words."""
    from regard.data.passages import read_questions
    from regard.tasks.spans import answer_scores, overlap_answer

    asked = read_questions([test]).asked
    return answer_scores([overlap_answer(one.question, one.passage) for one in asked], asked)["f1"]


PARTS: dict[str, Callable[[Arguments], bool]] = {
    "sst2": sst2,
    "trec": trec,
    "labels": labels,
    "wnut": wnut,
    "uner": uner,
    "answers": answers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--from", dest="start", required=True, help="the folder of the encoder to start from")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--part", choices=PARTS, action="append", help="one or several; all where none is named")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--passes", type=int, default=0, help="over the data of wnut, uner, answers; 0: as ever")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave other people's training out")
    parser.add_argument("--peers-bf16", dest="bf16", action="store_true", help="let them compute in bf16")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {name: PARTS[name](arguments) for name in arguments.part or PARTS}
    print(json.dumps(results))
    sys.exit(0 if all(results.values()) else 1)


if __name__ == "__main__":
    main()
