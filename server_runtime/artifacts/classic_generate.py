"""Runs inside an environment with onnxruntime-training: turns a forward+loss graph into its training files.

Called by path, with a folder that holds `forward.onnx` and `options.json`; needs nothing of this package. The
result is `training_model.onnx`, `optimizer_model.onnx` and `checkpoint` in the same folder.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# onnxruntime-training 1.19.2 reads nothing newer.
IR_VERSION = 10


def load_generator() -> Any:
    """onnxruntime.training.artifacts without its package's own imports, which need torch."""
    import onnxruntime

    package = ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = package
    from onnxruntime.training import artifacts

    return artifacts


def make_optimizer(blocks: Any, options: dict[str, Any]) -> Any:
    """The optimizer graph's builder for `kind`, with its gradient clipping."""
    clip = None if options["clip_norm"] is None else blocks.optim.ClipGradNorm(options["clip_norm"])
    if options["kind"] == "sgd":
        return blocks.optim.SGD(clip_grad=clip)
    return blocks.optim.AdamW(
        betas=(options["beta1"], options["beta2"]),
        eps=options["eps"],
        weight_decay=options["weight_decay"],
        clip_grad=clip,
    )


def generate(folder: Path) -> None:
    """Write the training files."""
    import onnx

    artifacts = load_generator()
    options = json.loads((folder / "options.json").read_text())
    model = onnx.load(folder / "forward.onnx")
    model.ir_version = IR_VERSION
    artifacts.generate_artifacts(
        model,
        requires_grad=options["trainable"],
        frozen_params=options["frozen"],
        optimizer=make_optimizer(artifacts.onnxblock, options["optimizer"]),
        artifact_directory=folder,
        loss_input_names=[options["loss"]],
        additional_output_names=options["metrics"],
    )
    path = folder / "optimizer_model.onnx"
    optimizer = onnx.load(path)
    optimizer.ir_version = IR_VERSION
    for node in optimizer.graph.node:
        for attribute in node.attribute:
            # 0 is torch's order of decay and update; the generator writes 1.
            if attribute.name == "adam_mode":
                attribute.i = 0
    onnx.save(optimizer, path)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
