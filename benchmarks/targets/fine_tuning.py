"""Targets of fine-tuning: an encoder that classifies, tags and answers, beside baselines and Hugging Face's Trainer.

    python -m benchmarks.targets.fine_tuning DATA --from FOLDER --out runs [--part sst2 --seeds 5]

DATA contains sst2, trec, wnut17, uner_en_ewt, qamr, policyqa and squad_xquad_en; FOLDER is a small BERT (MiniLM).
Regard is run by its public commands. Parts: sst2 and trec (accuracy, calibration, baseline), labels (types of entities
in a sentence, none to several: macro-F1 before and after thresholds are tuned), wnut and uner (strict entity F1 beside
Hugging Face's Trainer from the same weights, data and epochs), answers (F1 and exact match beside the same Trainer).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.targets.command import run_regard_json, train
from benchmarks.targets.datasets import SPLIT_FILES, convert_qamr, convert_trec, write_entity_types

MIN_ACCURACY = {"sst2": 87.5, "trec": 95.0}
MAX_MINUTES = 10.0  # of SST-2, for each seed
MAX_CALIBRATION_ERROR = 0.04  # of SST-2
MAX_BELOW_PEER = 1.0  # points of F1
MIN_OVER_OVERLAP = 15.0  # points of F1 over the word-overlap baseline
EPOCHS = {"wnut": 5, "uner": 5, "answers": 2}

Arguments = argparse.Namespace


def fine_tune(arguments: Arguments, task: str, train_file: object, name: str, *options: object) -> dict[str, Any]:
    """Fine-tune the encoder from each seed and return the report."""
    common = ("--from", arguments.pretrained, "--seeds", arguments.seeds, "--threads", arguments.threads)
    return train(task, train_file, *common, *options, "--out", arguments.out / name)


def format_metric(name: str, metrics: Mapping[str, float], metric: str) -> str:
    """Mean and deviation over seeds."""
    deviation = metrics.get(f"{metric}_deviation", 0.0)
    return f"{name}: {metric.replace('_', ' ')} {metrics[metric]:.2f} ± {deviation:.2f}"


def check_classification(arguments: Arguments, name: str, files: Mapping[str, Path]) -> bool:
    """Classify with one label per text; report baseline and calibration."""
    valid = ("--valid", files["valid"]) if "valid" in files else ()
    report = fine_tune(arguments, "classify", files["train"], name, *valid, "--test", files["test"])
    metrics = report["metrics"]
    minutes = report["seconds"] / 60 / arguments.seeds
    baseline = metrics["test_baseline"]
    error = metrics["test_calibration_error"]
    error_before = metrics["test_calibration_error_before"]
    accuracy = format_metric(name, metrics, "test_accuracy")
    print(f"{accuracy} (baseline {baseline:.2f}), {minutes:.1f} min per seed")
    print(f"{name}: calibration error {error:.4f}, before calibration {error_before:.4f}")
    is_met = metrics["test_accuracy"] >= MIN_ACCURACY[name]
    if name == "sst2":
        is_calibrated = error <= MAX_CALIBRATION_ERROR and error < error_before
        is_met = is_met and minutes <= MAX_MINUTES and is_calibrated
    print(json.dumps({"part": name, "met": is_met, "minutes": minutes, **metrics}), flush=True)
    return bool(is_met)


def check_sst2(arguments: Arguments) -> bool:
    """Sentiment of sentences."""
    files = {split: arguments.data / f"sst2/{name}.tsv" for split, name in SPLIT_FILES.items()}
    return check_classification(arguments, "sst2", files)


def check_trec(arguments: Arguments) -> bool:
    """Types of questions."""
    files = {
        split: convert_trec(arguments.data / f"trec/TREC.{split}.all", arguments.out / f"trec-{split}.tsv")
        for split in ("train", "test")
    }
    return check_classification(arguments, "trec", files)


def check_labels(arguments: Arguments) -> bool:
    """Types of entities in a sentence; thresholds are tuned on validation texts."""
    files = {
        split: write_entity_types(arguments.data / f"wnut17/{name}.conll", arguments.out / f"kinds-{split}.jsonl")
        for split, name in SPLIT_FILES.items()
    }
    options = ("--label-separator", ";", "--valid", files["valid"], "--test", files["test"])
    metrics = fine_tune(arguments, "classify", files["train"], "labels", *options)["metrics"]
    print(format_metric("labels, thresholds of 0.5", metrics, "test_macro_f1_before"))
    tuned = format_metric("labels, thresholds tuned", metrics, "test_macro_f1")
    print(f"{tuned} (baseline {metrics['test_baseline']:.2f})")
    is_met = bool(metrics["test_macro_f1"] > metrics["test_macro_f1_before"])
    print(json.dumps({"part": "labels", "met": is_met, **metrics}), flush=True)
    return is_met


def check_tagging(arguments: Arguments, name: str, train_file: Path, test_file: Path) -> bool:
    """Tag entities, beside Hugging Face's Trainer with the same epochs and held-out data."""
    epochs = arguments.epochs or EPOCHS[name]
    metrics = fine_tune(arguments, "tag", train_file, name, "--epochs", epochs, "--test", test_file)["metrics"]
    f1 = format_metric(name, metrics, "test_f1")
    print(f"{f1} (baseline: each word's most frequent tag, {metrics['test_baseline']:.2f})")
    if not arguments.peers:
        return True
    from benchmarks.targets.hf_fine_tuning import train_tagger

    peer_scores = [
        train_tagger(arguments.pretrained, train_file, test_file, epochs=epochs, seed=seed, bf16=arguments.bf16)
        for seed in range(1, arguments.seeds + 1)
    ]
    mean = statistics.fmean(peer_scores)
    print(f"{name}: Hugging Face's Trainer {mean:.2f} ({', '.join(f'{score:.2f}' for score in peer_scores)})")
    is_met = bool(metrics["test_f1"] >= mean - MAX_BELOW_PEER)
    print(json.dumps({"part": name, "met": is_met, "f1": metrics["test_f1"], "peer": mean}), flush=True)
    return is_met


