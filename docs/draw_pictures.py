"""Draw the figures of visualisation.md from the records of the example notebook: python docs/draw_pictures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.view.figure import figure
from regard.view.record.record import Record

HERE = Path(__file__).parent
RECORDS = HERE.parent / "examples" / "notebooks" / "records"
PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {  # file → (record, view, options)
    "matrix": ("translation", "matrix", {"words": True}),
    "decoding": ("translation", "decoding", {}),
    "beam-tree": ("translation", "beam-tree", {"width": "page"}),
    "lines": ("encoder", "lines", {"token": "it", "layer": 5}),
    "heads": ("encoder", "heads", {"width": "page"}),
    "math": ("encoder", "math", {"token": "it"}),
    "positions": ("encoder", "positions", {}),
    "flow": ("encoder", "flow", {"token": "it"}),
}


def draw(folder: Path = HERE / "pictures" / "seeing") -> list[Path]:
    """Write all figures; return their files."""
    files = []
    for name, (record_name, view, options) in PICTURES.items():
        record = Record.read(RECORDS / f"{record_name}.json")
        files.append(figure(record, view, **options).save(folder / f"{name}.svg"))
    return files


if __name__ == "__main__":
    for file in draw():
        print(file)
