"""How a model is trained.

The memory network that answers questions about stories, and how it is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.rnn_models import UNKNOWN_ANSWERS
from regard.config.settings import Config, knob


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    steps: int = knob(0, "updates in all; 0: no such limit", low=0)
    epochs: float = knob(0.0, "passes over the data; 0: no such limit", low=0)
    minutes: float = knob(0.0, "wall time from the start of the command to the finished model; 0: no such limit", low=0)
    seed: int = knob(1, "seed of order, noise and first weights", low=0)
    batch_tokens: int = knob(0, "target tokens of one batch; 0: chosen from the size of the data", low=0)
    accumulation_steps: int = knob(1, "batches added up before an update", low=1)
    accumulation_ramp: float = knob(
        0.0,
        "share of the plan over which those grow from one to all, a larger batch late; 0: always all",
        low=0,
        high=1,
    )
    optimizer: str = knob(
        "muon",
        "how matrices move: by orthogonalised momentum (muon), or by AdamW as all else",
        choices=("muon", "adamw"),
    )
    learning_rate: float = knob(0.0, "highest learning rate; 0: chosen from the width", low=0)
    muon_learning_rate: float = knob(
        0.0, "highest rate of orthogonalised momentum; 0: in step with the other, usually 0.02", low=0
    )
    schedule: str = knob(
        "auto",
        "learning rate after warm-up; root: falls with the root of the updates, then to zero; auto: root, or cosine "
        "with AdamW",
        choices=("auto", "root", "cosine", "inverse_sqrt", "constant"),
    )
    warmup_steps: int = knob(0, "updates of warm-up; 0: chosen from the plan", low=0)
    weight_decay: float = knob(0.1, "weight decay, on matrices only", low=0)
    adam_beta1: float = knob(0.9, "Adam's first decay", low=0, high=1)
    adam_beta2: float = knob(0.98, "Adam's second decay", low=0, high=1)
    max_gradient_norm: float = knob(1.0, "largest norm of the gradient; 0: no limit", low=0)
    label_smoothing: float = knob(0.1, "share of the target spread over all tokens", low=0, high=0.9)
    ema_decay: float = knob(
        0.999, "decay of the running average of weights that is evaluated and kept; 0: off", low=0, high=1
    )
    average_checkpoints: int = knob(0, "average the last N evaluations' weights at the end; 0: keep the best", low=0)
    tune_length_penalty: bool = knob(True, "at the end, choose the search's length power on validation data")
    patience: int = knob(0, "stop after N evaluations without a better score; 0: never", low=0)
    stop_at: float = knob(
        0.0,
        "stop when the validation score that chooses the model (BLEU, F1, accuracy) reaches this percentage; 0: never",
        low=0,
        high=100,
    )
    evaluate_every: int = knob(0, "updates between evaluations; 0: chosen from the plan", low=0)
    save_every: int = knob(0, "updates between saves; 0: about every minute", low=0)
    max_checkpoints: int = knob(2, "checkpoints kept", low=2)
    precision: str = knob(
        "auto", "number format; auto: the faster one by a short timing", choices=("auto", "float32", "bf16")
    )
    threads: int = knob(0, "processor threads; 0: OMP_NUM_THREADS, or one or all cores by a short measurement", low=0)
    workers: int = knob(1, "processes that train together on this machine, each with its share of every batch", low=1)
    device: str = knob("cpu", "where to compute: cpu, cuda, cuda:1, mps")
    tensorboard: bool = knob(False, "write TensorBoard logs into the run folder (extra tensorboard)")


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(Config):
    """What a model that labels texts, words or spans has beside its own words, and how it is trained and scored."""

    features: str = knob("", "a folder of `regard train language`, whose frozen layers stand beside the words")
    feature_cache_mb: int = knob(
        2048, "megabytes up to which the features of all texts are made once and kept; else anew in each batch", low=0
    )
    seeds: int = knob(
        1, "train N times, with N seeds one after the other, and report mean and spread", low=1, high=1000
    )
    test: str = knob("", "a file that the model is scored on in the end, with --seeds each of them")
    class_weights: str = knob(
        "equal",
        "what counts the same: each text or word (equal), or each label in all (balanced)",
        choices=("equal", "balanced"),
    )
    freeze_encoder: bool = knob(False, "learn only the head; the encoder stays as it is, and its states are made once")
    layer_lr_decay: float = knob(
        1.0, "each layer's rate is that of the layer above times this, words last; 1: all the same", low=0.1, high=1
    )
    random_init: bool = knob(False, "begin with fresh weights of the same sizes: what did pre-training give?")
    baseline: bool = knob(True, "train a simple baseline beside the model and say what attention gives over it")


@dataclass(frozen=True, kw_only=True)
class PassageConfig(Config):
    """How passages are read that questions are answered from."""

    window_overlap: int = knob(128, "tokens that neighbouring windows of a long passage share", low=0)


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Config):
    """How a student with fewer layers learns from the model that it starts from."""

    student_layers: int = knob(0, "layers of a student of the model that is started from; 0: no student", low=0)
    temperature: float = knob(2.0, "by what the scores of both are divided before they are compared", low=0.1)
    label_weight: float = knob(0.5, "share of the true labels in the loss; the rest is the teacher's", low=0, high=1)
    hidden_weight: float = knob(
        1.0, "weight of the states of the copied layers, by their cosine; 0: not compared", low=0
    )


@dataclass(frozen=True, kw_only=True)
class MemoryTrainingConfig(Config):
    """How memory networks are trained: plain gradient descent from several starts at once, the best one is kept."""

    seed: int = knob(1, "seed of order, noise and the first start's weights; the next start has the next seed", low=0)
    restarts: int = knob(10, "networks trained side by side; the one with the least training error is kept", low=1)
    batch_size: int = knob(32, "questions of one batch; their losses are added up", low=1)
    epochs: int = knob(0, "passes over the questions; 0: as published, 100 for one task, 60 for several", low=0)
    lr_halving_epochs: int = knob(0, "passes after which the learning rate is halved; 0: a quarter of all", low=0)
    learning_rate: float = knob(0.0, "first learning rate; 0: as published, 0.01, or 0.005 with a linear start", low=0)
    max_gradient_norm: float = knob(40.0, "largest norm of the gradient of each embedding; 0: no limit", low=0)
    linear_start: bool = knob(True, "first train without the softmax of the hops, then with it")
    linear_start_epochs: int = knob(
        0, "most passes of the linear start; 0: as published, 20 for one task, 30 for several", low=0
    )
    linear_start_patience: int = knob(30, "the linear start ends after N passes without a lower held-out loss", low=1)
    random_noise: float = knob(0.1, "share of empty memories put between sentences while training", low=0, high=1)
    validation_share: float = knob(
        0.1, "share of the questions that is not learned but ends the linear start", low=0, high=0.9
    )
    unknown_answers: str = knob(
        "refuse",
        "validation questions whose answer is unseen in training: refuse, or count as wrong",
        choices=UNKNOWN_ANSWERS,
    )
