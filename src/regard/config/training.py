"""Training: optimisation, fine-tuning, passages, distillation, and the training on stories."""

from __future__ import annotations

from dataclasses import dataclass

from regard.components import OPTIMIZERS
from regard.config.rnn_models import UNKNOWN_ANSWERS
from regard.config.settings import AUTO, Config, knob
from regard.errors import ConfigError, nearest

LORA_TARGETS = ("query", "key", "value", "out", "up", "down")  # projections of a Transformer block


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Config):
    """Where a run computes, and what it keeps: the settings of every kind of training."""

    seed: int = knob(1, "Seed of data order, dropout and initial weights.", low=0)
    metric: str = knob(
        "auto",
        "Validation metric by which the best model is selected; auto: that of the task.",
        metavar="NAME",
    )
    max_checkpoints: int = knob(2, "Checkpoints to keep.", low=2)
    threads: int = knob(
        AUTO, "CPU threads; auto: OMP_NUM_THREADS, or one or all cores, whichever a benchmark finds faster.", low=1
    )
    device: str = knob("cpu", "Device: cpu, cuda, cuda:1 or mps.", metavar="NAME")
    tensorboard: bool = knob(False, "Write TensorBoard logs to the run directory (needs the extra tensorboard).")

    @property
    def precision(self) -> str:
        """Compute precision."""
        return "float32"

    @property
    def workers(self) -> int:
        """Processes on this machine."""
        return 1

    @property
    def worker_timeout(self) -> float:
        """Seconds after which a process that does not respond ends a run with several."""
        return 300.0

    @property
    def minutes(self) -> float:
        """Time budget; 0 is none."""
        return 0.0

    @property
    def batch_tokens(self) -> int:
        """Target tokens per batch; 0 where batches are not counted in tokens."""
        return 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(ComputeConfig):
    """How a model is trained."""

    steps: int = knob(
        AUTO,
        "Maximum updates; auto: no limit.",
        low=1,
    )
    epochs: float = knob(
        AUTO,
        "Maximum epochs; auto: no limit, or by the size of the data without --minutes and --steps.",
        low=0,
    )
    minutes: float = knob(
        AUTO,
        "Maximum minutes of wall-clock time, from the start of the command to the saved model; auto: no limit. A run "
        "ends at the first limit that it reaches: --minutes, --epochs or --steps.",
        low=0,
    )
    batch_tokens: int = knob(AUTO, "Tokens per batch, without padding; auto: by the size of the data.", low=1)
    accumulation_steps: int = knob(1, "Batches per update (gradient accumulation).", low=1)
    accumulation_ramp: float = knob(
        0.0,
        "Fraction of training over which accumulation grows from one batch to all; 0 accumulates all from the start.",
        low=0,
        high=1,
    )
    optimizer: str = knob(
        "muon",
        "Muon for hidden matrices with AdamW for the rest, or AdamW for all.",
        choices=OPTIMIZERS,
    )
    learning_rate: float = knob(
        AUTO, "Peak learning rate; auto: by the hidden size and the optimizer, lower for a pretrained model.", low=0
    )
    muon_learning_rate: float = knob(
        AUTO, "Learning rate of Muon; auto: in proportion to the base rate, usually 0.02.", low=0
    )
    schedule: str = knob(
        "auto",
        "Learning-rate schedule after warm-up; root: inverse square root with a linear cooldown to zero; auto: root "
        "with Muon, cosine with AdamW.",
        choices=("auto", "root", "cosine", "inverse_sqrt", "constant"),
    )
    warmup_steps: int = knob(AUTO, "Warm-up updates; auto: by the length of training.", low=1)
    weight_decay: float = knob(0.1, "Weight decay, on matrices only.", low=0)
    adam_beta1: float = knob(0.9, "Adam's beta1.", low=0, high=1)
    adam_beta2: float = knob(0.98, "Adam's beta2.", low=0, high=1)
    max_gradient_norm: float = knob(1.0, "Clip gradients to this norm; 0 disables clipping.", low=0)
    label_smoothing: float = knob(0.1, "Label smoothing.", low=0, high=0.9)
    ema_decay: float = knob(
        0.999,
        "Decay of the exponential moving average of the weights, which is evaluated and saved; 0 disables it.",
        low=0,
        high=1,
    )
    average_checkpoints: int = knob(
        0, "Average the weights of the last N evaluations at the end; 0 keeps the best.", low=0
    )
    tune_length_penalty: bool = knob(True, "Tune the length penalty on validation data at the end.")
    patience: int = knob(0, "Stop after N evaluations without improvement; 0 disables early stopping.", low=0)
    stop_at: float = knob(
        0.0,
        "Stop when the validation metric that selects the model (BLEU, F1, accuracy; see --metric) reaches this "
        "percentage; 0 disables it.",
        low=0,
        high=100,
    )
    evaluate_every: int = knob(AUTO, "Updates between evaluations; auto: by the length of training.", low=1)
    save_every: int = knob(AUTO, "Updates between checkpoints; auto: about one a minute.", low=1)
    log_gradients: bool = knob(
        False,
        "Log gradient norms by layer, and by distance from the end of the text, of one batch at every evaluation; "
        "`regard reach RUN --history` shows them.",
    )
    precision: str = knob(
        "auto", "Compute precision; auto: the faster one in a benchmark.", choices=("auto", "float32", "bf16")
    )
    workers: int = knob(1, "Processes on this machine (data parallel).", low=1)
    worker_timeout: float = knob(
        300.0, "Seconds after which a process that does not respond ends a run with several.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class TrainableConfig(Config):
    """Which weights of a model are trained, and how fast."""

    freeze: str = knob(
        "",
        "Freeze weights: shell patterns over their names, separated by commas, such as "
        "'encoder.layers.[0-5].*,token_embedding.*'.",
        metavar="PATTERNS",
    )
    layer_lr_decay: float = knob(
        1.0,
        "Layer-wise learning-rate decay: factor from each layer to the one below; 1 disables it.",
        low=0.1,
        high=1,
    )


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """Low-rank adaptation of a pretrained model (LoRA, Hu et al. 2021)."""

    rank: int = knob(
        0,
        "Rank of LoRA: with --from, freeze the model and train low-rank matrices and the head; 0 disables LoRA.",
        low=0,
    )
    alpha: float = knob(16.0, "Scale of LoRA: B·A is multiplied by alpha / rank.", low=0)
    dropout: float = knob(0.0, "Dropout on the input of LoRA.", low=0, high=0.95)
    targets: str = knob(
        "all",
        "Projections with LoRA, separated by commas: query, key, value, out (of attention), up, down (of feed-forward "
        "layers); or all. The paper has query,value.",
    )
    keep_adapter: bool = knob(
        False,
        "Write the adapter too, in the format of peft, to the folder adapter of the run; the model has it merged.",
    )

    @property
    def target_parts(self) -> tuple[str, ...]:
        """Names of the adapted projections.

        >>> LoraConfig(targets="query, out").target_parts
        ('query', 'out')
        """
        return LORA_TARGETS if self.targets == "all" else tuple(name.strip() for name in self.targets.split(","))

    def check(self) -> None:
        for name in self.target_parts:
            if name not in LORA_TARGETS:
                allowed = ", ".join(LORA_TARGETS)
                raise ConfigError(
                    f"lora.targets: unknown projection {name!r}{nearest(name, LORA_TARGETS)}: {allowed} or all"
                )


FEATURE_LAYERS = ("auto", "last", "last4", "mix")


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(Config):
    """How classifiers, taggers and question-answering models are trained and scored."""

    features: str = knob(
        "",
        "ELMo, BERT-style encoder, causal language model or translation model whose frozen layers are concatenated "
        "with the embeddings.",
        metavar="MODEL",
    )
    feature_layers: str = knob(
        "auto",
        "Layers of --features: last, last4 (the last four, concatenated), mix (a learned mix of all), or the number of "
        "one (0: embeddings). auto, as in the literature: mix for ELMo and GPT, last4 for BERT, last for translators.",
        metavar="LAYERS",
    )
    feature_cache_mb: int = knob(
        2048,
        "Cache the features of all texts if they fit into this many megabytes; otherwise recompute them per batch.",
        low=0,
    )
    seeds: int = knob(
        1,
        "Train with N seeds from --seed upwards, one after another; report mean and standard deviation, and keep the "
        "model with the best validation metric.",
        low=1,
        high=1000,
    )
    test: str = knob(
        "", "Test file with texts and labels, scored at the end; with --seeds, once per seed.", metavar="FILE"
    )
    class_weights: str = knob(
        "none",
        "Class weights in the loss; balanced: inversely proportional to the frequency of a label.",
        choices=("none", "balanced"),
    )
    freeze_encoder: bool = knob(False, "Train only the head; the hidden states of the Transformer are computed once.")
    random_init: bool = knob(
        False, "Start from random weights of the same size, to measure what pre-training contributes."
    )
    lm_weight: float = knob(
        0.0,
        "Weight λ of the language-modelling loss beside the task's, for causal models (Radford et al. 2018: 0.5); "
        "0 disables it.",
        low=0,
        high=100,
    )
    baseline: bool = knob(True, "Train a simple baseline, too, and report the gain over it.")

    def check(self) -> None:
        if self.feature_layers not in FEATURE_LAYERS and not self.feature_layers.isdecimal():
            raise ConfigError(
                f"feature_layers must be {', '.join(FEATURE_LAYERS)} or the number of a layer, not "
                f"{self.feature_layers!r}{nearest(self.feature_layers, FEATURE_LAYERS)}"
            )
        if self.feature_layers != "auto" and not self.features:
            raise ConfigError(f"feature_layers ({self.feature_layers}) needs --features MODEL")


@dataclass(frozen=True, kw_only=True)
class PassageConfig(Config):
    """How question answering reads long passages."""

    window_overlap: int = knob(128, "Tokens shared by neighbouring windows of a long passage.", low=0)


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Config):
    """How a student with fewer layers learns from its teacher (Hinton et al. 2015; Sanh et al. 2019)."""

    student_layers: int = knob(0, "Layers of the student, fewer than the teacher has; 0: no distillation.", low=0)
    temperature: float = knob(2.0, "Softmax temperature of teacher and student.", low=0.1)
    label_weight: float = knob(0.5, "Weight of the true labels; the teacher's have the rest.", low=0, high=1)
    hidden_weight: float = knob(
        1.0, "Weight of the hidden-state loss of the copied layers (cosine); 0 disables it.", low=0
    )


