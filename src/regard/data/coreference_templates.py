"""Pairs of sentences about one pronoun, without limit of time: one word decides which of two nouns it means.

    The animal did not cross the street because it was too tired.   it: the animal
    The animal did not cross the street because it was too wide.    it: the street

Each `Scenario` has clauses with both nouns, in either order, and two lists of adjectives, one for each noun. The
adjective follows the pronoun, or precedes it ("… the street: being too tired, it was the reason."), so that a model
that reads from left to right can know, too. Both sentences of a pair have the same nouns at the same positions:
whatever considers positions or nouns alone, such as "the nearest noun", is right in one of them and wrong in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from regard.data.coreference import CoreferenceRow
from regard.data.synthetic import check_generation, split_of_target
from regard.errors import UsageError

Pair = tuple[CoreferenceRow, CoreferenceRow]
DEFAULT_COUNT = 300  # pairs
FORMS = ("after", "before")  # where the deciding adjective stands: after the pronoun, or before it
_TAILS = {
    "after": " because it was {degree} {adjective}.",
    "before": ": being {degree} {adjective}, it was the reason.",
}


@dataclass(frozen=True)
class Scenario:
    """Clauses about an agent {a} and another noun {b}, and adjectives that fit one of them alone."""

    name: str
    clauses: tuple[str, ...]  # each contains {a} and {b}
    agents: str  # nouns, separated by spaces
    others: str
    agent_adjectives: str
    other_adjectives: str

    degree: str = "too"

    def pairs(self, form: str, clause: str, agent: str, other: str) -> list[Pair]:
        """Pairs that differ in their adjectives; no sentence is in two of them."""
        start = clause.format(a=agent, b=other)
        random = Random(f"{start} {form}")
        agent_adjectives = self.agent_adjectives.split()
        other_adjectives = self.other_adjectives.split()
        random.shuffle(agent_adjectives)
        random.shuffle(other_adjectives)
        pairs = []
        for adjectives in zip(agent_adjectives, other_adjectives, strict=False):
            tails = (_TAILS[form].format(degree=self.degree, adjective=adjective) for adjective in adjectives)
            first, second = (start + tail for tail in tails)
            pronoun = first.split().index("it")
            pairs.append(
                (
                    CoreferenceRow(first, pronoun, right=agent, wrong=other, scenario=self.name),
                    CoreferenceRow(second, pronoun, right=other, wrong=agent, scenario=self.name),
                )
            )
        return pairs

    def split_pairs(self, split: str) -> list[Pair]:
        """All pairs of a split; sentences with the same clause and nouns are in the same split."""
        pairs = []
        for form, clause, agent, other in product(FORMS, self.clauses, self.agents.split(), self.others.split()):
            if split in ("all", split_of_target(clause.format(a=agent, b=other))):
                pairs += self.pairs(form, clause, agent, other)
        return pairs


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "crossing",
        ("The {a} did not cross the {b}", "The {b} was not crossed by the {a}", "The {a} did not get across the {b}"),
        agents="animal dog cat horse cow sheep goat donkey pony camel lamb puppy",
        others="street road river bridge field valley lake canyon",
        agent_adjectives="tired scared lazy sleepy ill exhausted",
        other_adjectives="wide broad icy slippery",
    ),
    Scenario(
        "fitting",
        ("The {a} did not fit into the {b}", "The {b} could not hold the {a}", "Nobody got the {a} into the {b}"),
        agents="trophy guitar vase statue lamp painting ladder drum table violin",
        others="suitcase box bag drawer cupboard trunk crate basket",
        agent_adjectives="big large wide long bulky",
        other_adjectives="small tiny narrow short cramped",
    ),
    Scenario(
        "lifting",
        ("The {a} could not move the {b}", "The {b} was not moved by the {a}", "The {a} failed to lift the {b}"),
        agents="robot machine horse ox elephant crane tractor truck",
        others="rock piano log boat wardrobe container anchor barrel",
        agent_adjectives="weak feeble slow small",
        other_adjectives="heavy bulky massive huge",
    ),
    Scenario(
        "breaking",
        ("The {a} crashed through the {b}", "The {b} was shattered by the {a}", "The {b} gave way to the {a}"),
        agents="ball stone hammer brick rock bullet cannonball boulder",
        others="window roof fence wall door board ceiling screen",
        agent_adjectives="hard heavy fast massive",
        other_adjectives="thin fragile weak flimsy",
        degree="so",
    ),
    Scenario(
        "eating",
        ("The {a} did not eat the {b}", "The {b} was not eaten by the {a}", "The {a} left the {b} in the bowl"),
        agents="dog cat bear pig monkey horse mouse rabbit",
        others="apple bread soup cake meat fish salad cheese",
        agent_adjectives="sick full sleepy nervous",
        other_adjectives="sour stale salty rotten",
    ),
    Scenario(
        "catching",
        ("The {a} could not catch the {b}", "The {b} was not caught by the {a}", "The {b} escaped from the {a}"),
        agents="fox wolf cat dog lion eagle bear tiger",
        others="rabbit mouse deer hare squirrel goat bird fish",
        agent_adjectives="slow clumsy heavy tired",
        other_adjectives="fast quick agile nimble",
    ),
    Scenario(
        "lighting",
        ("The {a} did not light up the {b}", "The {b} stayed dark in spite of the {a}", "The {a} hardly lit the {b}"),
        agents="lamp candle torch lantern bulb match flame fire",
        others="hall cave tunnel church cellar stadium warehouse tower",
        agent_adjectives="weak dim faint small",
        other_adjectives="large vast huge enormous",
    ),
    Scenario(
        "passing",
        ("The {a} could not pass the {b}", "The {b} was closed to the {a}", "The {a} got stuck in the {b}"),
        agents="ship boat ferry barge tanker yacht steamer freighter",
        others="canal channel river strait harbour lock creek stream",
        agent_adjectives="large wide big long",
        other_adjectives="narrow shallow small rocky",
    ),
)


def generate_coreference(count: int, seed: int = 1, *, split: str = "train") -> Iterator[CoreferenceRow]:
    """Yield the sentences of `count` pairs, scenario by scenario in turn; no pair occurs twice.

    A pair belongs to one split, whatever the seed: the splits have no sentence in common.

    >>> for row in generate_coreference(1, seed=20):
    ...     print(row.sentence, "it:", row.right)
    The animal did not get across the bridge because it was too exhausted. it: animal
    The animal did not get across the bridge because it was too icy. it: bridge
    """
    check_generation(count, split)
    random = Random(f"coreference {seed} {split}")
    by_scenario = [scenario.split_pairs(split) for scenario in SCENARIOS]
    for pairs in by_scenario:
        random.shuffle(pairs)
    num_rounds = min(map(len, by_scenario))
    available = num_rounds * len(SCENARIOS)
    if count > available:
        raise UsageError(f"the split {split} has {available:,} pairs of coreference: --count {count} is more")
    for index in range(count):
        yield from by_scenario[index % len(SCENARIOS)][index // len(SCENARIOS)]
