"""Reach: gradients, occlusion and exact match by distance against explicit computation, and the curves made of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.config.data import ReadConfig, TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.data.documents import Documents
from regard.data.pairs import ParallelTexts
from regard.errors import UsageError
from regard.interpret.reach import (
    UNKNOWN,
    ReachCurve,
    ReachSample,
    distance_bins,
    pooled_correlation,
    reach_curve,
)
from regard.interpret.reach_sample import (
    SPECIAL,
    CausalReach,
    ReachRow,
    TranslationReach,
    build_reach_subject,
    sample_reach,
)
from regard.packed_tokens import Tokens
from regard.pipeline.translation import TranslationPipeline
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from tests.families import gpt, made, seq2seq, transformer

DECAY = 0.7
VOCAB_SIZE = 11


class LinearRnn:
    """h ← 0.7 h + embedding, and logits W h: a token that was read d steps ago counts by 0.7 to the power of d."""

    def __init__(self, rows: list[list[int]], references: list[int]) -> None:
        generator = torch.Generator().manual_seed(3)
        self.model = nn.Module()
        self.embedding = nn.Embedding.from_pretrained(torch.randn(VOCAB_SIZE, 5, generator=generator))
        self.output = torch.randn(VOCAB_SIZE, 5, generator=generator)
        self.rows = rows
        self.references = references

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int, rng: np.random.Generator) -> ReachRow:
        ids = np.array(self.rows[index], dtype=np.int32)
        recalled = np.flatnonzero(ids == self.references[index])
        return ReachRow(
            ids,
            np.arange(len(ids))[::-1],
            reference_id=self.references[index],
            prefix_ids=ids[:0],
            recalled=int(recalled[0]) if len(recalled) == 1 else None,
        )

    def states(self, inputs: Tokens) -> Tensor:
        vectors = self.embedding(torch.from_numpy(inputs.ids.astype(np.int64)))
        states = []
        for row in vectors.split(inputs.lengths.tolist()):
            state = torch.zeros(5)
            for vector in row:
                state = DECAY * state + vector
            states.append(state)
        return torch.stack(states)

    def logprobs(self, inputs: Tokens, rows: object) -> Tensor:
        return (self.states(inputs) @ self.output.t()).log_softmax(dim=1)


def explicit_gradient_norm(model: LinearRnn, ids: list[int], reference: int, distance: int) -> float:
    """‖0.7^d (W_reference − Σ p W)‖, from the formula of the softmax's derivative."""
    probabilities = model.logprobs(Tokens.from_rows([ids]), None).exp()[0]
    return DECAY**distance * float((model.output[reference] - probabilities @ model.output).norm())


def test_a_linear_rnn_has_the_influence_of_its_decay() -> None:
    rows = [[3, 4, 5, 6, 7, 8, 9], [2, 4, 6, 8], [5, 5, 5]]
    references = [4, 6, 1]
    model = LinearRnn(rows, references)
    sample = sample_reach(model, sample=10)
    assert len(sample) == 3
    assert sorted(np.bincount(sample.prediction).tolist()) == [3, 4, 7]
    for prediction in range(3):
        is_row = sample.prediction == prediction
        index = {7: 0, 4: 1, 3: 2}[int(is_row.sum())]
        distances = sample.distance[is_row]
        expected = [explicit_gradient_norm(model, rows[index], references[index], int(step)) for step in distances]
        assert sample.gradient[is_row] == pytest.approx(expected, rel=1e-5)
        powers = DECAY ** distances.astype(float)
        assert sample.shares[is_row] == pytest.approx(powers / powers.sum(), rel=1e-5)
        top = int(model.logprobs(Tokens.from_rows([rows[index]]), None).argmax())
        assert bool(sample.is_correct[prediction]) == (top == references[index])
        assert sample.recalled_distance[prediction] == [5, 1, UNKNOWN][index]
        assert (sample.distance[is_row & sample.is_recalled] == [5, 1, UNKNOWN][index]).all()


