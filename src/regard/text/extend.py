"""Extend the vocabulary of a tokenizer: old tokens keep their ids, new ones follow.

New tokens come from texts, by the algorithm that trains a tokenizer of this kind, or from a list of words. Texts are
normalized and split into words as the tokenizer does it. BPE goes on merging from the old subwords; WordPiece and
unigram get those subwords of a vocabulary of the texts that they lack.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import models, trainers

from regard.errors import CheckpointError, DataError, UsageError
from regard.text.tokenizer import OTHER_SIDE, Tokenizer
from regard.text.train import NUM_BYTES, choose_vocabulary_size, choose_wordpiece_size, wordpiece_subwords
from regard.text.unigram import train_unigram

MIN_COUNT = 2  # of a word or a merge that makes a new token
FIRST_STAND_IN = 0x20000  # first of the characters that stand for subwords; from here on, none is a surrogate


def extend_by_texts(tokenizer: Tokenizer, texts: Sequence[str], size: int = 0) -> Tokenizer:
    """Add the subwords of a tokenizer of `size` tokens, by default by the size of the corpus, trained on the texts.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_wordpiece
    >>> tokenizer = train_wordpiece(["low lower"] * 9, TokenizerConfig())
    >>> extended = extend_by_texts(tokenizer, ["lower wooer"] * 9)
    >>> tokenizer.encode("wooer").subwords, extended.encode("wooer").subwords
    (['w', '##o', '##o', '##er'], ['wooer'])
    """
    content = _read_extensible(tokenizer)
    model_type = content["model"]["type"]
    if model_type == "WordPiece" and content["model"].get("continuing_subword_prefix"):
        size = size or choose_wordpiece_size(list(texts))
        return _with_tokens(tokenizer, content, wordpiece_subwords(list(texts), size, tokenizer.backend.normalizer))
    size = size or choose_vocabulary_size(texts, "bpe" if model_type == "BPE" else "wordpiece")
    words = _count_words(tokenizer, texts)
    if model_type == "Unigram":
        pieces = train_unigram(words, size)
        return _with_pieces(tokenizer, content, pieces)
    if model_type == "WordLevel":
        return _with_tokens(tokenizer, content, [word for word, count in words.most_common() if count >= MIN_COUNT])
    if model_type == "BPE":
        merges = _continue_merges(tokenizer, words, size)
        return _with_tokens(tokenizer, content, [left + right for left, right in merges], merges)
    return _with_tokens(tokenizer, content, _train_subwords(words, size))


def extend_by_words(tokenizer: Tokenizer, words: Iterable[str]) -> Tokenizer:
    """Add whole words.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower"] * 9, TokenizerConfig())
    >>> extend_by_words(tokenizer, ["lowland"]).encode("low lowland").subwords
    ['▁low', '▁lowland']
    """
    content = _read_extensible(tokenizer)
    tokens = list(_count_words(tokenizer, words))
    if not tokens:
        raise DataError("no word to extend the vocabulary by", advice="the file needs one word per line")
    if content["model"]["type"] == "Unigram":
        best_score = max(float(score) for _, score in content["model"]["vocab"])
        return _with_pieces(tokenizer, content, [(token, best_score) for token in tokens])
    if content["model"]["type"] != "BPE":
        return _with_tokens(tokenizer, content, tokens)
    subwords: list[str] = []
    merges: list[tuple[str, str]] = []
    for token in tokens:
        first, *others = [piece.value for piece in tokenizer.backend.model.tokenize(token)]
        for other in others:  # the old merges come first and end in these pieces
            merges.append((first, other))
            first += other
            subwords.append(first)
    return _with_tokens(tokenizer, content, subwords, merges)


def old_subwords(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Ids of the old subwords of each token that an extended tokenizer adds, in order of the new ids.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_wordpiece
    >>> old = train_wordpiece(["low lower"] * 9, TokenizerConfig())
    >>> new = extend_by_words(old, ["lowlow"])
    >>> [old.subwords(ids) for ids in old_subwords(old, new)]
    [['low', '##lo', '##w']]
    """
    subword_ids = []
    for token_id in range(old.vocab_size, new.vocab_size):
        token = str(new.backend.id_to_token(token_id))  # in the model's own form, with ▁, Ġ or ##
        ids = [piece.id for piece in old.backend.model.tokenize(token)]
        subword_ids.append(ids or [max(old.unk_id, 0)])
    return subword_ids


def append_other_side(tokenizer: Tokenizer, other: Tokenizer, start: int) -> Tokenizer:
    """Append the tokens from id `start` on of the other side's tokenizer, as ones that no text is split into.

    So two tokenizers keep one vocabulary.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> source, target = (train_tokenizer([text] * 9, TokenizerConfig(kind="unigram")) for text in ("aa b", "bb a"))
    >>> extended = extend_by_words(source, ["ab"])
    >>> appended = append_other_side(target, extended, source.vocab_size)
    >>> appended.vocab_size - target.vocab_size, appended.encode("ab").ids == target.encode("ab").ids
    (1, True)
    """
    content = json.loads(tokenizer.to_json())
    tokens = [OTHER_SIDE + str(other.backend.id_to_token(token_id)) for token_id in range(start, other.vocab_size)]
    if content["model"]["type"] == "Unigram":
        return _with_pieces(tokenizer, content, [(token, 0.0) for token in tokens])
    return _with_tokens(tokenizer, content, tokens)


