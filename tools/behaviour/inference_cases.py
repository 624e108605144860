"""Answers of every model family on every backend that computes it, to 200 generated texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tools.behaviour import api, corpus, hf_folders, tokenizer_files
from tools.behaviour.cases import Case, Outputs, Workspace
from tools.behaviour.weights import EmphasizedRow, draw_weights

BACKENDS = {
    "torch-float32": ("torch", "float32"),
    "engine-float32": ("engine", "float32"),
    "engine-int8": ("engine", "int8"),
}
TORCH = "torch-float32"
ENGINE_ENCODERS = ("bert", "distilbert", "roberta", "xlm-roberta", "electra-wide")
ENCODER_HEADS = ("none", "masked_lm", "sequence", "token", "span")
PRETRAINING = ("bert", "albert", "big_bird")
EXPLAINED = ("bert", "albert", "modernbert", "big_bird")  # encoders whose attention and attributions are digested, too

texts = cache(corpus.make_texts)
short_texts = cache(partial(corpus.make_texts, long=False))
SAMPLE = "The old teacher found a letter near the bridge in New York."
SAMPLE_QUESTION = ("Where is the letter?", SAMPLE)
SPREAD = 3.0  # of weights: large enough that answers differ from text to text
TRANSFORMER_END = 4.0
LIMITS: dict[str, Any] = {"max_length_a": 1.2, "max_length_b": 6}  # random models seldom end a translation

# ---- encoders in Hugging Face format


def _encoder_folder(workspace: Workspace, name: str, head: str, **changes: Any) -> Path:
    variant = "".join(f"-{value}" for value in changes.values())
    return workspace.build(
        f"hf/{name}-{head}{variant}", lambda folder: hf_folders.build_encoder(folder, name, head, **changes)
    )


def run_embeddings(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Vectors by every pooling, of long texts truncated and in windows."""
    device, precision = BACKENDS[backend]
    folder = _encoder_folder(workspace, name, "none")
    model = api.load(folder, backend=device, precision=precision, task="embed")
    for pooling in ("mean", "cls", "max"):
        yield f"embeddings, {pooling}", api.embed(model, texts(), pooling=pooling, long_texts="truncate")
    yield (
        "embeddings, windows, normalized",
        api.embed(model, texts(), pooling="mean", long_texts="window", normalize=True),
    )
    yield "nearest texts", api.find_similar(model, texts()[:20], texts()[20:])
    if backend == TORCH:
        yield "attention maps", [api.attention_maps(model, text) for text in (SAMPLE, *texts()[:3], texts()[24])]
        yield "trace", api.trace_attention(model, SAMPLE)
        if name in EXPLAINED:
            yield "head importance", api.head_importance(model, SAMPLE)
            yield "ablation", api.answer_with_ablation(model, "encoder.0.self:1", SAMPLE)


