"""`python -m examples.image_completion`: train a model of digits, and complete images with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli import main
from regard.cli.model_options import MODEL_ARGUMENT, TORCH_OPTIONS
from regard.cli.options import AutoNumber, Option, changed_settings, knob_options, verb
from regard.cli.output import print_result, progress_listener
from regard.config.inference import GenerationConfig
from regard.errors import UsageError

PROGRAM = "python -m examples.image_completion"
HELP = """Complete images with a causal language model: each pixel of a handwritten digit is a token.

\b
  python -m examples.image_completion train --out runs/digits
  python -m examples.image_completion complete runs/digits --samples 4
"""
TRAIN_HELP = """Train a small GPT on scikit-learn's digits, one image per text, one character per pixel.

FOLDER gets the spelled images, their split and the model. An unfinished run is resumed.

\b
  python -m examples.image_completion train --out runs/digits --minutes 10
"""
COMPLETE_HELP = """Complete an image whose first rows are known.

The image is a file with one row of grey levels per line (0 to 16, separated by spaces), or a digit by its index.
Without either, it is the first digit that was held out from training.

\b
  python -m examples.image_completion complete runs/digits --samples 4
  python -m examples.image_completion complete runs/digits --index 7 --rows 3 --page seven.html
  python -m examples.image_completion complete runs/digits --image half.txt --svg whole.svg
"""


@verb(
    TRAIN_HELP,
    [
        Option(["--out"], metavar="FOLDER", required=True, help="where data and model go"),
        Option(["--minutes"], type=click.FloatRange(0, min_open=True), help="time budget; without one, a plan is made"),
        Option(["--steps"], type=click.IntRange(1), help="updates, instead of a time budget"),
        Option(["--preset"], help="size of the model, such as micro or tiny; otherwise chosen from the data"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="seed of split and training [default: 1]"),
        Option(
            ["--threads"],
            type=AutoNumber(click.IntRange(1)),
            default="auto",
            help="CPU threads; auto: all cores. [default: auto]",
        ),
    ],
)
def train(context: click.Context, out: str, as_json: bool, **options: Any) -> None:
    """Train a model of digits."""
    from examples.image_completion.model import train_model

    settings = {name: option for name, option in options.items() if option is not None}
    with progress_listener(as_json) as listener:
        model = train_model(Path(out), listeners=[listener], **settings)
    print_result({"folder": out, "held_out": list(model.held_out)}, [f"try it: {PROGRAM} complete {out}"], as_json)


@verb(
    COMPLETE_HELP,
    [
        MODEL_ARGUMENT,
        Option(["--image", "image_file"], metavar="FILE", help="the first rows of an image"),
        Option(["--index"], type=click.IntRange(0), metavar="N", help="a digit of the data set, from 0"),
        Option(["--rows"], type=click.IntRange(0), metavar="N", help="known rows [default: half, or the file's]"),
        Option(["--svg"], metavar="FILE", help="draw the images here"),
        Option(["--page"], metavar="FILE", help="write an HTML page"),
        *knob_options(GenerationConfig, section="Sampling", skip=("max_new_tokens",)),  # the missing pixels are counted
        *TORCH_OPTIONS,
    ],
)
def complete(
    context: click.Context,
    folder: str,
    image_file: str | None,
    index: int | None,
    rows: int | None,
    svg: str | None,
    page: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Complete one image and draw it."""
    if image_file and index is not None:
        raise UsageError("--image and --index are both given: keep one of them")
    from examples.image_completion.drawing import to_html, to_svg, to_terminal
    from examples.image_completion.images import load_digit_images, mask_rows, read_image
    from examples.image_completion.model import ImageModel

    config = GenerationConfig().override(changed_settings(context, GenerationConfig))
    model = ImageModel.load(Path(folder), **computing)
    if image_file:
        original = read_image(image_file, model.height, model.width)
        known_rows = model.height
        name = image_file
    else:
        digits = load_digit_images().pixels
        index = model.held_out[0] if index is None else index
        if index >= len(digits):
            raise UsageError(f"--index is {index}, but the digits have indices from 0 to {len(digits) - 1}")
        original = digits[index]
        known_rows = model.height // 2
        name = f"digit {index}"
    known = mask_rows(original, known_rows if rows is None else rows)
    completions = model.complete(known, config)
    images = [("input", known)]
    images += [(f"completion {sample}", completion) for sample, completion in enumerate(completions, 1)]
    if bool((original >= 0).all()):
        images.append(("original", original))
    if svg:
        Path(svg).write_text(to_svg(images), "utf-8")
    if page:
        Path(page).write_text(to_html(images, f"{name}, completed by {folder}"), "utf-8")
    record = {
        "index": index,
        "input": known.tolist(),
        "completions": [completion.tolist() for completion in completions],
    }
    print_result(record, to_terminal(images), as_json)


image_completion = click.Group(
    "image_completion",
    commands={"train": train, "complete": complete},
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)

if __name__ == "__main__":
    main(command=image_completion, program=PROGRAM)