def test_occlusion_is_the_loss_by_another_token_of_the_row() -> None:
    rows = [[3, 9, 9, 9]]
    model = LinearRnn(rows, [3])
    sample = sample_reach(model, sample=1)  # type: ignore[arg-type]

    def logprob(ids: list[int]) -> float:
        return float(model.logprobs(Tokens.from_rows([ids]), None)[0, 3])

    expected = [
        logprob([3, 9, 9, 9]) - logprob(ids) for ids in ([9, 9, 9, 9], [3, 3, 9, 9], [3, 9, 3, 9], [3, 9, 9, 3])
    ]
    assert sample.occlusion == pytest.approx(expected, abs=1e-5)
    few = sample_reach(model, sample=1, occluded=1)  # type: ignore[arg-type]
    assert np.isnan(few.occlusion).tolist() == [False, True, True, True]  # the recalled token is always among them


@pytest.mark.parametrize("family", [transformer, lambda: seq2seq(attention="none"), seq2seq])
def test_gradients_of_translators_are_those_of_autograd(family: object) -> None:
    model = family().torch_model()  # type: ignore[operator]
    subject = TranslationReach.__new__(TranslationReach)
    subject.model = model
    source = np.array([5, 6, 7, 8, 1], dtype=np.int32)
    row = ReachRow(source, np.array([4, 3, 2, 1, SPECIAL]), 9, prefix_ids=np.array([4], np.int32), recalled=None)
    subject.row = lambda index, rng: row  # type: ignore[method-assign]
    subject.examples = [row]  # type: ignore[assignment]
    sample = sample_reach(subject, sample=1)
    # one model call with separate embeddings of source and target: those of the source are unique in the row
    embedding = model.embedding("source")
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    handle = embedding.register_forward_hook(keep)
    targets = Tokens.from_rows([[4, 9]])
    decoder_inputs, _ = model.shift_targets(targets)
    hidden = model(Tokens.from_rows([source]), decoder_inputs)
    handle.remove()
    logits = nn.functional.linear(hidden, model.output_weight, model.lm_head_bias)
    logits.log_softmax(-1)[1, 9].backward()
    assert outputs[0].grad is not None
    assert sample.gradient == pytest.approx(outputs[0].grad[:4].norm(dim=1).numpy(), rel=1e-4)
    assert sample.distance.tolist() == [4, 3, 2, 1]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        ["a b c d e", "f a b c d e", "g h a b c d"] * 20, TokenizerConfig(kind="bpe", vocab_size=290)
    )


@pytest.fixture(scope="module")
def pipeline(tokenizer: Tokenizer) -> TranslationPipeline:
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    model = made(transformer().config.override(sizes))
    decoding = DecodingConfig()
    return TranslationPipeline([model], tokenizer, tokenizer, decoding=decoding, task={"max_length": 30})


def test_pairs_recall_what_stands_once_in_the_source(pipeline: TranslationPipeline) -> None:
    pairs = ParallelTexts.from_texts(["a b c b", "a a", "h " * 60], ["c", "a", "h"])
    subject = TranslationReach(pipeline, pairs)
    assert len(subject) == 2  # the last pair is too long
    rng = np.random.default_rng(0)
    row = subject.row(0, rng)
    assert row is not None
    assert row.distances.tolist() == [3, 2, 1, 0, SPECIAL]
    assert row.recalled == 2
    repeated = subject.row(1, rng)
    assert repeated is not None
    assert repeated.recalled is None
    later = TranslationReach(pipeline, ParallelTexts.from_texts(["c a b b"], ["b a"])).row(0, rng)
    assert later is not None
    assert later.recalled == 1
    assert later.distances.tolist() == [4, 3, 2, 1, SPECIAL]  # one target token stands before the prediction
    assert later.prefix_ids.tolist() == later.input_ids[2:3].tolist()


