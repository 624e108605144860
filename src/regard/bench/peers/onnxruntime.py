"""ONNX Runtime: vectors from BERT, its graph fused for BERT, in float32 and with eight-bit weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from regard.bench.child import Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import Arrays, encoder_tasks, onnx_file

PEER = Peer(
    "onnxruntime",
    {"onnxruntime": "onnxruntime", "onnx": "onnx", "transformers": "transformers"},
    {"encoding": ("float32", "int8")},
)


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as room:
        path = _fused(job, onnx_file(job, Path(room)))
        if job.variant == "int8":
            path = _quantized(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(ids: Arrays, mask: Arrays) -> Arrays:
        return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])

    turns.serve(encoder_tasks(job, forward))


def _fused(job: Job, path: Path) -> Path:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    size, made = job.facts["size"], path.with_name("fused.onnx")
    fused = optimizer.optimize_model(
        str(path),
        model_type="bert",
        num_heads=size["heads"],
        hidden_size=size["width"],
        optimization_options=FusionOptions("bert"),
    )
    fused.save_model_to_file(str(made))
    return made


def _quantized(path: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_name("int8.onnx")
    plain = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(str(path), str(made), weight_type=QuantType.QInt8, extra_options=plain)
    return made