def check_wnut(arguments: Arguments) -> bool:
    """Emerging entities in noisy text."""
    folder = arguments.data / "wnut17"
    return check_tagging(arguments, "wnut", folder / "train.conll", folder / "test.conll")


def check_uner(arguments: Arguments) -> bool:
    """Entities in cleaner text; the development file is the training data."""
    folder = arguments.data / "uner_en_ewt"
    return check_tagging(arguments, "uner", folder / "en_ewt-ud-dev.iob2.gz", folder / "en_ewt-ud-test.iob2.gz")


def check_answers(arguments: Arguments) -> bool:
    """Train on the development files of QAMR and PolicyQA; answer SQuAD's paragraphs and QAMR's test."""
    data = arguments.data
    out = arguments.out
    train_files = [convert_qamr(data / "qamr", "dev", out / "qamr-dev.json"), data / "policyqa/dev.json.gz"]
    test_files = {
        "squad": data / "squad_xquad_en/dev.json.gz",
        "qamr": convert_qamr(data / "qamr", "test", out / "qamr-test.json"),
    }
    epochs = arguments.epochs or EPOCHS["answers"]
    seeds = range(1, arguments.seeds + 1)
    options = ("--from", arguments.pretrained, "--epochs", epochs, "--threads", arguments.threads)
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in test_files}
    for seed in seeds:
        model = out / f"answers-{seed}"
        train("answer", *train_files, *options, "--seed", seed, "--out", model)
        for name, test_file in test_files.items():
            evaluation = run_regard_json("evaluate", model, test_file, "--threads", arguments.threads)
            scores[name].append(evaluation[0])
    peer_scores: list[list[dict[str, float]]] = []  # by seed and test file
    if arguments.peers:
        from benchmarks.targets.hf_fine_tuning import train_answerer

        tests = list(test_files.values())
        peer_scores = [
            train_answerer(arguments.pretrained, train_files, tests, epochs=epochs, seed=seed, bf16=arguments.bf16)
            for seed in seeds
        ]
    is_met = True
    for index, (name, test_file) in enumerate(test_files.items()):
        peers = [by_test[index] for by_test in peer_scores]
        is_met &= _check_answer_scores(name, test_file, scores[name], peers)
    return is_met


def _check_answer_scores(
    name: str, test_file: Path, scores: Sequence[dict[str, float]], peer_scores: Sequence[dict[str, float]]
) -> bool:
    means = {metric: statistics.fmean(score[metric] for score in scores) for metric in ("f1", "exact_match")}
    overlap_f1 = word_overlap_f1(test_file)
    is_met = means["f1"] >= overlap_f1 + MIN_OVER_OVERLAP
    result: dict[str, Any] = {"part": f"answers, {name}", **means, "overlap_f1": overlap_f1}
    if peer_scores:
        for metric in ("f1", "exact_match"):
            result[f"peer_{metric}"] = statistics.fmean(score[metric] for score in peer_scores)
        is_met = is_met and means["f1"] >= result["peer_f1"] - MAX_BELOW_PEER
    print(json.dumps({**result, "met": is_met}), flush=True)
    return is_met


def word_overlap_f1(test_file: Path) -> float:
    """F1 of a baseline: the run of words nearest to the question's words."""
    from regard.data.squad import read_squad
    from regard.tasks.question_answering import answer_scores, word_overlap_baseline

    questions = read_squad([test_file]).examples
    answers = [word_overlap_baseline(question.question, question.passage) for question in questions]
    return answer_scores(answers, questions)["f1"]


PARTS: dict[str, Callable[[Arguments], bool]] = {
    "sst2": check_sst2,
    "trec": check_trec,
    "labels": check_labels,
    "wnut": check_wnut,
    "uner": check_uner,
    "answers": check_answers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--from", dest="pretrained", required=True, help="folder of the pretrained encoder")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--part", choices=PARTS, action="append", help="one or several; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--passes", dest="epochs", type=int, default=0, help="epochs of wnut, uner and answers; 0: 5, 5 and 2"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave out Hugging Face's Trainer")
    parser.add_argument("--peers-bf16", dest="bf16", action="store_true", help="run Hugging Face's Trainer in bf16")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {name: PARTS[name](arguments) for name in arguments.part or PARTS}
    print(json.dumps(results))
    sys.exit(0 if all(results.values()) else 1)


if __name__ == "__main__":
    main()