def run_labels(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Label probabilities of texts and of pairs of texts."""
    device, precision = BACKENDS[backend]
    model = api.load(_encoder_folder(workspace, name, "sequence"), backend=device, precision=precision)
    yield "labels", api.classify(model, texts())
    yield "labels of pairs", api.classify(model, texts()[:60], corpus.make_texts(60, 9, long=False))
    if backend == TORCH:
        yield "attention maps", api.attention_maps(model, SAMPLE)
    if backend == TORCH and name in EXPLAINED:
        yield "explanation", [api.explain(model, SAMPLE), api.explain(model, texts()[1], texts()[2])]
        yield "head importance", api.head_importance(model, SAMPLE)
        yield "ablation", api.answer_with_ablation(model, "encoder.1.self:2", SAMPLE)


def run_multilabel(workspace: Workspace, backend: str) -> Outputs:
    """Independent label probabilities."""
    device, precision = BACKENDS[backend]
    folder = _encoder_folder(workspace, "bert", "sequence", problem_type="multi_label_classification")
    yield "labels", api.classify(api.load(folder, backend=device, precision=precision), texts())


def run_tags(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Tags and entities."""
    device, precision = BACKENDS[backend]
    model = api.load(_encoder_folder(workspace, name, "token"), backend=device, precision=precision)
    yield "tags", api.tag(model, texts())
    if backend == TORCH:
        yield "steps", api.decoding_steps(model, SAMPLE)


def run_spans(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Answers to questions about passages."""
    device, precision = BACKENDS[backend]
    model = api.load(_encoder_folder(workspace, name, "span"), backend=device, precision=precision)
    yield "answers", api.answer_questions(model, corpus.make_questions())
    if backend == TORCH:
        yield "attention maps", api.attention_maps(model, *SAMPLE_QUESTION)
    if backend == TORCH and name in EXPLAINED:
        yield "explanation", api.explain(model, *SAMPLE_QUESTION)


def run_fills(workspace: Workspace, name: str, head: str) -> Outputs:
    """Tokens for masks."""
    model = api.load(_encoder_folder(workspace, name, head))
    mask = api.mask_token(model)
    yield "fills", api.fill_masks(model, corpus.make_masked_texts(mask))
    sample = f"The old {mask} found a letter."
    yield "attention maps", api.attention_maps(model, sample)
    yield "steps", api.decoding_steps(model, sample)


def _encoder_cases() -> list[Case]:
    runs: Mapping[str, Callable[..., Outputs]] = {
        "none": run_embeddings,
        "sequence": run_labels,
        "token": run_tags,
        "span": run_spans,
    }
    cases = []
    for name in hf_folders.ENCODERS:
        backends = BACKENDS if name in ENGINE_ENCODERS else (TORCH,)
        for head in ENCODER_HEADS:
            if head == "masked_lm":
                cases.append(Case(f"{name}/masked_lm/{TORCH}", partial(run_fills, name=name, head=head)))
                continue
            for backend in backends:
                cases.append(Case(f"{name}/{head}/{backend}", partial(runs[head], name=name, backend=backend)))
        if name in PRETRAINING:
            cases.append(Case(f"{name}/pretraining/{TORCH}", partial(run_fills, name=name, head="pretraining")))
    cases += [Case(f"bert/multilabel/{backend}", partial(run_multilabel, backend=backend)) for backend in BACKENDS]
    return cases


# ---- causal language models


def _run_generation(model: Any, *, is_traced: bool) -> Outputs:
    prompts = [text for text in texts() if text.strip()]
    yield "greedy", api.generate(model, prompts, greedy=True, max_new_tokens=12)
    yield "sampled", api.generate(model, prompts[:100], seed=3, max_new_tokens=12, temperature=0.8, top_k=20)
    yield "several samples", api.generate(model, prompts[:20], seed=4, samples=3, max_new_tokens=8, top_p=0.9)
    yield "beyond the context", api.generate(model, prompts[:3], greedy=True, max_new_tokens=70, no_repeat_ngram=3)
    if is_traced:
        yield "attention maps", api.attention_maps(model, SAMPLE, greedy=True, max_new_tokens=5)
        yield "trace", api.trace_attention(model, SAMPLE, greedy=True, max_new_tokens=5)
        yield "steps", api.decoding_steps(model, SAMPLE, greedy=True, max_new_tokens=5)


def run_causal_lm(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Greedy and sampled continuations, and the loss of running text."""
    device, precision = BACKENDS[backend]
    folder = workspace.build(f"hf/{name}", lambda path: hf_folders.build_causal_lm(path, name))
    yield from _run_generation(api.load(folder, backend=device, precision=precision), is_traced=backend == TORCH)
    if backend == TORCH:
        yield "loss", api.evaluate(folder, [_documents(workspace)], backend="torch")


def _documents(workspace: Workspace) -> Path:
    return workspace.build("data/documents.txt", lambda path: corpus.write_documents(path, 12, seed=21))


# ---- translation


def _run_translation(model: Any, *, is_traced: bool) -> Outputs:
    sources = short_texts()
    targets = corpus.make_targets(sources)
    yield "beam 4", api.translate(model, texts(), beam=4, nbest=4, **LIMITS)
    yield "greedy", api.translate(model, texts(), beam=1, **LIMITS)
    yield "scores", api.score_translations(model, sources, targets)
    few = sources[:40]
    yield (
        "sampled",
        api.translate(model, few, beam=1, sample=True, nbest=2, seed=5, top_k=15, temperature=0.7, **LIMITS),
    )
    yield "diverse", api.translate(model, few, beam=4, nbest=4, diversity_penalty=0.7, **LIMITS)
    yield (
        "length penalty, no repeats",
        api.translate(model, few, beam=3, length_penalty=0.4, no_repeat_ngram=2, **LIMITS),
    )
    yield "prefixes", api.translate(model, few, beam=3, prefixes=["the old dog"] * len(few), **LIMITS)
    yield "constraints", api.translate(model, few[:20], beam=4, force=("bridge",), forbid=("dog", "the"), **LIMITS)
    if is_traced:
        yield from _run_translation_attention(model, few, targets)


def _run_translation_attention(model: Any, sources: Sequence[str], targets: Sequence[str]) -> Outputs:
    yield "attention maps", [api.attention_maps(model, text, beam=4, **LIMITS) for text in (SAMPLE, *sources[:3])]
    yield "trace", api.trace_attention(model, SAMPLE, beam=1, **LIMITS)
    yield "steps", api.decoding_steps(model, SAMPLE, beam=4, **LIMITS)
    yield "explanation", api.explain(model, SAMPLE, targets[0])
    yield "head importance", api.head_importance(model, SAMPLE, targets[0])


def _run_alignment(model: Any, head: str) -> Outputs:
    """What needs cross-attention: coverage, alignment, ablation."""
    sources = short_texts()[:40]
    targets = corpus.make_targets(sources)
    yield "coverage", api.translate(model, sources[:20], beam=3, coverage_penalty=0.5, **LIMITS)
    yield "scores with coverage", api.score_translations(model, sources, targets, coverage_penalty=0.5)
    yield "alignment", api.align(model, sources, targets)
    yield "ablation", api.answer_with_ablation(model, head, SAMPLE)


def run_hf_translator(workspace: Workspace, name: str, backend: str) -> Outputs:
    """Translations of a Marian or Pegasus folder."""
    device, precision = BACKENDS[backend]
    folder = workspace.build(f"hf/{name}", lambda path: hf_folders.build_translator(path, name))
    model = api.load(folder, backend=device, precision=precision)
    yield from _run_translation(model, is_traced=backend == TORCH)
    if backend == TORCH:
        yield from _run_alignment(model, "decoder.1.cross:0")


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm": "pre"},
    "post-norm": {"norm": "post", "activation": "gelu", "output_bias": True},
    "rotary": {"norm": "pre", "positions": "rotary", "tie_embeddings": False},
    "learned": {"norm": "post", "positions": "learned", "scale_embedding": False, "activation": "silu"},
}
TRANSFORMER_SIZES = {
    "hidden_size": 40,
    "max_positions": 96,
    **{
        f"{side}.{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"num_layers": 2, "num_heads": 4, "feed_forward_size": 72}.items()
    },
}


def _tokenizer(workspace: Workspace, name: str) -> Path:
    return workspace.build(
        f"tokenizers/{name}", lambda folder: tokenizer_files.save_tokenizer(hf_folders.build_tokenizer(name), folder)
    ).joinpath("tokenizer.json")


def _native(
    workspace: Workspace,
    family: str,
    name: str,
    settings: Mapping[str, Any],
    *,
    seed: int = 13,
    emphasized: EmphasizedRow | None = None,
    **data: Any,
) -> Path:
    draw = partial(draw_weights, seed=seed, emphasized=emphasized, spread=SPREAD)
    return workspace.build(
        f"native/{family}-{name}-{seed}",
        lambda folder: api.build_native_folder(family, folder, settings, draw, **data),
    )


@cache
def _end_token(factor: float) -> EmphasizedRow:
    """The end token of translations, likelier by far than others: some hypotheses must be finished."""
    tokenizer = hf_folders.build_tokenizer("seq2seq_unigram")
    end = tokenizer_files.SEQ2SEQ_SPECIALS.index("</s>")
    return EmphasizedRow(tokenizer.get_vocab_size(with_added_tokens=True), end, factor)


def _transformer(workspace: Workspace, variant: str, seed: int = 13) -> Path:
    source = _tokenizer(workspace, "seq2seq_unigram")
    settings = {**TRANSFORMER_SIZES, **TRANSFORMERS[variant]}
    return _native(
        workspace, "transformer", variant, settings, tokenizer=source, seed=seed, emphasized=_end_token(TRANSFORMER_END)
    )


def run_transformer(workspace: Workspace, variant: str, backend: str) -> Outputs:
    """Translations of a Transformer in our own folder."""
    device, precision = BACKENDS[backend]
    model = api.load(_transformer(workspace, variant), backend=device, precision=precision)
    yield from _run_translation(model, is_traced=backend == TORCH)
    if backend == TORCH:
        yield from _run_alignment(model, "decoder.0.cross:3")


def run_ensemble(workspace: Workspace, backend: str) -> Outputs:
    """Translations of two models that decide together."""
    device, precision = BACKENDS[backend]
    folders = [_transformer(workspace, "pre-norm", seed) for seed in (13, 14)]
    model = api.load(folders, backend=device, precision=precision)
    sources = short_texts()[:60]
    yield "beam 4", api.translate(model, sources, beam=4, nbest=2, **LIMITS)
    yield "scores", api.score_translations(model, sources, corpus.make_targets(sources))


SEQ2SEQ: dict[str, dict[str, Any]] = {
    "lstm-no-attention": {"cell": "lstm", "attention": "none", "source_context": "initial"},
    "gru-no-attention": {"cell": "gru", "attention": "none", "source_context": "every_step", "num_layers": 2},
    "bahdanau": {"cell": "gru", "attention": "additive", "input_feeding": "context"},
    "luong-dot": {"cell": "lstm", "attention": "dot", "input_feeding": "output", "num_layers": 2, "bridge": "copy"},
    "luong-bilinear": {"cell": "lstm", "attention": "bilinear", "input_feeding": "output", "tie_embeddings": False},
    "luong-concat": {"cell": "gru", "attention": "concat", "input_feeding": "none", "output_bias": True},
    "hard": {"cell": "lstm", "attention": "additive", "hard_attention": "straight-through", "num_layers": 2},
}


def run_seq2seq(workspace: Workspace, variant: str) -> Outputs:
    """Translations of a recurrent encoder–decoder."""
    sizes = {"embedding_size": 24, "hidden_size": 28, "max_positions": 96}
    source = _tokenizer(workspace, "seq2seq_unigram")
    folder = _native(
        workspace, "seq2seq", variant, {**sizes, **SEQ2SEQ[variant]}, tokenizer=source, emphasized=_end_token(1.8)
    )
    model = api.load(folder)
    has_attention = SEQ2SEQ[variant]["attention"] != "none"
    yield from _run_translation(model, is_traced=has_attention)
    if has_attention:
        yield from _run_alignment(model, "decoder.attention:0")


def run_separate_vocabularies(workspace: Workspace, backend: str) -> Outputs:
    """Translations between two tokenizers without shared embeddings."""
    device, precision = BACKENDS[backend]
    source, target = (_tokenizer(workspace, name) for name in ("xlm_unigram", "seq2seq_unigram"))
    settings = {**TRANSFORMER_SIZES, "norm": "pre", "share_embeddings": False}
    folder = _native(workspace, "transformer", "separate", settings, tokenizer=source, target_tokenizer=target, seed=15)
    yield from _run_translation(api.load(folder, backend=device, precision=precision), is_traced=False)


# ---- other families of our own


def run_elmo(workspace: Workspace, cell: str) -> Outputs:
    """Features of words and tokens, and the loss of running text."""
    settings = {"cell": cell, "hidden_size": 24, "num_layers": 2}
    folder = _native(workspace, "elmo", cell, settings, tokenizer=_tokenizer(workspace, "seq2seq_unigram"))
    model = api.load(folder)
    yield "features of words", api.extract_features(model, texts(), "words")
    yield "features of tokens", api.extract_features(model, texts()[:50], "tokens")
    yield "loss", api.evaluate(folder, [_documents(workspace)])


RNN_CLASSIFIERS: dict[str, dict[str, Any]] = {
    "attention": {"pooling": "attention", "encoder.cell": "lstm"},
    "mean": {"pooling": "mean", "encoder.cell": "gru", "encoder.num_layers": 2},
    "max": {"pooling": "max", "encoder.cell": "lstm"},
}
RNN_SIZES = {"encoder.embedding_size": 20, "encoder.hidden_size": 24}


def run_rnn_classifier(workspace: Workspace, variant: str) -> Outputs:
    """Label probabilities of a bidirectional RNN."""
    tokenizer = _tokenizer(workspace, "seq2seq_unigram")
    settings = {**RNN_SIZES, **RNN_CLASSIFIERS[variant]}
    folder = _native(workspace, "rnn_classifier", variant, settings, tokenizer=tokenizer, labels=hf_folders.LABELS)
    model = api.load(folder)
    yield "labels", api.classify(model, texts())
    yield "explanation", api.explain(model, SAMPLE)
    if variant == "attention":
        yield "attention maps", [api.attention_maps(model, text) for text in texts()[:4]]
        yield "trace", api.trace_attention(model, SAMPLE)


def run_rnn_tagger(workspace: Workspace, cell: str) -> Outputs:
    """Tags of a bidirectional RNN."""
    tokenizer = _tokenizer(workspace, "seq2seq_unigram")
    settings = {**RNN_SIZES, "encoder.cell": cell, "encoder.num_layers": 2}
    folder = _native(workspace, "rnn_tagger", cell, settings, tokenizer=tokenizer, labels=hf_folders.TAGS)
    model = api.load(folder)
    yield "tags", api.tag(model, texts())
    yield "steps", api.decoding_steps(model, SAMPLE)


MEMORY_NETWORKS: dict[str, dict[str, Any]] = {
    "adjacent": {"tying": "adjacent", "sentence_encoding": "position", "hops": 3},
    "layerwise": {"tying": "layerwise", "sentence_encoding": "bag", "hops": 2, "empty_memories": False},
    "without-time": {"tying": "adjacent", "sentence_encoding": "position", "hops": 1, "time_encoding": "none"},
}


def run_memory_network(workspace: Workspace, variant: str) -> Outputs:
    """Answers about stories, with the weights of every hop; some stories are longer than the memory."""
    sizes = {"embedding_size": 12, "max_sentence_words": 6, "memory_size": 7}
    settings = {**sizes, **MEMORY_NETWORKS[variant]}
    folder = _native(workspace, "memory_network", variant, settings, vocabulary=corpus.story_vocabulary())
    model = api.load(folder)
    stories = [(story.sentences, story.question) for story in corpus.make_stories()]
    yield "answers", api.answer_stories(model, stories)
    yield "attention maps", [api.attention_maps(model, list(told), question) for told, question in stories[:5]]
    yield "trace", api.trace_attention(model, list(stories[0][0]), stories[0][1])


def run_native_gpt(workspace: Workspace, backend: str) -> Outputs:
    """Continuations of a causal model that no other library knows: sinusoidal positions."""
    device, precision = BACKENDS[backend]
    sizes = {"hidden_size": 40, "num_layers": 2, "num_heads": 4, "feed_forward_size": 72, "max_positions": 48}
    settings = {**sizes, "positions": "sinusoidal", "tie_embeddings": False}
    folder = _native(workspace, "gpt", "sinusoidal", settings, tokenizer=_tokenizer(workspace, "gpt_bpe"))
    yield from _run_generation(api.load(folder, backend=device, precision=precision), is_traced=backend == TORCH)


NATIVE_BERTS: dict[str, dict[str, Any]] = {
    "random-blocks": {"attention": "block_sparse", "block_size": 4, "num_random_blocks": 2, "random_once": True},
    "pre-norm": {"norm": "pre", "positions": "rotary", "gated": True, "activation": "silu"},
}


def run_native_bert(workspace: Workspace, variant: str) -> Outputs:
    """Vectors and tags of encoders that no other library knows."""
    sizes = {"hidden_size": 40, "num_layers": 2, "num_heads": 4, "feed_forward_size": 72, "max_positions": 128}
    tokenizer = _tokenizer(workspace, "wordpiece")
    settings = {**sizes, **NATIVE_BERTS[variant]}
    folder = _native(workspace, "bert", variant, {**settings, "head": "none"}, tokenizer=tokenizer)
    model = api.load(folder, task="embed")
    yield "embeddings", api.embed(model, texts(), pooling="mean", long_texts="truncate")
    yield "attention maps", [api.attention_maps(model, text) for text in (SAMPLE, texts()[24])]
    labelled = {**settings, "head": "token"}
    folder = _native(workspace, "bert", f"{variant}-token", labelled, tokenizer=tokenizer, labels=hf_folders.TAGS)
    yield "tags", api.tag(api.load(folder), texts())


# ---- folders laid out for the engine


def run_engine_folder(workspace: Workspace, family: str, precision: str) -> Outputs:
    """Answers of a folder that was converted for the engine."""
    source = {
        "transformer": lambda: _transformer(workspace, "pre-norm"),
        "bert": lambda: _encoder_folder(workspace, "bert", "none"),
        "bert-sequence": lambda: _encoder_folder(workspace, "bert", "sequence"),
        "gpt2": lambda: workspace.build("hf/gpt2", lambda path: hf_folders.build_causal_lm(path, "gpt2")),
    }[family]()
    folder = workspace.build(f"engine/{family}-{precision}", lambda out: api.convert_for_engine(source, out, precision))
    model = api.load(folder, backend="engine", precision=None)
    if family == "transformer":
        yield "beam 4", api.translate(model, texts(), beam=4, nbest=2, **LIMITS)
        yield "scores", api.score_translations(model, short_texts(), corpus.make_targets(short_texts()))
    elif family == "bert":
        yield "embeddings", api.embed(model, texts(), pooling="mean", long_texts="truncate")
    elif family == "bert-sequence":
        yield "labels", api.classify(model, texts())
    else:
        yield "greedy", api.generate(model, texts()[:60], greedy=True, max_new_tokens=12)


def run_shortlist(workspace: Workspace) -> Outputs:
    """Translations whose output is restricted to a lexical shortlist."""
    source = _transformer(workspace, "pre-norm")
    pairs = workspace.build("data/shortlist", lambda folder: _write_shortlist_data(folder))
    files = [pairs / "train.source", pairs / "train.target"]
    folder = workspace.build(
        "engine/shortlist", lambda out: api.convert_for_engine(source, out, "int8", shortlist=files)
    )
    model = api.load(folder, backend="engine", precision=None)
    yield "beam 4", api.translate(model, texts(), beam=4, nbest=2, **LIMITS)


def _write_shortlist_data(folder: Path) -> None:
    folder.mkdir()
    corpus.write_parallel(folder, "train", 120, seed=22)


def run_tokenizer(workspace: Workspace, name: str) -> Outputs:
    """Token ids, spans and decoded texts of one tokenizer."""
    yield "tokens", api.tokenize(_tokenizer(workspace, name), texts())


TOKENIZERS = (
    "wordpiece",
    "byte_level_bpe",
    "gpt_bpe",
    "xlm_unigram",
    "albert_unigram",
    "marian_unigram",
    "seq2seq_unigram",
)


def inference_cases() -> list[Case]:
    """All cases without training."""
    cases = [Case(f"tokenizer/{name}", partial(run_tokenizer, name=name)) for name in TOKENIZERS]
    cases += _encoder_cases()
    for backend in BACKENDS:
        for name in ("gpt2", "gpt_neox"):
            cases.append(Case(f"{name}/{backend}", partial(run_causal_lm, name=name, backend=backend)))
        cases.append(Case(f"gpt-native/{backend}", partial(run_native_gpt, backend=backend)))
        for name in ("marian", "pegasus"):
            cases.append(Case(f"{name}/{backend}", partial(run_hf_translator, name=name, backend=backend)))
        for variant in TRANSFORMERS:
            cases.append(
                Case(f"transformer/{variant}/{backend}", partial(run_transformer, variant=variant, backend=backend))
            )
        cases.append(Case(f"transformer/separate/{backend}", partial(run_separate_vocabularies, backend=backend)))
        cases.append(Case(f"transformer/ensemble/{backend}", partial(run_ensemble, backend=backend)))
    cases += [Case(f"seq2seq/{variant}", partial(run_seq2seq, variant=variant)) for variant in SEQ2SEQ]
    cases += [Case(f"elmo/{cell}", partial(run_elmo, cell=cell)) for cell in ("lstm", "gru")]
    cases += [
        Case(f"rnn-classifier/{variant}", partial(run_rnn_classifier, variant=variant)) for variant in RNN_CLASSIFIERS
    ]
    cases += [Case(f"rnn-tagger/{cell}", partial(run_rnn_tagger, cell=cell)) for cell in ("lstm", "gru")]
    cases += [
        Case(f"memory-network/{variant}", partial(run_memory_network, variant=variant)) for variant in MEMORY_NETWORKS
    ]
    cases += [Case(f"bert-native/{variant}", partial(run_native_bert, variant=variant)) for variant in NATIVE_BERTS]
    for family in ("transformer", "bert", "bert-sequence", "gpt2"):
        for precision in ("float32", "bf16", "int8"):
            run = partial(run_engine_folder, family=family, precision=precision)
            cases.append(Case(f"engine-folder/{family}/{precision}", run))
    return [*cases, Case("engine-folder/shortlist", run_shortlist)]
