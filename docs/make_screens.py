"""Screenshots of the page for the site and the README: each view in a real browser, as small PNGs.

    python -m docs.make_screens record.json [other.json …]      # every view of the first record, in docs/pictures

A record is written by `regard see MODEL TEXT --out record.json`: first of a translation model (docs/make_pictures.py)
with `--store-qkv encoder.1.self:0`, then of a BERT such as MiniLM, then of the translation model with
`--ablate decoder.0.cross:2`. Needs chromium and the dev extra.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from regard.view.record.record import Record
from tests.view.browser import Seen, started, written

PICTURES = Path(__file__).parent / "pictures"
ALIGNMENT = "attention=decoder.cross&layer=2&heads=2"  # a head that aligns words (docs/make_pictures.py finds it)
SHOTS = {  # name: (record, fragment, theme, width)
    "page-lines": (0, f"view=lines&{ALIGNMENT}&q=3", "light", 1200),
    "page-lines-dark": (1, "view=lines&layer=1&heads=4,8,11&q=10", "dark", 1200),
    "page-heads-dark": (1, "view=heads", "dark", 1200),
    "page-matrix": (0, f"view=matrix&{ALIGNMENT}&q=4", "light", 1200),
    "page-decoding": (0, f"view=decoding&{ALIGNMENT}&step=4", "light", 1200),
    "page-math": (0, "view=math&attention=encoder.self&layer=1&heads=0&q=2", "light", 1200),
    "page-positions": (0, "view=positions", "light", 1200),
    "page-flow": (1, "view=flow", "light", 1200),
    "page-compare": (0, f"view=compare&{ALIGNMENT}&with=2", "light", 1200),
    "page-phone": (0, f"view=matrix&{ALIGNMENT}&q=4", "dark", 390),
}


def compress(picture: bytes, colours: int = 256) -> bytes:
    """Reduce the colours of a PNG, if Pillow is installed."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return picture
    output = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(
        output, "PNG", optimize=True
    )
    return output.getvalue() if len(output.getvalue()) < len(picture) else picture


def main() -> None:
    """Take the selected screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="screenshots whose name contains this")
    arguments = parser.parse_args()
    records = [Record.read(path) for path in arguments.records]
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        address = written(records, Path(folder), "Regard")
        for name, (index, fragment, theme, width) in SHOTS.items():
            if index >= len(records) or arguments.only not in name or ("with=2" in fragment and len(records) < 3):
                continue
            seen = Seen(browser, offline=True, viewport={"width": width, "height": 800}, reduced_motion="reduce")
            seen.open(f"{address}#record={index}&theme={theme}&{fragment}")
            (PICTURES / f"{name}.png").write_bytes(compress(seen.page.screenshot()))
            seen.close()
    print(sum(path.stat().st_size for path in PICTURES.glob("page-*.png")), "bytes in", PICTURES)


if __name__ == "__main__":
    main()
