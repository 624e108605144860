"""`python -m recipes.claims.page`: write the page "What we found" from the recipes and their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.claims.claim import TOPICS, ClaimConfig, claim_files, read_claim
from recipes.claims.result import is_current, read_result
from recipes.claims.rules import FAILS, HOLDS, UNDECIDED, Rule
from regard.formatting import format_count, format_duration

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "claims"
PAGE = ROOT / "docs" / "claims.md"
NOT_CHECKED = "not checked"
INTRODUCTION = """\
# What we found

*At the end you know which claims about attention hold for small models, how each was decided, and how to check it.*

Each claim is a recipe in `recipes/claims/`. It states the source of the claim, the models to compare, what is measured,
and the rules that decide, which are fixed before the run. A rule bounds a quantity. It holds if the whole 95 % interval
of the quantity lies within the bound, does not hold if the whole interval lies beyond it, and is undecided otherwise.
Where the quantity is a difference, the bound is a margin: the rule does not hold if the difference is smaller than the
margin, even if it has the claimed sign. A claim holds if all of its rules hold, and does not hold if one of them does
not.

Intervals are Student's t-intervals over seeds, which determine the initial weights, the order of the training data, any
synthetic data and any pre-training in the claim; measurements without randomness have intervals over examples, or none.
MiniLM is one pre-trained model: what is measured in it, or starts from it, says nothing about other pre-trainings. All
models are small, and those trained here are trained for a minute or two, so a verdict says nothing about large models.
{threads}

