"""How files are read and how text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import Config, knob
from regard.errors import ConfigError

TOKENIZER_KINDS = ("bpe", "unigram", "wordpiece", "words", "characters")


@dataclass(frozen=True, kw_only=True)
class ReadConfig(Config):
    """How data files are read."""

    encoding: str = knob("utf-8", "text encoding of the files")
    format: str = knob(
        "auto", "file format; auto: by the file's ending", choices=("auto", "lines", "tsv", "csv", "jsonl")
    )
    source: str = knob("", "column or field of the source text: a name, or a number from 1")
    target: str = knob("", "column or field of the target text: a name, or a number from 1")
    text: str = knob("", "column or field of the text: a name, or a number from 1")
    label: str = knob("", "column or field of the label: a name, or a number from 1")
    pair: str = knob("", "column or field of a second text, where texts come in pairs: a name, or a number from 1")
    label_separator: str = knob("", "what stands between the labels of a text that may have several, such as ;")
    no_header: bool = knob(False, "a CSV's first row is data, not names")
    delimiter: str = knob("", "column separator of a CSV (default: comma)")
    lenient: bool = knob(False, "put faulty rows into a reject file and go on")
    max_reject: float = knob(
        1.0, "with --lenient: stop when more than this share is rejected, in percent", low=0, high=100
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """How text becomes tokens."""

    kind: str = knob("bpe", "what tokens are; bpe is byte-level", choices=TOKENIZER_KINDS)
    vocab_size: int = knob(0, "vocabulary size; 0: chosen from the corpus", low=0)
    joint: bool = knob(True, "one tokenizer for both languages")
    normalization: str = knob("NFC", "Unicode normal form", choices=("NFC", "NFKC", "none"))
    lowercase: bool = knob(False, "lower-case all text first")
    bpe_dropout: float = knob(0.0, "chance to skip a merge in training (BPE dropout, bpe only)", low=0, high=0.9)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Which files a run reads."""

    train: tuple[str, ...] = knob((), "training files: two parallel files, or one with two columns")
    valid: tuple[str, ...] = knob((), "validation files; none: a small share of the training data is held out")
    read: ReadConfig = knob(ReadConfig, "how files are read")
    max_length: int = knob(256, "longest row in tokens, for training; longer ones are left out and counted", low=1)


@dataclass(frozen=True, kw_only=True)
class DocumentConfig(Config):
    """How running text becomes rows of tokens."""

    document_boundary: str = knob(
        "auto",
        "what stands between two boundaries; auto: paragraphs where a file has blank lines, else lines; with --arch "
        "gpt whole files",
        choices=("auto", "paragraph", "line", "file"),
    )
    sequence_length: int = knob(
        0, "tokens of a row: documents are laid end to end and cut into rows; 0: chosen for the model", low=0
    )


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """Which words are hidden from a model that learns to tell them."""

    mask_rate: float = knob(0.25, "share of a row's tokens that the model is to tell", low=0.01, high=0.9)
    mask_token_share: float = knob(0.8, "share of those that become the mask token", low=0, high=1)
    random_token_share: float = knob(
        0.1, "share of those that become any other token; what is left stays as it is", low=0, high=1
    )
    whole_word_masking: bool = knob(False, "hide all tokens of a word together")
    next_sentence: bool = knob(False, "rows are two texts, and the model also tells whether the second follows")
    pretraining_dropout: float = knob(
        0.0, "dropout while it learns; what is written has the usual 0.1, for fine-tuning", low=0, high=0.95
    )
    words: str = knob(
        "kept",
        "with --from: keep its vocabulary, or learn a new one whose pieces start from what the old ones know",
        choices=("kept", "new"),
    )

    def check(self) -> None:
        if self.mask_token_share + self.random_token_share > 1:
            raise ConfigError(
                f"masked ({self.mask_token_share:g}) and random ({self.random_token_share:g}) are shares of one whole: at most 1 in all"
            )