def test_causal_models_read_what_stands_before_a_token(tokenizer: Tokenizer) -> None:
    model = gpt()
    pipeline = SimpleNamespace(model=SimpleNamespace(torch_model=lambda: model), tokenizer=tokenizer)
    subject = CausalReach(pipeline, Documents.from_texts(["a b c b", "", "d e d"]))  # type: ignore[arg-type]
    assert len(subject) == 5
    ids = tokenizer.encode("a b c b").ids
    row = subject.row(2, np.random.default_rng(0))
    assert row is not None
    assert (row.input_ids.tolist(), row.reference_id, row.recalled) == (ids[:3], ids[3], 1)
    assert row.distances.tolist() == [2, 1, 0]
    last = subject.row(4, np.random.default_rng(0))
    assert last is not None
    assert last.recalled == 0


def hand_made_sample() -> ReachSample:
    """Ten predictions at each of the distances 0, 2 and 4; two tokens each, the recalled one and one at distance 0."""
    distances = np.repeat([0, 2, 4], 10)
    gradient = np.repeat([9.0, 3.0, 1.0], 10)
    return ReachSample(
        prediction=np.repeat(np.arange(30), 2),
        distance=np.stack([distances, np.zeros(30, int)], axis=1).ravel(),
        gradient=np.stack([gradient, np.ones(30)], axis=1).ravel(),
        occlusion=np.stack([gradient / 10, np.full(30, np.nan)], axis=1).ravel(),
        is_recalled=np.tile([True, False], 30),
        recalled_distance=distances,
        is_correct=np.arange(30) % 10 < np.repeat([10, 6, 1], 10),
    )


def test_curves_are_means_by_distance_with_rank_correlations() -> None:
    curve = reach_curve(hand_made_sample(), distance_bins(4, 3), model="rnn")
    assert [point.label for point in curve.points] == ["0-1", "2-3", "4-5"]
    assert [point.recalled for point in curve.points] == [10, 10, 10]
    assert [point.exact_match for point in curve.points] == pytest.approx([100, 60, 10])
    assert [point.recalled_gradient for point in curve.points] == pytest.approx([0.9, 0.75, 0.5])
    assert [point.recalled_occlusion for point in curve.points] == pytest.approx([0.9, 0.3, 0.1])
    # the near tokens are those of all rows: 0.9 and 0.1, 0.25, 0.5
    assert curve.points[0].gradient == pytest.approx((0.9 + 0.1 + 0.25 + 0.5) / 4)
    assert curve.points[0].gradient_norm == pytest.approx((9 + 1 + 1 + 1) / 4)
    assert curve.gradient_and_exact_match.value == 1
    assert curve.gradient_and_exact_match.bins == 3
    assert curve.gradient_and_exact_match.low is not None
    assert curve.gradient_and_exact_match.low <= 1
    assert pooled_correlation([curve], "recalled_gradient", "exact_match") == 1
    assert curve.to_dict()["points"][1]["exact_match"] == 60


