"""What a model must be before an artifact is made of it, and an artifact before devices get it."""

import torch
from torch import nn

from fedwright.protocol.artifact import Artifact
from fedwright.protocol.dataflow.outputs import check_eval_outputs, check_train_outputs
from fedwright.protocol.errors import BadArtifact, BuildError
from fedwright.protocol.onnx_outline import scan
from fedwright.protocol.private_graph import check_private
from fedwright.server_runtime.spec import Structure


def check_layers(module: nn.Module, structure: Structure) -> None:
    """Raise BuildError for weights that are no numbers, and for a private structure whose layers mix samples."""
    for name, value in module.named_parameters():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BuildError(
                f"parameter {name} of {structure.spec.model} holds NaN or infinity; give it finite weights before it "
                "is sent to devices"
            )
    if structure.private and any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        raise BuildError(
            f"{structure.spec.model} has batch normalisation, which mixes samples so that none can be hidden; use a "
            f"model with group normalisation, such as resnet8-gn or cnn-gn"
        )


def check_outputs(artifact: Artifact, model: str) -> None:
    """A model that mixes the samples of a batch is told here and not by every device."""
    try:
        train = scan(artifact.train, what="train.onnx")
        check_train_outputs(train, artifact.manifest, "train.onnx")
        if artifact.manifest.noise:
            check_private(train, artifact.manifest, "train.onnx")
        check_eval_outputs(scan(artifact.eval, what="eval.onnx"), artifact.manifest, "eval.onnx")
    except BadArtifact as err:
        raise BuildError(f"devices would refuse {model}: {err}; keep samples apart until they are summed") from err
