"""`python -m recipes.claims.page`: write the page "What we found" from the recipes and their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.claims.claim import TOPICS, ClaimConfig, claim_files, read_claim
from recipes.claims.result import is_current, read_result
from recipes.claims.rules import FAILS, HOLDS, UNDECIDED
from regard.formatting import format_duration

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "claims"
PAGE = ROOT / "docs" / "claims.md"
NOT_CHECKED = "not checked"
INTRODUCTION = """\
# What we found

*At the end you know which claims about attention hold here, by which rule that was decided, and how to check them.*

Every claim is a recipe in `recipes/claims/`: who says it, the models that are compared, what is measured, and the rule
that decides, which was fixed before the first run. A rule holds where the whole 95 % interval of its quantity is on the
side that the claim names, does not hold where it is on the other side, and is undecided otherwise. Intervals are
Student's t-intervals over seeds (weights, order of the data and, where they are synthetic, the data), or over examples
where nothing is random. All models are small, and trained for a minute or two on two cores: a verdict is about models
of this size.

```text
make claims                                       # all that have no result yet; resumes after an interruption
make claims CLAIM=positions-are-needed            # one of them
make claims DATA=../shared/data                   # with the folder of public data sets
python -m recipes.claims --list                   # verdicts and minutes
```
"""
FOOTER = """\
This page is written by `python -m recipes.claims.page` from the recipes and their results.
"""


def build_page(results_folder: Path = RESULTS) -> str:
    """Build the page: a summary, a table by topic, and a section for each result."""
    recipes = {name: read_claim(path) for name, path in claim_files().items()}
    results = {name: read_result(results_folder, name) for name in recipes}
    current = {name: result for name, result in results.items() if result and is_current(result, recipes[name])}
    verdicts = {name: str(current[name]["verdict"]) if name in current else NOT_CHECKED for name in recipes}
    parts = [INTRODUCTION, _summarize(verdicts, current)]
    for topic in TOPICS:
        names = [name for name, config in recipes.items() if config.topic == topic]
        if names:
            parts += [f"## {topic}\n", _table({name: recipes[name] for name in names}, verdicts)]
            parts += [_section(name, recipes[name], current[name]) for name in names if name in current]
    return "\n".join([*parts, FOOTER])


def _summarize(verdicts: Mapping[str, str], results: Mapping[str, Mapping[str, Any]]) -> str:
    counts = Counter(verdicts.values())
    texts = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "are undecided", NOT_CHECKED: "wait for a run"}
    counted = ", ".join(f"{counts[verdict]} {text}" for verdict, text in texts.items() if counts[verdict])
    minutes = sum(result["minutes"] for result in results.values())
    duration = f" The runs took {format_duration(60 * minutes)} in all." if results else ""
    return f"Of {len(verdicts)} claims, {counted}.{duration}\n"


def _table(recipes: Mapping[str, ClaimConfig], verdicts: Mapping[str, str]) -> str:
    rows = [f"| {config.claim} | {config.source} | {verdicts[name]} |" for name, config in recipes.items()]
    return "\n".join(["| claim | source | verdict |", "| --- | --- | --- |", *rows]) + "\n"


def _section(name: str, config: ClaimConfig, result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    rules = [f"- {_describe_rule(rule)}" for rule in result["rules"]]
    return "\n".join(
        [
            f"### {name.replace('-', ' ').capitalize()}: {result['verdict']}\n",
            f"{config.method}\n",
            *rules,
            "",
            f"![{config.claim}](claims/{name}.svg)\n",
            f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}; "
            f"{result['minutes']:.1f} minutes; seeds {', '.join(map(str, result['seeds']))}. "
            f"[Result](claims/{name}.json): `benchmarks/results/claims/{name}.json`; recipe: "
            f"`recipes/claims/{name}.json`.\n",
        ]
    )


def _describe_rule(rule: Mapping[str, Any]) -> str:
    estimate = "not a number" if rule["estimate"] is None else f"{rule['estimate']:.4g}"
    low, high = rule["interval"]
    interval = f" (95 %: {low:.4g} to {high:.4g}, over {rule['count']} {rule['over']})" if rule["count"] > 1 else ""
    return f"`{rule['rule']}`: {estimate}{interval}: **{rule['verdict']}**"


def main() -> None:
    """Write the page."""
    PAGE.write_text(build_page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
