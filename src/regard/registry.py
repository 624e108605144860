"""The table of tasks: a row holds all that differs by task, as objects or import strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.tables import Registry
from regard.tables import resolve as resolve  # the targets of a row are resolved where they are used


@dataclass(frozen=True)
class TaskMetrics:
    """Names of the metrics that a task computes from predictions of one kind."""

    reported: tuple[str, ...]  # in this order, at every evaluation
    ranking: tuple[str, ...]  # the first selects the best model, the next ones break ties
    final: tuple[str, ...] = ()  # of the finished model and `regard evaluate`, where these differ


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that differs by task. A target is an object or an import string."""

    field_name: str  # as the field calls it; the title of model cards
    tag: str  # of Hugging Face, for model cards
    command: str  # that uses the models
    example: str  # one command that uses the model in {}
    load: (
        Any  # (folder, *, device, precision, threads, backend) → pipeline; without `backend` where has_engine is false
    )
    has_engine: bool = True  # whether the engine may run the models
    evaluate: Any = None  # (TestSet) → None: `regard evaluate`
    answer: Any = None  # `regard answer`, where the models answer questions
    request: Any = None  # (pipeline, PipelineRequest) → result with `record()`: `regard see` and the page
    head_study: Any = None  # (pipeline, files, ReadConfig) → StudySubject: `regard heads`
    sentence_attention: Any = None  # (pipeline) → SentenceAttention: `regard heads --links`
    next_command: Any = None  # (folder, RunConfig) → command to run after training; without one, the example
    metrics: Mapping[str, TaskMetrics] = field(default_factory=dict)  # kind of predictions → its metrics
    format_metrics: Any = None  # (metrics) → further lines of `regard info`
    encoder_heads: tuple[str, ...] = ()  # heads of encoders that are for this task
    # training; a task without a run config has models that were trained for other tasks, or elsewhere
    run_config: Any = None  # subclass of RunConfig
    summary: str = ""  # of `regard train`: what is trained
    data: str = ""  # what the files hold
    columns: str = ""  # which columns of a table are read
    commands: tuple[str, ...] = ()  # examples of `regard train`
    experiments: Mapping[str, Any] = field(default_factory=dict)  # architecture → (RunConfig, folder) → Experiment
    procedure: Any = None  # (RunContext) → TrainingProcedure
    distillation: Any = None  # experiment of `regard distil`
    read_examples: Any = None  # (files, ReadConfig) → examples: the data of several seeds
    architectures: Any = None  # entry of `regard compare --arch` → config.architecture.Architecture
    comparison: Any = None  # (task) → TaskComparison: what `regard compare` needs to know of the task
    has_many_files: bool = True  # whether any number of files is allowed; otherwise one or two


