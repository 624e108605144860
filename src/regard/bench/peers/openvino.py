"""OpenVINO: vectors from BERT in float32 and bf16, and in eight bits where `nncf` is installed."""

from __future__ import annotations

import numpy as np

from regard.bench import work
from regard.bench.child import Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import Arrays, Exportable, encoder_tasks, example, rows

PEER = Peer(
    "openvino",
    {"openvino": "openvino", "transformers": "transformers"},
    {"encoding": ("float32", "bf16", "int8")},
    quick={"encoding": ("bf16",)},
    own_kernels=True,
)
CALIBRATED = 32  # texts that the eight-bit scales are chosen on


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors."""
    import openvino

    ids, mask = example(job)
    model = openvino.convert_model(Exportable(job), example_input={"input_ids": ids, "attention_mask": mask})
    if job.variant == "int8":
        model = _quantized(job, model)
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32" if job.variant == "float32" else "bf16",
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )

    def forward(ids: Arrays, mask: Arrays) -> Arrays:
        return np.asarray(compiled({"input_ids": ids, "attention_mask": mask})[0])

    turns.serve(encoder_tasks(job, forward))


def _quantized(job: Job, model: object) -> object:
    import nncf

    given = rows(job)(work.texts(job.facts["lengths"][:CALIBRATED], job.facts["size"]["vocabulary"]))
    tables = [np.array([row]) for row in given]
    data = nncf.Dataset([{"input_ids": table, "attention_mask": np.ones_like(table)} for table in tables])
    made: object = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(tables))
    return made
