"""OpenVINO: embeddings of BERT in float32 and bf16, and in int8 where `nncf` is installed."""

from __future__ import annotations

import numpy as np

from benchmarks.peers import workload
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import (
    Array,
    ExportableBert,
    build_encoding_measures,
    build_row_encoder,
    example_inputs,
)
from benchmarks.peers.worker import Channel, Job

LIBRARY = Library(
    "openvino",
    requirements={"openvino": "openvino", "transformers": "transformers"},
    benchmarks={"encoding": ("float32", "bf16", "int8")},
    quick={"encoding": ("bf16",)},
    has_own_kernels=True,
)
CALIBRATION_TEXTS = 32


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts."""
    import openvino

    ids, mask = example_inputs()
    model = openvino.convert_model(ExportableBert(job), example_input={"input_ids": ids, "attention_mask": mask})
    if job.variant == "int8":
        model = _quantize(job, model)
    options = {
        "INFERENCE_PRECISION_HINT": "f32" if job.variant == "float32" else "bf16",
        "INFERENCE_NUM_THREADS": job.threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(model, "CPU", options)

    def forward(ids: Array, mask: Array) -> Array:
        return np.asarray(compiled({"input_ids": ids, "attention_mask": mask})[0])

    channel.serve(build_encoding_measures(job, forward))


def _quantize(job: Job, model: object) -> object:
    import nncf

    lengths = job.settings["lengths"][:CALIBRATION_TEXTS]
    texts = workload.draw_texts(lengths, job.settings["size"]["vocab_size"])
    batches = [np.array([row]) for row in build_row_encoder(job)(texts)]
    dataset = nncf.Dataset([{"input_ids": batch, "attention_mask": np.ones_like(batch)} for batch in batches])
    quantized: object = nncf.quantize(model, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches))
    return quantized
