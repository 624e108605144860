"""Train a causal language model on spelled images, and complete images with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regard
from examples.image_completion.images import GREY_LEVELS, Image, from_text, load_digit_images, to_text
from regard.config.inference import GenerationConfig
from regard.data.documents import Documents, hold_out_documents
from regard.decoding.rules import ForbidSequences
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.training.listeners import Listener

IMAGES_FILE = "images.json"  # size of the images and indices of those held out
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class ImageModel:
    """A causal language model of images of one size."""

    pipeline: regard.GenerationPipeline
    height: int
    width: int
    held_out: Sequence[int]  # indices of the images that were not trained on

    @classmethod
    def load(cls, folder: Path, **options: Any) -> ImageModel:
        """Load the model that `train_model` wrote; options are those of `regard.load`."""
        path = folder / IMAGES_FILE
        if not path.is_file():
            raise UsageError(f"{folder} holds no model of images: {IMAGES_FILE} is missing; train one first")
        pipeline = regard.load(folder / MODEL_FOLDER, **options)
        if not isinstance(pipeline, regard.GenerationPipeline):
            raise UsageError(f"{folder / MODEL_FOLDER} is no causal language model")
        return cls(pipeline, **json.loads(path.read_text("utf-8")))

    def complete(self, image: Image, config: GenerationConfig | None = None) -> list[Image]:
        """Generate the missing pixels at the end of an image; `config.count` completions differ by their samples."""
        known = image.reshape(-1) >= 0
        num_known = int(known.sum())
        if image.shape != (self.height, self.width) or not bool(known[:num_known].all()):
            raise UsageError(f"an image of {self.height} × {self.width} pixels is needed, only the last ones missing")
        if num_known == image.size:
            raise UsageError("no pixel is missing: leave some out")
        prompt = to_text(image.reshape(-1)[:num_known])
        config = (config or GenerationConfig()).override({"max_new_tokens": image.size - num_known})
        (continuations,) = self.pipeline.generate([prompt], config, rules=[self._only_levels()])
        return [from_text(prompt + continuation, self.height, self.width) for continuation in continuations]

    def _only_levels(self) -> ForbidSequences:
        """Forbid every token that is no grey level, the end of the text among them."""
        level_ids = {token for tokens in self.pipeline.tokenizer.encode_batch([*GREY_LEVELS]) for token in tokens}
        other_ids = sorted(set(range(self.pipeline.model.generator().vocab_size)) - level_ids)
        return ForbidSequences([[token] for token in other_ids])


def train_model(folder: Path, *, seed: int = 1, listeners: Sequence[Listener] = (), **settings: Any) -> ImageModel:
    """Train on the digits, or resume an unfinished run in `folder`; settings are those of `regard.train`."""
    images = load_digit_images()
    texts = images.texts()
    train, valid = hold_out_documents(Documents.from_texts(texts), seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in (("train.txt", train), ("valid.txt", valid)):
        (folder / name).write_text("".join(f"{text}\n" for text in documents.texts), "utf-8")
    pipeline = regard.train(
        "causal-lm",
        folder / "train.txt",
        valid=[folder / "valid.txt"],
        out=folder / MODEL_FOLDER,
        listeners=listeners,
        document_boundary="line",
        kind="characters",
        seed=seed,
        **settings,
    )
    assert isinstance(pipeline, regard.GenerationPipeline)
    _, height, width = images.pixels.shape
    held_out_texts = set(valid.texts)
    held_out = [index for index, text in enumerate(texts) if text in held_out_texts]
    description = {"height": height, "width": width, "held_out": held_out}
    (folder / IMAGES_FILE).write_text(json.dumps(description) + "\n", "utf-8")
    return ImageModel(pipeline, height, width=width, held_out=held_out)
