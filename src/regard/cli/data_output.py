"""Writing parallel data, for the verbs of `regard data`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from regard.cli.options import Option
from regard.cli.output import write_lines
from regard.errors import DataError, UsageError

OUTPUT_FILES = "one file of two columns (.tsv, .jsonl; .gz too) or two parallel files"
OUT = Option(["--out"], multiple=True, required=True, metavar="FILE …", help=f"Output: {OUTPUT_FILES}.")


def write_pairs(out: tuple[str, ...], pairs: list[tuple[str, str]]) -> None:
    """Write pairs in the format that the file names imply."""
    if len(out) == 2:
        source_path, target_path = out
        write_lines(source_path, (source for source, _ in pairs))
        write_lines(target_path, (target for _, target in pairs))
        return
    if len(out) != 1:
        raise UsageError(f"--out names {len(out)} files: {OUTPUT_FILES} are needed")
    path = out[0]
    name = path.removesuffix(".gz")
    if name.endswith(".jsonl"):
        objects = ({"source": source, "target": target} for source, target in pairs)
        write_lines(path, (json.dumps(pair, ensure_ascii=False) for pair in objects))
    elif name.endswith((".tsv", ".tab")):
        write_lines(path, _tab_separated(path, pairs))
    else:
        raise UsageError(f"--out {path}: one file must end in .tsv or .jsonl (.gz may follow); or name two files")


def _tab_separated(path: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for line_number, (source, target) in enumerate(pairs, 1):
        if "\t" in source or "\t" in target:
            location = f"{path}:{line_number}"
            raise DataError("a text contains a tab", location=location, advice="write two files or .jsonl instead")
        yield f"{source}\t{target}"