```text
make claims                                       # all claims without a result; resumes after an interruption
make claims CLAIM=positions-are-needed            # one claim
make claims DATA=../shared/data                   # with the folder of public data sets
python -m recipes.claims --list                   # verdicts, and the minutes that each claim takes
```
"""
FOOTER = """\
`python -m recipes.claims.page` generates this page from the recipes and their results.
"""
ABBREVIATIONS = {"rnn": "RNN", "rnns": "RNNs"}  # in the names of claims


def build_page(results_folder: Path = RESULTS) -> str:
    """Build the page: a summary, a table by topic, and a section for each result."""
    recipes = {name: read_claim(path) for name, path in claim_files().items()}
    results = {name: read_result(results_folder, name) for name in recipes}
    current = {name: result for name, result in results.items() if result and is_current(result, recipes[name])}
    verdicts = {name: str(current[name]["verdict"]) if name in current else NOT_CHECKED for name in recipes}
    parts = [INTRODUCTION.format(threads=_describe_threads(current)), _summarize(verdicts, current)]
    for topic in TOPICS:
        names = [name for name, config in recipes.items() if config.topic == topic]
        if names:
            parts += [f"## {topic}\n", _table({name: recipes[name] for name in names}, verdicts)]
            parts += [_section(name, recipes[name], current[name]) for name in names if name in current]
    return "\n".join([*parts, FOOTER])


def _summarize(verdicts: Mapping[str, str], results: Mapping[str, Mapping[str, Any]]) -> str:
    counts = Counter(verdicts.values())
    texts = {  # for one claim, and for several
        HOLDS: ("holds", "hold"),
        FAILS: ("does not hold", "do not hold"),
        UNDECIDED: ("is undecided", "are undecided"),
        NOT_CHECKED: ("has not been checked yet", "have not been checked yet"),
    }
    counted = ", ".join(
        f"{counts[verdict]} {singular if counts[verdict] == 1 else plural}"
        for verdict, (singular, plural) in texts.items()
        if counts[verdict]
    )
    minutes = sum(result["minutes"] for result in results.values())
    duration = f" The runs took {format_duration(60 * minutes)} in all." if results else ""
    return f"Of {format_count(len(verdicts), 'claim')}, {counted}.{duration}\n"


def _describe_threads(results: Mapping[str, Mapping[str, Any]]) -> str:
    """How many claims were checked with how many threads.

    >>> _describe_threads({name: {"machine": {"threads": threads}} for name, threads in zip("abc", (1, 2, 1))})
    'Claims checked with 1 thread: 2; with 2 threads: 1.'
    """
    counts = Counter(int(result["machine"]["threads"]) for result in results.values())
    counted = [f"with {format_count(threads, 'thread')}: {count}" for threads, count in sorted(counts.items())]
    return f"Claims checked {'; '.join(counted)}." if counted else ""


def _table(recipes: Mapping[str, ClaimConfig], verdicts: Mapping[str, str]) -> str:
    rows = [f"| {config.claim} | {config.source} | {verdicts[name]} |" for name, config in recipes.items()]
    return "\n".join(["| claim | source | verdict |", "| --- | --- | --- |", *rows]) + "\n"


def _section(name: str, config: ClaimConfig, result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    rules = [f"- {_describe_rule(rule)}" for rule in result["rules"]]
    remark = [f"{config.remark}\n"] if config.remark else []
    return "\n".join(
        [
            f"### {_title(name)}: {result['verdict']}\n",
            f"{config.method}\n",
            *rules,
            "",
            *remark,
            f"![{config.claim}](claims/{name}.svg)\n",
            f"{machine['processor']}, {format_count(machine['threads'], 'thread')}, torch {machine['torch']}; "
            f"{format_duration(60 * result['minutes'])}; {_describe_seeds(result['seeds'])}. "
            f"[Result](claims/{name}.json): `benchmarks/results/claims/{name}.json`; recipe: "
            f"`recipes/claims/{name}.json`.\n",
        ]
    )


def _title(name: str) -> str:
    """Heading of a claim, from its name.

    >>> _title("rnns-work-up-to-20-tokens")
    'RNNs work up to 20 tokens'
    """
    words = " ".join(ABBREVIATIONS.get(word, word) for word in name.split("-"))
    return words[0].upper() + words[1:]


def _describe_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def _describe_rule(rule: Mapping[str, Any]) -> str:
    """A rule with the estimate of its quantity, its interval and the verdict.

    >>> _describe_rule({"rule": "a > 1", "estimate": 1.27713, "interval": [1, 2], "count": 1, "verdict": "holds"})
    '`a > 1`: 1.28, **holds**'
    """
    if rule["estimate"] is None:
        return f"`{rule['rule']}`: not known, **{rule['verdict']}**"
    interval = ""
    if rule["count"] > 1:
        low, high = map(_format_value, rule["interval"])
        interval = f" (95 % interval {low} to {high}, over {rule['count']} {rule['over']})"
    reason = f": {_describe_failure(rule)}" if rule["verdict"] == FAILS else ""
    return f"`{rule['rule']}`: {_format_value(rule['estimate'])}{interval}, **{rule['verdict']}**{reason}"


def _describe_failure(rule: Mapping[str, Any]) -> str:
    """The bound that a rule misses, and whether a difference has the claimed sign all the same.

    >>> _describe_failure({"rule": "a - b > 30", "interval": [20.5, 28.5]})
    'above 0, but not above the margin of 30'
    >>> _describe_failure({"rule": "a > 50", "interval": [6.5, 7.2]})
    'not above the bound of 50'
    """
    parsed = Rule.parse(rule["rule"])
    low, high = rule["interval"]
    side = "above" if parsed.relation == ">" else "below"
    if not (parsed.is_difference and parsed.bound):
        return f"not {side} the bound of {_format_value(parsed.bound)}"
    has_claimed_sign = low > 0 if parsed.relation == ">" else high < 0
    sign = f"{side} 0, but " if has_claimed_sign else ""
    return f"{sign}not {side} the margin of {_format_value(parsed.bound)}"


def _format_value(value: float) -> str:
    """Three significant digits.

    >>> _format_value(-0.04567), _format_value(6.881)
    ('−0.0457', '6.88')
    """
    sign = "−" if value < 0 else ""
    return f"{sign}{abs(value):.3g}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(build_page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