_RUNS = "regard.config.task_runs"
_LM_RUNS = "regard.config.language_model_runs"
_EXPERIMENTS = "regard.training.experiments"
_ARCHITECTURES = "regard.config.architecture"
_COMPARISONS = "regard.report.comparison.tasks"
_BATCHES = "regard.training.batch_procedure:BatchProcedure"
_SEEDS = "regard.training.run:build_seed_procedure"
TASKS: Registry[Task] = Registry(
    "task",
    {
        "translate": Task(
            field_name="translation model",
            tag="translation",
            command="regard translate",
            example='regard translate {} "A text to translate."',
            load="regard.pipeline.load:load_translator",
            evaluate="regard.cli.evaluate:evaluate_translation",
            request="regard.interpret.record_request:translate_text",
            head_study="regard.interpret.subjects:TranslationSubject.read",
            sentence_attention="regard.interpret.sentence_attention:translator_attention",
            metrics={
                "translations": TaskMetrics(
                    ("loss", "perplexity", "bleu", "exact_match"),
                    ranking=("bleu", "loss"),
                    final=("bleu", "bleu_lowercase", "chrf", "ter", "exact_match"),
                )
            },
            run_config=f"{_RUNS}:TranslateRun",
            summary="train a translation model: a Transformer, or an RNN with attention",
            data="two parallel files, source then target, or one with two columns (.tsv, .csv, .jsonl; .gz too)",
            commands=(
                "train.en train.de --valid val.en val.de --out runs/en-de",
                "pairs.tsv --minutes 30 --out runs/x",
                "mine.tsv --from runs/en-de --out runs/mine",
                "train.de train.en --arch rnn --attention dot --input-feeding output --out runs/de-en",
                "--recipe recipes/multi30k-en-de.json --out runs/x",
            ),
            experiments={
                "transformer": f"{_EXPERIMENTS}.translation:TranslationExperiment",
                "rnn": f"{_EXPERIMENTS}.translation:TranslationExperiment",
            },
            procedure=_BATCHES,
            has_many_files=False,
            architectures=f"{_ARCHITECTURES}:TRANSLATE",
            comparison=f"{_COMPARISONS}:TranslationComparison",
        ),
        "classify": Task(
            field_name="text classifier",
            tag="text-classification",
            command="regard classify",
            example='regard classify {} "A text."',
            load="regard.pipeline.load:load_classifier",
            evaluate="regard.cli.classify:evaluate_labels",
            request="regard.interpret.record_request:classify_text",
            head_study="regard.interpret.encoder_subjects:LabelSubject.read",
            encoder_heads=("label",),
            next_command="regard.cli.run_report:classify_command",
            metrics={
                "labels": TaskMetrics(("loss", "accuracy", "macro_f1"), ranking=("accuracy", "loss")),
                "label sets": TaskMetrics(
                    ("loss", "micro_f1", "macro_f1", "exact_match"), ranking=("micro_f1", "loss")
                ),
            },
            run_config=f"{_RUNS}:ClassifyRun",
            summary="fine-tune or train a text classifier",
            data="labelled texts: a file with two columns (.tsv, .csv, .jsonl; .gz too), or two files",
            columns="those named text and label in the first row, else the first and the second of exactly two; --text "
            "and --label select others, by name or number, and `evaluate`, `heads` and `distil` then use them, too",
            commands=(
                "reviews.csv --from bert-base-uncased --out runs/mood",
                "reviews.csv --from gpt2 --lm-weight 0.5 --out runs/mood-gpt",
                "survey.csv --text review --label sentiment --minutes 5 --out runs/survey",
                "reviews.csv --arch transformer --out runs/mood",
                "reviews.csv --features runs/elmo --out runs/mood",
            ),
            experiments={
                "rnn": f"{_EXPERIMENTS}.text_classification:RnnClassificationExperiment",
                "transformer": f"{_EXPERIMENTS}.classification:ClassificationExperiment",
                "pretrained": f"{_EXPERIMENTS}.classification:ClassificationExperiment",
            },
            procedure=_SEEDS,
            distillation=f"{_EXPERIMENTS}.distillation:ClassificationDistillation",
            read_examples="regard.data.labelled:read_labelled",
            has_many_files=False,
            architectures=f"{_ARCHITECTURES}:CLASSIFY",
            comparison=f"{_COMPARISONS}:LabelComparison",
        ),
        "tag": Task(
            field_name="token classifier",
            tag="token-classification",
            command="regard tag",
            example='regard tag {} "A text."',
            load="regard.pipeline.load:load_tagger",
            evaluate="regard.cli.tag:evaluate_tags",
            request="regard.interpret.record_request:call_pipeline",
            head_study="regard.interpret.encoder_subjects:TagSubject.read",
            encoder_heads=("token",),
            metrics={
                "entities": TaskMetrics(("loss", "f1", "precision", "recall", "accuracy"), ranking=("f1", "loss")),
                "tags": TaskMetrics(("loss", "accuracy"), ranking=("accuracy", "loss")),
            },
            run_config=f"{_RUNS}:TagRun",
            summary="fine-tune or train a token classifier (NER, part-of-speech)",
            data="tagged words in CoNLL columns",
            commands=(
                "names.conll --from bert-base-uncased --out runs/names",
                "names.conll --features runs/elmo --out runs/names",
            ),
            experiments={
                "rnn": f"{_EXPERIMENTS}.tagging:RnnTaggingExperiment",
                "transformer": f"{_EXPERIMENTS}.tagging:TaggingExperiment",
                "pretrained": f"{_EXPERIMENTS}.tagging:TaggingExperiment",
            },
            procedure=_SEEDS,
            distillation=f"{_EXPERIMENTS}.distillation:TaggingDistillation",
            read_examples="regard.data.conll:read_tagged",
            architectures=f"{_ARCHITECTURES}:TAG",
            comparison=f"{_COMPARISONS}:TagComparison",
        ),
        "answer": Task(
            field_name="extractive question-answering model",
            tag="question-answering",
            command="regard answer",
            example='regard answer {} --passage notes.txt "Who was it?"',
            load="regard.pipeline.load:load_answerer",
            evaluate="regard.cli.answer:evaluate_answers",
            answer="regard.cli.answer:answer_from_passage",
            request="regard.interpret.record_request:answer_question",
            head_study="regard.interpret.encoder_subjects:QuestionAnsweringSubject.read",
            encoder_heads=("span",),
            next_command="regard.cli.run_report:evaluate_command",
            metrics={
                "answers": TaskMetrics(
                    ("exact_match", "f1", "answerable_f1", "no_answer_f1"), ranking=("f1", "exact_match")
                )
            },
            run_config=f"{_RUNS}:AnswerRun",
            summary="fine-tune or train a model for extractive question answering",
            data="questions and passages in SQuAD format",
            commands=(
                "squad.json --from bert-base-uncased --out runs/answers",
                "squad.json --arch transformer --out runs/answers",
            ),
            experiments={
                "transformer": f"{_EXPERIMENTS}.question_answering:QuestionAnsweringExperiment",
                "pretrained": f"{_EXPERIMENTS}.question_answering:QuestionAnsweringExperiment",
            },
            procedure=_SEEDS,
            distillation=f"{_EXPERIMENTS}.distillation:QuestionAnsweringDistillation",
            read_examples="regard.data.squad:read_squad",
            architectures=f"{_ARCHITECTURES}:ANSWER",
            comparison=f"{_COMPARISONS}:AnswerComparison",
        ),
        "masked-lm": Task(
            field_name="masked language model",
            tag="fill-mask",
            command="regard fill",
            example='regard fill {} "Paris is the [MASK] of France."',
            load="regard.pipeline.loaders:load_filler",
            has_engine=False,
            evaluate="regard.cli.fill:evaluate_masked_lm",
            request="regard.interpret.record_request:call_pipeline",
            head_study="regard.interpret.encoder_subjects:MaskedSubject.read",
            encoder_heads=("masked", "pretraining"),
            next_command="regard.cli.run_report:fill_command",
            metrics={
                "masked tokens": TaskMetrics(
                    ("loss", "perplexity", "perplexity_unigram", "next_accuracy"), ranking=("loss",)
                )
            },
            run_config=f"{_LM_RUNS}:MaskedLMRun",
            summary="pre-train or adapt a masked language model (BERT)",
            data="plain text",
            commands=(
                "books/*.txt --preset mini --minutes 60 --out runs/bert",
                "notes/*.txt --from runs/bert --out runs/adapted",
                "books/*.txt --next-sentence --preset mini --minutes 60 --out runs/bert-pairs",
            ),
            experiments={"bert": f"{_EXPERIMENTS}.masked_lm:MaskedLMExperiment"},
            procedure=_BATCHES,
        ),
        "causal-lm": Task(
            field_name="causal language model",
            tag="text-generation",
            command="regard generate",
            example='regard generate {} "Once upon"',
            load="regard.pipeline.load:load_generator",
            evaluate="regard.cli.generate:evaluate_causal_lm",
            request="regard.interpret.record_request:generate_text",
            head_study="regard.interpret.subjects:CausalSubject.read",
            sentence_attention="regard.interpret.sentence_attention:causal_attention",
            metrics={"next tokens": TaskMetrics(("loss", "loss_per_character", "perplexity"), ranking=("loss",))},
            run_config=f"{_LM_RUNS}:CausalLMRun",
            summary="train a causal language model (GPT)",
            data="plain text",
            commands=("book.txt --tokenizer characters --minutes 20 --out runs/gpt",),
            experiments={"gpt": f"{_EXPERIMENTS}.causal_lm:CausalLMExperiment"},
            procedure=_BATCHES,
            architectures=f"{_ARCHITECTURES}:CAUSAL_LM",
            comparison=f"{_COMPARISONS}:CausalLMComparison",
        ),
        "elmo": Task(
            field_name="ELMo language model whose layers are features of words",
            tag="feature-extraction",
            command="regard train classify --features",
            example="regard train classify texts.csv --features {} --out runs/labels",
            load="regard.pipeline.loaders:load_features",
            has_engine=False,
            evaluate="regard.cli.evaluate:evaluate_elmo",
            request="regard.interpret.record_request:call_pipeline",
            next_command="regard.cli.run_report:evaluate_command",
            metrics={
                "bidirectional tokens": TaskMetrics(
                    ("loss", "perplexity", "perplexity_forward", "perplexity_backward"), ranking=("loss",)
                )
            },
            run_config=f"{_LM_RUNS}:ElmoRun",
            summary="train a bidirectional LSTM language model for features (ELMo)",
            data="plain text",
            commands=("books/*.txt --out runs/elmo",),
            experiments={"elmo": f"{_EXPERIMENTS}.elmo:ElmoExperiment"},
            procedure=_BATCHES,
        ),
        "story-qa": Task(
            field_name="model for questions about stories",
            tag="question-answering",
            command="regard answer",
            example='regard answer {} --story story.txt "Where is the apple?"',
            load="regard.pipeline.load:load_stories",
            evaluate="regard.cli.answer:evaluate_stories",
            answer="regard.cli.answer:answer_about_story",
            request="regard.interpret.record_request:answer_story",
            head_study="regard.interpret.story_subjects:StorySubject.read",
            format_metrics="regard.tasks.story_qa:format_metrics",
            next_command="regard.cli.run_report:evaluate_command",
            metrics={"story answers": TaskMetrics(("error", "loss"), ranking=("error", "loss"))},
            run_config="regard.config.story_run:StoryQARun",
            summary="train a memory network, an RNN or a Transformer to answer questions about short stories (bAbI)",
            data="stories with questions in bAbI format, one file per task",
            commands=(
                "qa1_train.txt qa2_train.txt --valid qa1_test.txt qa2_test.txt --hops 3 --out runs/babi",
                "qa1_train.txt --arch transformer --test qa1_test.txt --restarts 3 --minutes 3 --out runs/babi1",
            ),
            experiments={
                "memory-network": None,
                "rnn": f"{_EXPERIMENTS}.story_sequence:StoryRnnExperiment",
                "transformer": f"{_EXPERIMENTS}.story_sequence:StoryTransformerExperiment",
            },
            procedure="regard.training.run:build_story_procedure",
            read_examples="regard.data.babi:read_stories",
            architectures=f"{_ARCHITECTURES}:STORY_QA",
            comparison=f"{_COMPARISONS}:StoryComparison",
        ),
        "embed": Task(
            field_name="encoder",
            tag="sentence-similarity",
            command="regard embed",
            example='regard embed {} "A text."',
            load="regard.pipeline.load:load_embedder",
            request="regard.interpret.record_request:embed_text",
            head_study="regard.interpret.encoder_subjects:EmbeddingSubject.read",
            sentence_attention="regard.interpret.sentence_attention:encoder_attention",
            encoder_heads=("plain", "next"),
        ),
    },
)


def usage_hint(task: str) -> str:
    """Name the command that uses a task's models, in brackets for the end of a message; empty for an unknown task.

    >>> usage_hint("tag"), usage_hint("?")
    (' (`regard tag` uses this one)', '')
    """
    return f" (`{TASKS[task].command}` uses this one)" if task in TASKS else ""


def task_of_head(head: str) -> str:
    """Task of an encoder by its head.

    >>> task_of_head("span")
    'answer'
    """
    return next(name for name, task in TASKS.items() if head in task.encoder_heads)
