"""ONNX Runtime: embeddings of BERT, its graph fused, in float32 and with int8 weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import Array, build_encoding_measures, write_onnx
from benchmarks.peers.worker import Channel, Job

LIBRARY = Library(
    "onnxruntime",
    requirements={"onnxruntime": "onnxruntime", "onnx": "onnx", "transformers": "transformers"},
    benchmarks={"encoding": ("float32", "int8")},
)


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = _fuse_graph(job, write_onnx(job, Path(folder)))
        if job.variant == "int8":
            path = _quantize(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(ids: Array, mask: Array) -> Array:
        return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])

    channel.serve(build_encoding_measures(job, forward))


def _fuse_graph(job: Job, path: Path) -> Path:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    fused_path = path.with_name("fused.onnx")
    fused = optimizer.optimize_model(
        str(path),
        model_type="bert",
        num_heads=job.settings["size"]["heads"],
        hidden_size=job.settings["size"]["hidden_size"],
        optimization_options=FusionOptions("bert"),
    )
    fused.save_model_to_file(str(fused_path))
    return fused_path


def _quantize(path: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized_path = path.with_name("int8.onnx")
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(str(path), str(quantized_path), weight_type=QuantType.QInt8, extra_options=options)
    return quantized_path
