"""How files are read and how text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import AUTO, Config, knob
from regard.errors import ConfigError

TOKENIZER_KINDS = ("bpe", "unigram", "wordpiece", "words", "characters")


@dataclass(frozen=True, kw_only=True)
class ReadConfig(Config):
    """How data files are read."""

    encoding: str = knob("utf-8", "Text encoding of the files.", metavar="NAME")
    format: str = knob(
        "auto",
        "File format; auto: by the file extension.",
        choices=("auto", "lines", "tsv", "csv", "jsonl"),
    )
    source: str = knob("", "Column of the source text: a name, or a number from 1.", metavar="COLUMN")
    target: str = knob("", "Column of the target text: a name, or a number from 1.", metavar="COLUMN")
    text: str = knob("", "Column of the text: a name, or a number from 1.", metavar="COLUMN")
    label: str = knob("", "Column of the label: a name, or a number from 1.", metavar="COLUMN")
    pair: str = knob("", "Column of the second text of a text pair: a name, or a number from 1.", metavar="COLUMN")
    label_separator: str = knob("", "Separator between the labels of a multi-label text, such as ';'.")
    header: str = knob(
        "auto",
        "The first row of a CSV or TSV names its columns; by default that is detected from its cells.",
        choices=("auto", "yes", "no"),
        negated="The first row of a CSV or TSV is data.",
    )
    delimiter: str = knob("", "Column separator of a CSV. [default: a comma]")
    lenient: bool = knob(
        False,
        "Skip malformed rows, or lines, instead of aborting; they go to NAME.rejected.jsonl beside the file NAME.",
    )
    max_reject: float = knob(
        1.0, "With --lenient: stop when more than this percentage of rows is rejected.", low=0, high=100
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """How text becomes tokens."""

    kind: str = knob(
        "bpe", "Tokenizer type, unless a pretrained model has its own; bpe is byte-level.", choices=TOKENIZER_KINDS
    )
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: by the size of the corpus.", low=1)
    joint: bool = knob(
        True, "One tokenizer for both languages.", negated="Train one tokenizer per language instead of a joint one."
    )
    normalization: str = knob("NFC", "Unicode normalisation form.", choices=("NFC", "NFKC", "none"))
    lowercase: bool = knob(False, "Lower-case all text.")
    bpe_dropout: float = knob(
        0.0, "BPE dropout: probability of skipping a merge during training (bpe only).", low=0, high=0.9
    )
    extend: str = knob(
        "",
        "With --from: extend the vocabulary by the subwords of one trained on the texts (of --vocab-size), or by the "
        "words of FILE, one per line. A new embedding starts as the mean of those of its old subwords.",
        bare="texts",
        metavar="texts|FILE",
    )


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Files that a run reads."""

    train: tuple[str, ...] = knob((), "Training files: two parallel files, or one with two columns.")
    valid: tuple[str, ...] = knob(
        (), "Validation files, after FILES; without any, a small part of the training data is held out."
    )
    read: ReadConfig = knob(ReadConfig, "How files are read.")
    max_length: int = knob(
        256,
        "Maximum tokens of a text, special tokens included; a longer one is truncated, or cut into windows for a "
        "Transformer.",
        low=1,
    )


@dataclass(frozen=True, kw_only=True)
class DocumentConfig(Config):
    """How running text becomes training sequences."""

    document_boundary: str = knob(
        "auto",
        "What one document is: they are held out whole, and a boundary token follows each; auto: paragraphs where a "
        "file has blank lines, else lines.",
        choices=("auto", "paragraph", "line", "file"),
    )
    sequence_length: int = knob(
        AUTO, "Tokens per training sequence, cut from the concatenated documents; auto: by the model.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """Masking for masked language modelling (Devlin et al. 2019)."""

    mask_rate: float = knob(
        0.25,
        "Fraction of the tokens to predict (BERT: 0.15); 80 % become the mask token, 10 % a random one.",
        low=0.01,
        high=0.9,
    )
    mask_token_share: float = knob(0.8, "Fraction of the masked tokens that become the mask token.", low=0, high=1)
    random_token_share: float = knob(
        0.1, "Fraction of the masked tokens that become a random token; the rest stay unchanged.", low=0, high=1
    )
    whole_word_masking: bool = knob(False, "Mask all tokens of a word together.")
    next_sentence: bool = knob(
        False,
        "Train next-sentence prediction, too: each sequence is cut in two, and half of the second parts are random.",
    )
    pretraining_dropout: float = knob(
        0.0, "Dropout during pre-training; the saved model has 0.1, for fine-tuning.", low=0, high=0.95
    )
    new_vocabulary: bool = knob(
        False, "With --from: train a new vocabulary, whose embeddings are initialised from the old ones."
    )

    def check(self) -> None:
        if self.mask_token_share + self.random_token_share > 1:
            raise ConfigError(
                f"mask_token_share ({self.mask_token_share:g}) and random_token_share ({self.random_token_share:g}) "
                "are shares of the masked tokens: at most 1 in all"
            )
