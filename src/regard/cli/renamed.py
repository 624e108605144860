"""Options that were renamed before the first release, and other names of verbs, with the names that replace them."""

from __future__ import annotations

# name of a verb in other tools → our verb
SYNONYMS = {
    "export": "convert",
    "search": "similar",
    "plot": "figure",
    "visualize": "see",
    "visualise": "see",
    "flops": "cost",
}

# verb, or "" for every verb → old name → new name
RENAMED: dict[str, dict[str, str]] = {
    "": {
        "--off": "--ablate",
        "--best": "--top-k",
        "--length-power": "--length-penalty",
        "--coverage": "--coverage-penalty",
        "--diverse": "--diversity-penalty",
        "--no-repeat": "--no-repeat-ngram",
        "--max-ratio": "--max-length-a",
        "--max-extra": "--max-length-b",
        "--whole-vocabulary": "--no-shortlist",
        "--long": "--long-texts",
        "--separator": "--label-separator",
        "--unseen": "--unknown-answers",
    },
    "generate": {"--most": "--max-new-tokens", "--count": "--samples"},
    "translate": {"--prefix": "--target-prefix"},
    "tag": {"--columns": "--conll", "--words": "--pretokenized"},
    "similar": {"--among": "--corpus"},
    "compare": {"--on": "--test", "--sentence": "--example", "--seed": "--seeds"},
    "cost": {
        "--architectures": "--arch",
        "--hidden": "--hidden-size",
        "--layers": "--num-layers",
        "--vocabulary": "--vocab-size",
        "--tokens": "--batch-tokens",
    },
    "evaluate": {"--errors": "--page"},
    "data join": {"--most": "--max-pairs"},
    "see": {
        "--keep": "--store",
        "--inside": "--store-qkv",
        "--top": "--candidates",
        "--top-k": "--candidates",
        "--no-beams": "--no-beam-tree",
        "--most": "--max-new-tokens",
        "--pieces": "--subwords",
        "--epochs": "--history",
        "--layers": "--full-layers",
        "--pair": "--text-pair",
    },
    "figure": {"--row": "--token", "--pieces": "--subwords", "--attention": "--site", "--pair": "--text-pair"},
    "train": {
        "--choice": "--hard-attention",
        "--starts": "--restarts",
        "--weights": "--class-weights",
        "--frozen": "--freeze-encoder",
        "--layer-decay": "--layer-lr-decay",
        "--average": "--average-checkpoints",
        "--document": "--document-boundary",
        "--whole-words": "--whole-word-masking",
        "--words": "--new-vocabulary",
        "--row": "--sequence-length",
        "--vocabulary": "--vocab-size",
        "--separate": "--no-joint-vocabulary",
    },
    "distil": {
        "--layers": "--student-layers",
        "--truth": "--label-weight",
        "--hidden": "--hidden-weight",
        "--weights": "--class-weights",
        "--average": "--average-checkpoints",
    },
}


def replacement(command: str, option: str) -> str:
    """New name of an option of a command, as in `train classify`; empty where it has no other name.

    >>> replacement("fill", "--best"), replacement("train masked-lm", "--words"), replacement("fill", "--words")
    ('--top-k', '--new-vocabulary', '')
    """
    for verb in (command, command.partition(" ")[0], ""):
        new_name = RENAMED.get(verb, {}).get(option)
        if new_name:
            return new_name
    return ""
