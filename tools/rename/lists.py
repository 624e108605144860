"""Turn rename lists into `rules.pkl` for `rename.py`: python lists.py LIST…"""

import pickle
import sys
from pathlib import Path


def full_name(module: str) -> str:
    """Dotted name of a module that is given relative to `src/regard`."""
    module = module.removesuffix(".py").removesuffix("/__init__")
    return "regard" + ("." + module.replace("/", ".") if module else "")


def main(paths: list[str]) -> None:
    """Read the lists, one rename per line, and write the rules."""
    rules: dict[str, dict[object, str]] = {"globals": {}, "members": {}, "params": {}}
    for path in paths:
        for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
            words = line.split("#")[0].split()
            match words:
                case []:
                    continue
                case ["global", module, old, new]:
                    rules["globals"][f"{full_name(module)}.{old}"] = new
                case ["member", module, owner, old, new]:
                    rules["members"][f"{full_name(module)}.{owner}", old] = new
                case ["param", module, function, old, new]:
                    rules["params"][f"{full_name(module)}.{function}", old] = new
                case _:
                    sys.exit(f"{path}:{number}: not a rename: {line!r}")
    with Path(__file__).with_name("rules.pkl").open("wb") as file:
        pickle.dump(rules, file)


if __name__ == "__main__":
    main(sys.argv[1:])
