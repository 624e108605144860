"""Which heads attend from a pronoun to its antecedent (Clark et al. 2019), beside the baseline "nearest noun".

A head is right about a sentence if the pronoun attends more to the antecedent than to the other noun; the weights of
subwords are summed. The best of many heads is better than a typical one by chance alone. So heads are chosen on one
half of the sentences and scored on the other half, both ways. A half has whole scenarios, where the sentences name
theirs: the templates of the other half are then new to the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_order
from regard.data.coreference import CoreferenceSentence, group_pairs
from regard.errors import DataError, UsageError
from regard.interpret.link_report import ChosenHead, LinkReport, LinkRow
from regard.interpret.sentence_attention import SentenceAttention, SentenceTokens
from regard.registry import TASKS, resolve
from regard.tasks.significance import ExampleStatistics, ScoreInterval, paired_test, score_interval

Floats = NDArray[np.float64]
Groups = Sequence[Sequence[int]]
Halves = tuple[NDArray[np.int64], NDArray[np.int64]]  # indices of groups
MIN_GROUPS = 4  # of which each half has two


@dataclass(frozen=True)
class LinkWeights:
    """Attention from each pronoun to the right and to the wrong noun, [sentences, heads]."""

    heads: list[tuple[str, int]]  # site, index
    right: Floats
    wrong: Floats

    @property
    def scores(self) -> Floats:
        """1 where a head attends more to the right noun, 0.5 on a tie, else 0; [sentences, heads].

        >>> weights = np.array([[0.5, 0.1]])
        >>> LinkWeights([("encoder.0.self", 0), ("encoder.0.self", 1)], right=weights, wrong=weights[:, ::-1]).scores
        array([[1., 0.]])
        """
        return np.where(self.right == self.wrong, 0.5, (self.right > self.wrong).astype(np.float64))


def sentence_attention(pipeline: object) -> SentenceAttention:
    """The self-attention of a pipeline over sentences; a model without any is an error."""
    read: Callable[[object], SentenceAttention] | None = resolve(
        TASKS[getattr(pipeline, "task_name", "")].sentence_attention
    )
    attention = None if read is None else read(pipeline)
    if attention is None or not attention.sites:
        raise UsageError(
            "this model has no self-attention over a sentence: --links is for encoders, causal language models and "
            "Transformers that translate"
        )
    return attention


def measure_links(attention: SentenceAttention, sentences: Sequence[CoreferenceSentence]) -> LinkWeights:
    """Attention of all heads from the pronoun of each sentence to its two nouns, subwords summed."""
    encoded = [attention.encode(sentence.text) for sentence in sentences]
    indices = [_find_tokens(sentence, tokens, attention) for sentence, tokens in zip(sentences, encoded, strict=True)]
    heads = [(site, head) for site, num_heads in attention.sites.items() for head in range(num_heads)]
    right = np.zeros((len(sentences), len(heads)))
    wrong = np.zeros((len(sentences), len(heads)))
    for index, site_weights in attention.weights(encoded):
        pronoun, right_noun, wrong_noun = indices[index]
        from_pronoun = np.concatenate([weights[:, pronoun].mean(1) for weights in site_weights.values()])  # [heads, K]
        right[index] = from_pronoun[:, right_noun].sum(1)
        wrong[index] = from_pronoun[:, wrong_noun].sum(1)
    return LinkWeights(heads, right, wrong)


def _find_tokens(
    sentence: CoreferenceSentence, tokens: SentenceTokens, attention: SentenceAttention
) -> tuple[NDArray[np.int64], ...]:
    """Token indices of the pronoun, the right and the wrong noun."""
    if len(tokens.ids) > attention.max_length:
        raise DataError(
            f"the sentence has {len(tokens.ids)} tokens, but the model takes {attention.max_length}",
            location=sentence.location,
            advice="shorten it or remove it",
        )
    indices = tuple(tokens.overlapping(span) for span in (sentence.pronoun, sentence.right, sentence.wrong))
    for span, span_indices in zip((sentence.pronoun, sentence.right, sentence.wrong), indices, strict=True):
        if not len(span_indices):
            word = sentence.text[slice(*span)]
            raise DataError(f"the model's tokenizer has no token for {word!r}", location=sentence.location)
    return indices


def select_readable(
    sentences: Sequence[CoreferenceSentence], *, is_causal: bool
) -> tuple[list[CoreferenceSentence], Groups, int]:
    """Sentences that a model can know the antecedent of, their pairs, and the number of those left out.

    A model that reads from left to right needs both nouns before the pronoun, and two sentences of a pair that differ
    up to the pronoun.
    """
    groups = group_pairs(sentences)
    if is_causal:
        groups = [group for group in groups if _differs_before_pronoun([sentences[index] for index in group])]
        if not groups:
            raise UsageError(
                "in no sentence do both nouns and the deciding word precede the pronoun: the model reads from left to "
                "right and cannot know; `regard data make coreference` also writes such sentences"
            )
    selected = [sentences[index] for group in groups for index in group]
    starts = np.cumsum([0, *map(len, groups)])
    new_groups = [range(start, start + len(group)) for start, group in zip(starts, groups, strict=False)]
    return selected, new_groups, len(sentences) - len(selected)


def _differs_before_pronoun(group: Sequence[CoreferenceSentence]) -> bool:
    prefixes = {sentence.text[: sentence.pronoun[1]] for sentence in group}
    return len(prefixes) == len(group) and all(sentence.pronoun_is_last for sentence in group)


def study_links(
    attention: SentenceAttention,
    sentences: Sequence[CoreferenceSentence],
    *,
    sample: int = 0,
    model: str = "",
    data: str = "",
) -> LinkReport:
    """Score every head on the sentences, the best head first; `sample` limits the number of pairs."""
    selected, groups, num_left_out = select_readable(sentences, is_causal=attention.is_causal)
    if sample and sample < len(groups):
        groups = groups[:sample]
        selected = selected[: groups[-1][-1] + 1]
    if len(groups) < MIN_GROUPS:
        raise UsageError(f"{len(groups)} pairs are too few to choose a head on one half: at least {MIN_GROUPS}")
    scenarios = [selected[group[0]].row.scenario for group in groups]
    weights = measure_links(attention, selected)
    scores = weights.scores
    nearest = np.array([sentence.nearest_score for sentence in selected])
    rows = []
    for index, (site, head) in enumerate(weights.heads):
        interval = _interval(scores[:, index], groups)
        rows.append(
            LinkRow(
                site,
                head,
                accuracy=interval.mean,
                low=interval.low,
                high=interval.high,
                both=_share_of_pairs(scores[:, index], groups),
                nearest=100 * float((1 - np.abs(scores[:, index] - nearest)).mean()),
                weight=float((weights.right + weights.wrong)[:, index].mean()),
            )
        )
    baseline = _interval(nearest, groups)
    rows.sort(key=lambda row: -row.accuracy)
    return LinkReport(
        model=model,
        data=data,
        backend=attention.backend_name,
        num_sentences=len(selected),
        num_pairs=sum(len(group) == 2 for group in groups),
        num_scenarios=count_scenarios(scenarios),
        num_left_out=num_left_out,
        baseline=baseline,
        chosen=choose_heads(weights, groups, nearest, split_halves(scenarios)),
        rows=tuple(rows),
    )


def count_scenarios(scenarios: Sequence[str]) -> int:
    """Number of named scenarios that can be split into halves; 0 for a single one."""
    num_scenarios = len({*scenarios} - {""})
    return num_scenarios if num_scenarios > 1 else 0


def split_halves(scenarios: Sequence[str]) -> Halves:
    """Split groups into two halves of whole scenarios; of single groups, where fewer than two scenarios are named.

    >>> first, second = split_halves(["eating", "passing", "eating", "passing"])
    >>> sorted([first.tolist(), second.tolist()])
    [[0, 2], [1, 3]]
    """
    keys: Sequence[str | int] = range(len(scenarios))
    if count_scenarios(scenarios):
        keys = [scenario or index for index, scenario in enumerate(scenarios)]
    units = [*dict.fromkeys(keys)]
    order = epoch_order(len(units), seed=0, epoch=0, digest="0")
    first_units = {units[index] for index in order[::2]}
    is_first = np.array([key in first_units for key in keys])
    return np.flatnonzero(is_first), np.flatnonzero(~is_first)


def choose_heads(weights: LinkWeights, groups: Groups, nearest: Floats, halves: Halves) -> ChosenHead:
    """Choose the best head on each half of the groups, and score it on the other half."""
    scores = weights.scores
    head_of_group = np.zeros(len(groups), dtype=np.int64)
    names = []
    chosen_accuracy = 0.0
    for half, other in (halves, halves[::-1]):
        rows = [index for group in half for index in groups[group]]
        accuracies = scores[rows].mean(0)
        best = int(accuracies.argmax())
        chosen_accuracy += 100 * float(accuracies[best]) / 2
        head_of_group[other] = best
        site, head = weights.heads[best]
        names.append(f"{site}:{head}")
    held_out = np.zeros(len(scores))
    for group, best_head in zip(groups, head_of_group, strict=True):
        held_out[list(group)] = scores[list(group), best_head]
    statistics = _statistics(held_out, groups)
    test = paired_test(statistics, _statistics(nearest, groups))
    interval = score_interval(statistics)
    return ChosenHead(
        heads=(names[0], names[1]),
        chosen_accuracy=chosen_accuracy,
        accuracy=interval.mean,
        low=interval.low,
        high=interval.high,
        both=_share_of_pairs(held_out, groups),
        p_value=test.p_value,
        beats_baseline=test.is_significant and test.difference > 0,
    )


def _statistics(scores: Floats, groups: Groups) -> ExampleStatistics:
    """Scores summed over pairs: the sentences of a pair are not independent."""
    sums = [scores[list(group)].sum() for group in groups]
    return ExampleStatistics.from_ratios(sums, [len(group) for group in groups])


def _interval(scores: Floats, groups: Groups) -> ScoreInterval:
    return score_interval(_statistics(scores, groups))


def _share_of_pairs(scores: Floats, groups: Groups) -> float | None:
    """Percentage of pairs with both sentences right; None without pairs."""
    are_right = [bool((scores[list(group)] == 1).all()) for group in groups if len(group) == 2]
    return 100 * sum(are_right) / len(are_right) if are_right else None
