"""The pipeline from text to text: the same whatever stands around a text, scored as searched, nothing lost."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from regard.attention.trace import trace
from regard.config.inference import DecodingConfig
from regard.decoding.batch_search import search_all
from regard.decoding.constraints import Constraints, Glossary
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.pipeline.records.translation import StoredAlignmentHead
from regard.pipeline.sentence_pairs import split_pair
from regard.pipeline.translation import Translation, TranslationPipeline
from regard.tasks.alignment import best_alignment_head
from regard.text.sentences import find_phrase
from regard.tokens import Tokens

SITES = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]


@pytest.fixture(scope="module")
def sentences(toy):
    return [left for left, _ in toy.pairs(100, seed=99, longest=7)]


@pytest.fixture(scope="module")
def said(pipeline, sentences):
    return pipeline.translate(sentences, nbest=3)


@pytest.fixture(scope="module")
def aligning(pipeline):
    """The same pipeline with an aligning head."""
    model, tokenizer = pipeline.models[0], pipeline.source
    task = {"max_length": pipeline.max_source_length, "align": {"site": "decoder.1.cross", "head": 1, "shift": 0}}
    return TranslationPipeline([model], tokenizer, tokenizer, decoding=pipeline.decoding, task=task)


def same(left, right):
    assert str(left) == str(right)
    assert [str(one) for one in left.alternatives] == [str(one) for one in right.alternatives]
    scores = [[one.score for one in (side, *side.alternatives)] for side in (left, right)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_it_translates(pipeline, toy):
    pairs = toy.pairs(60, seed=7, longest=4)
    said = pipeline.translate([left for left, _ in pairs])
    assert np.mean([str(one) == right for one, (_, right) in zip(said, pairs, strict=True)]) > 0.7
    assert all(isinstance(one, str) for one in said)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batch_sizes_change_nothing(pipeline, sentences, said, size):
    again = pipeline.translate(sentences, nbest=3, batch_size=size, batch_tokens=100_000)
    for left, right in zip(said, again, strict=True):
        same(left, right)


def test_neighbours_change_nothing(pipeline, aligning, toy, sentences, said):
    others = [left for left, _ in toy.pairs(100, seed=3, longest=7)]
    mixed = [text for both in zip(others, sentences, strict=True) for text in both][::-1]
    again = aligning.translate(mixed, nbest=3)[::-1][1::2]
    for left, right in zip(said, again, strict=True):
        same(left, right)
    alone = [aligning(text, nbest=3) for text in sentences[:30]]
    assert [one.alignment for one in alone] == [one.alignment for one in again[:30]]
    assert all(one.alignment for one in alone)


def test_the_same_with_sampling(pipeline, sentences):
    settings = {"sample": True, "temperature": 1.5, "nbest": 2, "seed": 5}
    said = pipeline.translate(sentences[:40], **settings)
    for text, one in zip(sentences[:40:5], said[::5], strict=True):
        same(pipeline(text, **settings), one)
    assert [str(one) for one in pipeline.translate(sentences[:40], **{**settings, "seed": 6})] != [
        str(one) for one in said
    ]


def test_alternatives_are_ordered_and_different(said):
    for one in said:
        texts = [one, *one.alternatives]
        scores = [other.score for other in texts]
        assert scores == sorted(scores, reverse=True)
        assert len(set(map(str, texts))) == len(texts)
    assert any(len(one.alternatives) == 2 for one in said)


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.3}, {"coverage_penalty": 0.2, "beam": 3}])
def test_score_gives_the_score_of_the_search(pipeline, sentences, settings):
    said = pipeline.translate(sentences[:50], nbest=2, **settings)
    every = [other for one in said for other in (one, *one.alternatives)]
    scored = pipeline.score([one.source for one in every], every, **settings)
    assert [one.score for one in scored] == pytest.approx([one.score for one in every], abs=1e-4)
    assert [one.logprob for one in scored] == pytest.approx([one.logprob for one in every], abs=1e-4)
    plain = pipeline.score([one.source for one in said], [str(one) for one in said], **settings)
    assert [one.score for one in plain] == pytest.approx([one.score for one in said], abs=1e-4)


def test_a_text_has_one_score_however_the_search_cut_it(pipeline, sentences):
    """Drawn wildly, texts come in other tokens than the tokenizer's own: they are scored by the tokenizer's own."""
    texts = [text for text in sentences[:40] for _ in range(2)]
    said = pipeline.translate(texts, sample=True, temperature=1.2, nbest=4)
    every = [other for one in said for other in (one, *one.alternatives) if other]
    rows = [[*pipeline.source.encode(text).ids, pipeline.source.eos_id] for text in texts]
    found = search_all(
        pipeline.generator,
        rows,
        DecodingConfig(sample=True, temperature=1.2, nbest=4),
        max_length=pipeline.max_target_length,
    )
    odd = [
        one for some in found for one in some if pipeline.target.encode(pipeline.target.decode(one.ids)).ids != one.ids
    ]
    assert odd, "no text was cut in another way: the test shows nothing"
    plain = pipeline.score([one.source for one in every], [str(one) for one in every], split=False)
    assert [one.score for one in plain] == pytest.approx([one.score for one in every], abs=1e-4)


def test_a_worse_translation_scores_worse(pipeline, said):
    good = pipeline.score([one.source for one in said], said)
    wrong = pipeline.score([one.source for one in said], [str(one) + " Brot Brot" for one in said])
    assert all(one.logprob > two.logprob for one, two in zip(good, wrong, strict=True))
    assert wrong[0].num_tokens > good[0].num_tokens


# ---- paragraphs, spaces, long texts


def test_paragraphs_keep_their_spacing(pipeline):
    text = "  Dog cat.  Tree?\n\n\tbird house. \r\nStone."
    said = pipeline(text)
    parts = [str(pipeline(one)) for one in ("Dog cat.", "Tree?", "bird house.", "Stone.")]
    assert said == "  {}  {}\n\n\t{} \r\n{}".format(*parts)
    assert [part.source for part in said.sentences] == ["Dog cat.", "Tree?", "bird house.", "Stone."]
    assert said.score == pytest.approx(np.mean([pipeline(part.source).score for part in said.sentences]), abs=1e-4)
    scored = pipeline.score([text], [said])[0]
    assert (scored.score, scored.logprob) == pytest.approx((said.score, said.logprob), abs=1e-4)
    plain = pipeline.score([text], [str(said)])[0]
    assert plain.score == pytest.approx(said.score, abs=1e-4)


def test_without_splitting_a_line_is_a_sentence(pipeline):
    said = pipeline("dog. Cat.\nbird.", split=False)
    assert [part.source for part in said.sentences] == ["dog. Cat.", "bird."]


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t\r\n  \u3000"])
def test_blank_gives_nothing(pipeline, blank):
    said = pipeline(blank)
    assert said == "" and isinstance(said, Translation)
    assert (said.score, said.alternatives, said.alignment, said.attention) == (0.0, [], [], {})
    scored = pipeline.score([blank], [said])[0]
    assert (scored.score, scored.num_tokens) == (0.0, 0)


def test_no_texts_give_no_translations(pipeline):
    assert pipeline.translate([]) == [] == pipeline([]) == pipeline.score([], []) == list(pipeline.stream([]))


def test_a_long_text_is_split_or_refused_but_never_cut(pipeline, toy):
    long = ", ".join(" ".join(toy.left[(n + m) % 12] for m in range(5)) for n in range(12)) + "."
    tokens = len(pipeline.source.encode(long).ids) + 1
    assert tokens > pipeline.max_source_length == toy.most
    said = pipeline(long)
    assert len(said.sentences) > 1
    assert "".join(part.source for part in said.sentences).replace(" ", "") == long.replace(" ", "")
    assert all(len(pipeline.source.encode(part.source).ids) < toy.most for part in said.sentences)
    assert all(part.source.endswith((",", ".")) for part in said.sentences), "cut at commas where there are some"
    with pytest.raises(
        UsageError, match=rf"text 2 has a sentence of {tokens} tokens, .* trained on {toy.most} at most"
    ):
        pipeline.translate(["dog", long], split=False)
    for text in ("dog" * 300, "犬" * 200, " ".join(["dog"] * 200)):
        parts = pipeline(text).sentences
        assert "".join(part.source for part in parts).replace(" ", "") == text.replace(" ", "")


def test_pairs_that_are_too_long_are_refused(pipeline):
    with pytest.raises(UsageError, match=r"pair 1 has 202 source and 2 target tokens, but the model takes 64 and 95"):
        pipeline.score([" ".join(["dog"] * 200) + "."], ["Hund."])
    with pytest.raises(UsageError, match="2 source texts and 1 target texts"):
        pipeline.align(["a", "b"], ["c"])


def test_a_stream_keeps_order_and_reads_no_more_than_its_window(pipeline, sentences):
    read = []

    def lines():
        for text in sentences[:50]:
            read.append(text)
            yield text

    stream = pipeline.stream(lines(), window=8)
    assert not read
    first = next(stream)
    assert len(read) == 8
    found = [first, *stream]
    assert [one.source for one in found] == sentences[:50]
    assert list(map(str, found)) == list(map(str, pipeline.translate(sentences[:50])))


def test_unknown_settings_are_refused_with_the_nearest(pipeline):
    with pytest.raises(ConfigError, match=r"unknown setting 'beem' \(did you mean beam\?\)"):
        pipeline("dog", beem=3)
    with pytest.raises(ConfigError, match=r"beam \(0\) must be at least 1"):
        pipeline.stream([], beam=0)
    with pytest.raises(UsageError, match="a list of texts"):
        pipeline.translate("dog")


# ---- what it must say


def test_prefixes_begin_the_translation(pipeline):
    said = pipeline.translate(["dog cat tree.", "bird."], prefixes=["Hund", ""])
    assert said[0].startswith("Hund") and said[1] == pipeline("bird.")
    assert pipeline.score(["dog cat tree."], [said[0]])[0].logprob == pytest.approx(said[0].logprob, abs=1e-4)
    with pytest.raises(UsageError, match=r"prefixes \(1\) must be as many as texts \(2\)"):
        pipeline.translate(["a", "b"], prefixes=["x"])
    with pytest.raises(UsageError, match="text 1 has 2 lines"):
        pipeline.translate(["a\nb"], prefixes=["x"])


@pytest.mark.parametrize("beam", [1, 4])
def test_words_are_forced_and_forbidden(pipeline, sentences, beam):
    constraints = Constraints(force=("Wolke",), forbid=("Hund", "Stein"))
    said = pipeline.translate(sentences[:30], constraints=constraints, beam=beam)
    for one in said:
        assert find_phrase(one, "Wolke") >= 0
        assert find_phrase(one, "Hund") < 0 and find_phrase(one, "Stein") < 0


def test_a_glossary_holds_where_the_source_has_the_word(pipeline, sentences):
    constraints = Constraints(glossary=Glossary((("dog", "Kind Brot"), ("stone", "Fluss"))))
    plain = pipeline.translate(sentences[:40])
    for before, one in zip(plain, pipeline.translate(sentences[:40], constraints=constraints), strict=True):
        if find_phrase(one.source, "dog") >= 0:
            assert find_phrase(one, "Kind Brot") >= 0
        if find_phrase(one.source, "stone") >= 0:
            assert find_phrase(one, "Fluss") >= 0
        if not any(find_phrase(one.source, word) >= 0 for word in ("dog", "stone")):
            assert one == before


# ---- seeing


def test_attention_has_the_tokens_on_its_sides(pipeline, said):
    for one in said[:3]:
        read = [*pipeline.source.encode(one.source).subwords, "</s>"]
        sites = one.attention
        assert sorted(sites) == sorted(f"{part}.{n}.{role}" for n in (0, 1) for part, role in SITES)
        cross = sites["decoder.1.cross"]
        assert cross.rows == [*one.tokens, "</s>"] and cross.columns == read
        assert cross.weights.shape == (4, len(cross.rows), len(cross.columns))
        assert cross.weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)  # in half precision
        assert sites["decoder.0.self"].columns == ["<s>", *one.tokens]
        assert sites["encoder.0.self"].rows == sites["encoder.0.self"].columns == read
        assert one.attention is sites, "looked at once"


def test_sentences_of_a_paragraph_do_not_see_one_another(pipeline):
    said = pipeline("dog. Cat tree.")
    first = len(pipeline.source.encode("dog.").ids) + 1
    rows = len(said.sentences[0].ids) + 1
    weights = said.attention["decoder.1.cross"].weights
    assert not weights[:, :rows, first:].any() and not weights[:, rows:, :first].any()
    assert weights.sum(axis=-1) == pytest.approx(1, abs=2e-3)


def gold(text):
    count = len(text.split())
    return {(count - 1 - place, place) for place in range(count)}


def test_alignments_link_words_that_belong_together(pipeline, aligning, toy):
    pairs = toy.pairs(80, seed=12, longest=4)
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    found = aligning.align(lefts, rights)
    right = sum(len(gold(left) & set(links)) for left, links in zip(lefts, found, strict=True))
    assert right / sum(len(links) for links in found) > 0.6
    for left, text, links in zip(lefts, rights, found, strict=True):
        assert sorted(target for _, target in links) == list(range(len(text.split())))
        assert all(0 <= source < len(left.split()) for source, _ in links)
    assert aligning.align(lefts[:2], rights[:2]) == found[:2]
    assert pipeline.align(lefts[:2], rights[:2]), "without a chosen head the later layers' mean is taken"


def test_alignments_of_paragraphs_count_words_through(aligning):
    said = aligning("dog cat. Tree\nbird stone.")
    assert {target for _, target in said.alignment} == set(range(len(said.split())))
    first = {source for source, target in said.alignment if target < len(said.sentences[0].text.split())}
    last = {source for source, target in said.alignment if target >= said.sentences[-1].target_word}
    assert first <= {0, 1} and last <= {3, 4}
    assert said.pharaoh == " ".join(f"{source}-{target}" for source, target in said.alignment)
    assert aligning.align([said.source], [said]) == [said.alignment]


def test_other_cuts_of_a_word_still_align(aligning):
    said = aligning("dog garden.")
    part = said.sentences[0]
    spelled = [aligning.target.backend.token_to_id(letter) for letter in "ĠGartenĠHund."]  # Ġ: a space
    assert None not in spelled
    other = type(part)(part.source, aligning.target.decode(spelled), spelled, 0, 0)
    assert aligning.recorder.target_word_ids(other) == [0] * 7 + [1] * 6


def test_an_aligning_head_that_the_model_lacks_is_refused(pipeline):
    with pytest.raises(CheckpointError, match="site 'decoder.9.cross', head 0"):
        StoredAlignmentHead.from_json({"site": "decoder.9.cross", "head": 0}, pipeline.models[0])


def test_a_record_for_pictures(aligning):
    record = aligning("dog cat. Tree.").record("title", ("en", "de"))
    assert record.title == "title" and record.best == ("decoder.cross", 1, 1)
    assert record.texts["source"].special.count(True) == 2  # the end of each sentence
    assert record.texts["source"].words[0] == 0 and max(record.texts["source"].words) == 2
    assert {seen.name for seen in record.attention} == {"decoder.cross", "encoder.self", "decoder.self"}
    assert record.to_dict()["texts"]["target"]["lang"] == "de"


def test_a_translation_is_stored_as_its_text(said):
    again = pickle.loads(pickle.dumps(said[0]))
    assert again == said[0] and type(again) is str


# ---- several models


def test_models_decide_together(pipeline, toy, sentences):
    other = toy.trained(seed=2, steps=40)
    both = TranslationPipeline(
        [pipeline.models[0], other.models[0]], pipeline.source, pipeline.target, decoding=pipeline.decoding
    )
    said = both.translate(sentences[:20], nbest=2)
    every = [two for one in said for two in (one, *one.alternatives)]
    scored = both.score([one.source for one in every], every)
    assert [one.score for one in scored] == pytest.approx([one.score for one in every], abs=1e-4)
    assert "1.decoder.0.cross" in said[0].attention
    assert said[0].record().texts["source"].text == sentences[0]
    twice = TranslationPipeline([pipeline.models[0]] * 2, pipeline.source, pipeline.target, decoding=pipeline.decoding)
    assert list(map(str, twice.translate(sentences[:20]))) == list(map(str, pipeline.translate(sentences[:20])))


def test_the_chosen_head_is_among_the_best(pipeline, toy):
    """The measure, which knows no gold links, picks a head that is nearly as good as the best by gold links."""
    pairs = toy.pairs(120, seed=21, longest=5)
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    source, target = ([pipeline.source.encode(text) for text in texts] for texts in (lefts, rights))
    with trace("decoder.*.cross") as seen:
        pipeline.models[0].target_logprobs(
            Tokens.from_rows([[*one.ids, pipeline.source.eos_id] for one in source]),
            Tokens.from_rows([one.ids for one in target]),
        )
    chosen = best_alignment_head({site: seen[site].weights for site in seen}, source, target)

    def right(head):
        looker = replace(pipeline.recorder, alignment_head=head)
        parts = [split_pair(left, text, pipeline.target, split=True) for left, text in pairs[:25]]
        found = [looker.align(some) for some in parts]
        hits = sum(len(gold(left) & set(one)) for left, one in zip(lefts, found, strict=False))
        return hits / sum(map(len, found))

    every = [StoredAlignmentHead(site, head, shift) for site in seen for head in range(4) for shift in (0, 1)]
    assert right(StoredAlignmentHead(chosen.site, chosen.head, chosen.shift)) > max(map(right, every)) - 0.08