@dataclass(frozen=True, kw_only=True)
class StoryTrainingConfig(TrainingConfig):
    """How models that answer questions about stories are trained.

    Memory networks by gradient descent, with several restarts in parallel; RNNs and Transformers like other models,
    with restarts one after another. The best restart is kept.
    """

    seed: int = knob(
        1, "Seed of data order, noise and the first restart; each further restart has the next seed.", low=0
    )
    epochs: float = knob(
        AUTO,
        "Maximum epochs; auto: of a memory network as published, 100 for one task, 60 for several; otherwise 100 "
        "without --minutes and --steps.",
        low=0,
    )
    learning_rate: float = knob(
        AUTO,
        "Peak learning rate; auto: of a memory network as published, 0.005 with the linear start, 0.01 without; "
        "otherwise by the hidden size and the optimizer.",
        low=0,
    )
    label_smoothing: float = knob(0.0, "Label smoothing.", low=0, high=0.9)
    restarts: int = knob(
        10,
        "Models trained from different seeds, of which the best is kept: memory networks in parallel, by training "
        "error; others one after another, by validation error (one by default), and --minutes is for all of them.",
        low=1,
    )
    validation_share: float = knob(
        0.1,
        "Fraction of the training stories held out, with all of their questions: to validate where there are no "
        "validation files, and to end the linear start of a memory network.",
        low=0,
        high=0.9,
    )
    unknown_answers: str = knob(
        "wrong",
        "Validation questions whose answer never occurs in training: count as wrong, or stop with an error.",
        choices=UNKNOWN_ANSWERS,
    )
    batch_size: int = knob(32, "Questions per batch of a memory network; their losses are summed.", low=1)
    lr_halving_epochs: int = knob(AUTO, "Epochs between halvings of the learning rate; auto: a quarter of all.", low=1)
    matrix_gradient_norm: float = knob(
        40.0, "Clip the gradient of each matrix of a memory network to this norm; 0 disables clipping.", low=0
    )
    linear_start: bool = knob(True, "Train without the softmax of the hops first (linear start).")
    linear_start_epochs: int = knob(
        AUTO, "Maximum epochs of the linear start; auto: as published, 20 for one task, 30 for several.", low=1
    )
    linear_start_patience: int = knob(30, "Epochs without a lower held-out loss that end the linear start.", low=1)
    random_noise: float = knob(
        0.1, "Fraction of empty memories inserted between sentences during training.", low=0, high=1
    )


def _own_settings(config: type[Config], base: type[Config], shared: tuple[str, ...]) -> tuple[str, ...]:
    inherited = {setting.path for setting in base.knobs()} | {*shared}
    return tuple(setting.path for setting in config.knobs() if setting.path not in inherited)


# settings of `StoryTrainingConfig` by the kind of training that reads them
BATCH_TRAINING_SETTINGS = _own_settings(TrainingConfig, ComputeConfig, ("epochs", "learning_rate", "precision"))
MEMORY_TRAINING_SETTINGS = _own_settings(
    StoryTrainingConfig, TrainingConfig, ("restarts", "validation_share", "unknown_answers")
)
