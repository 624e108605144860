"""Draws the pictures of visualisation.md from the records of the example notebook: python docs/draw_pictures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.view.figure import figure
from regard.view.record.record import Record

HERE = Path(__file__).parent
RECORDS = HERE.parent / "examples" / "notebooks" / "records"
PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {  # file → (record, view, what of it)
    "align": ("translation", "align", {"words": True}),
    "steps": ("translation", "steps", {}),
    "beams": ("translation", "beams", {"width": "page"}),
    "look": ("encoder", "look", {"token": "it", "layer": 5}),
    "heads": ("encoder", "heads", {"width": "page"}),
    "maths": ("encoder", "maths", {"token": "it"}),
    "place": ("encoder", "place", {}),
    "flow": ("encoder", "flow", {"token": "it"}),
}


def draw(folder: Path = HERE / "pictures" / "seeing") -> list[Path]:
    """Write all pictures and return their files."""
    made = []
    for name, (record, view, chosen) in PICTURES.items():
        made.append(figure(Record.read(RECORDS / f"{record}.json"), view, **chosen).save(folder / f"{name}.svg"))
    return made


if __name__ == "__main__":
    for file in draw():
        print(file)