def _read_extensible(tokenizer: Tokenizer) -> dict[str, Any]:
    """Content of the tokenizer's file; raises where tokens are single characters."""
    content: dict[str, Any] = json.loads(tokenizer.to_json())
    if content["model"]["type"] == "BPE" and not content["model"]["merges"]:
        raise UsageError(
            "the tokens of the model are single characters, so that no word can be added to them: leave out "
            "--extend-vocabulary"
        )
    return content


def _count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Words of the texts as the model of the tokenizer sees them."""
    normalizer = tokenizer.backend.normalizer
    pre_tokenizer = tokenizer.backend.pre_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        if pre_tokenizer is None:
            counts.update([normalized] if normalized else [])
        else:
            counts.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalized))
    return counts


def _train_subwords(words: Counter[str], size: int) -> list[str]:
    """Subwords of BPE, in the order of training."""
    vocabulary = _train_bpe(words, size)["vocab"]
    return sorted(vocabulary, key=lambda token: int(vocabulary[token]))


def _continue_merges(tokenizer: Tokenizer, words: Counter[str], size: int) -> list[tuple[str, str]]:
    """Merges that BPE training adds to the tokenizer's own: it continues from the old subwords of the words."""
    unknown = tokenizer.backend.id_to_token(tokenizer.unk_id) if tokenizer.unk_id >= 0 else None
    characters: dict[str, str] = {}  # old subword → the character that stands for it in training
    spellings: Counter[str] = Counter()
    for word, count in words.items():
        subwords = [piece.value for piece in tokenizer.backend.model.tokenize(word)]
        if unknown not in subwords:
            for subword in subwords:
                characters.setdefault(subword, chr(FIRST_STAND_IN + len(characters)))
            spellings["".join(characters[subword] for subword in subwords)] += count
    subwords_by_character = {character: subword for subword, character in characters.items()}

    def spell_out(token: str) -> str:
        return "".join(subwords_by_character[character] for character in token)

    num_merges = max(0, size - NUM_BYTES)  # of a vocabulary of this size that is trained afresh
    model = _train_bpe(spellings, len(characters) + num_merges)
    return [(spell_out(left), spell_out(right)) for left, right in model["merges"]]


def _train_bpe(words: Counter[str], size: int) -> dict[str, Any]:
    """Content of a BPE model that is trained on these words."""
    bpe = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=MIN_COUNT, show_progress=False)
    occurrences = [word for word in sorted(words) for _ in range(words[word])]
    bpe.train_from_iterator(occurrences, trainer, length=len(occurrences))
    model: dict[str, Any] = json.loads(bpe.to_str())["model"]
    return model


def _with_tokens(
    tokenizer: Tokenizer, content: dict[str, Any], tokens: Iterable[str], merges: Iterable[tuple[str, str]] = ()
) -> Tokenizer:
    """Tokenizer with more tokens in the vocabulary of its model, and merges after its own."""
    model = content["model"]
    vocabulary: dict[str, int] = model["vocab"]
    _place_added_tokens(tokenizer, content, vocabulary)
    for token in tokens:
        vocabulary.setdefault(token, len(vocabulary))
    if model["type"] == "BPE":
        known = {tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]}
        for left, right in merges:
            if (left, right) not in known and {left, right, left + right} <= vocabulary.keys():
                model["merges"].append([left, right])
                known.add((left, right))
        model["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return Tokenizer.from_json(json.dumps(content, ensure_ascii=False), where="the extended tokenizer")


def _with_pieces(tokenizer: Tokenizer, content: dict[str, Any], pieces: Iterable[tuple[str, float]]) -> Tokenizer:
    """Unigram tokenizer with more pieces, each with its log-probability."""
    vocabulary: list[list[Any]] = content["model"]["vocab"]
    ids = {str(token): token_id for token_id, (token, _) in enumerate(vocabulary)}
    _place_added_tokens(tokenizer, content, ids)
    vocabulary += [[token, 0.0] for token in list(ids)[len(vocabulary) :]]
    vocabulary += [[piece, score] for piece, score in pieces if piece not in ids]
    return Tokenizer.from_json(json.dumps(content, ensure_ascii=False), where="the extended tokenizer")


def _place_added_tokens(tokenizer: Tokenizer, content: dict[str, Any], vocabulary: dict[str, int]) -> None:
    """Add the tokens that a file lists beside the vocabulary to it, so that ids have no gap before the new ones."""
    for added in sorted(content.get("added_tokens") or [], key=lambda added: int(added["id"])):
        vocabulary.setdefault(str(added["content"]), int(added["id"]))
    if sorted(vocabulary.values()) != list(range(tokenizer.vocab_size)):
        raise CheckpointError(
            "the ids of the tokenizer have gaps, so that its vocabulary cannot be extended: leave out "
            "--extend-vocabulary, or train a new one with --new-vocabulary"
        )