def test_a_pooled_correlation_ranks_the_points_of_all_models() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    curves = [curve_of(seed) for seed in (1, 2)]
    points = [point for curve in curves for point in curve.points if point.recalled >= 5]
    occlusions = [point.recalled_occlusion for point in points]
    exact = [point.exact_match for point in points]
    expected = float(scipy_stats.spearmanr(occlusions, exact).statistic)
    assert pooled_correlation(curves, "recalled_occlusion", "exact_match") == pytest.approx(expected)
    single = float(scipy_stats.spearmanr(occlusions[: len(points) // 2], exact[: len(points) // 2]).statistic)
    assert curves[0].occlusion_and_exact_match.value == pytest.approx(single)


def curve_of(seed: int) -> ReachCurve:
    rng = np.random.default_rng(seed)
    count = 200
    distances = rng.integers(0, 13, count)
    sample = ReachSample(
        prediction=np.arange(count),
        distance=distances,
        gradient=np.ones(count),
        occlusion=rng.random(count),
        is_recalled=np.ones(count, dtype=bool),
        recalled_distance=distances,
        is_correct=rng.random(count) < 1 / (1 + distances),
    )
    return reach_curve(sample, distance_bins(12, 6))


def test_constant_curves_have_no_ranks() -> None:
    sample = hand_made_sample()
    constant = reach_curve(ReachSample(**{**vars(sample), "is_correct": np.ones(30, dtype=bool)}), distance_bins(4, 3))
    assert constant.gradient_and_exact_match.value is None
    assert str(constant.gradient_and_exact_match) == "–"
    nothing = ReachSample(**{**vars(sample), "is_recalled": np.zeros(60, dtype=bool)})
    curve = reach_curve(nothing, distance_bins(4, 3))
    assert not curve.has_recalled
    assert curve.to_dict()["points"][0]["exact_match"] is None


def test_ranges_with_few_predictions_do_not_count_in_correlations() -> None:
    sample = hand_made_sample()
    few = 4
    extended = ReachSample(
        prediction=np.append(sample.prediction, np.arange(30, 30 + few)),
        distance=np.append(sample.distance, np.full(few, 7)),
        gradient=np.append(sample.gradient, np.full(few, 9.0)),
        occlusion=np.append(sample.occlusion, np.full(few, 9.0)),
        is_recalled=np.append(sample.is_recalled, np.ones(few, dtype=bool)),
        recalled_distance=np.append(sample.recalled_distance, np.full(few, 7)),
        is_correct=np.append(sample.is_correct, np.zeros(few, dtype=bool)),
    )
    curve = reach_curve(extended, distance_bins(7, 4))
    assert [point.recalled for point in curve.points] == [10, 10, 10, few]
    assert curve.occlusion_and_exact_match.bins == 3
    assert curve.occlusion_and_exact_match.value == 1  # the last range would lower it
    assert pooled_correlation([curve], "recalled_occlusion", "exact_match") == 1


def test_bins_cover_all_distances() -> None:
    for max_distance in range(40):
        edges = distance_bins(max_distance, 7)
        assert edges[0] == 0
        assert edges[-1] > max_distance
        assert len(edges) <= 8
        assert len(set(np.diff(edges))) == 1
    with pytest.raises(UsageError, match="bins \\(2\\) must be at least 3"):
        distance_bins(9, 2)


def test_samples_are_functions_of_their_seed(pipeline: TranslationPipeline) -> None:
    letters = np.random.default_rng(5).choice(list("abcdefgh"), size=(23, 7))
    sources = [" ".join(row) for row in letters]
    subject = TranslationReach(pipeline, ParallelTexts.from_texts(sources, [source[::-1] for source in sources]))
    first = sample_reach(subject, sample=17, seed=4)
    again = sample_reach(subject, sample=17, seed=4)
    other = sample_reach(subject, sample=17, seed=5)
    assert len(first) == 17
    assert first.gradient.tolist() == again.gradient.tolist()
    assert np.array_equal(first.occlusion, again.occlusion, equal_nan=True)
    assert first.gradient.tolist() != other.gradient.tolist()
    curve = reach_curve(first, distance_bins(int(first.distance.max()), 3))
    assert curve.predictions == 17


def test_models_that_do_not_translate_or_continue_are_refused(tmp_path: Path, pipeline: TranslationPipeline) -> None:
    with pytest.raises(UsageError, match="translation models and causal language models"):
        build_reach_subject(SimpleNamespace(), ["x"], ReadConfig())  # type: ignore[arg-type]
    file = tmp_path / "long.tsv"
    file.write_text(f"{'dog ' * 300}\tHund\n")
    with pytest.raises(UsageError, match="no text that the model can read whole"):
        build_reach_subject(pipeline, [str(file)], ReadConfig())
