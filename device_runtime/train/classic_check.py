"""What must hold of a classic artifact before onnxruntime-training reads its files."""

from fedwright.device_runtime.train.check import OPERATORS, need_bytes
from fedwright.protocol.artifact import MAX_IR, Artifact, check_files
from fedwright.protocol.classic_artifact import ClassicFiles, unpack_files
from fedwright.protocol.errors import BadArtifact, OverBudget
from fedwright.protocol.onnx_outline import scan

# The optimizer graph does not depend on the model: a handful of nodes over sequences of tensors.
MAX_OPTIMIZER_BYTES = 4096

# Gradients and accumulation as onnxruntime-training writes them; none runs code or reads files.
_GRADIENTS = """
AveragePoolGrad BatchNormalizationGrad BiasGeluGrad_dX BroadcastGradientArgs ConcatTraining ConvGrad FastGeluGrad
FusedMatMul GatherElementsGrad GatherGrad GatherNDGrad GeluGrad InPlaceAccumulatorV2 LayerNormalizationGrad
LogSoftmaxGrad LogSoftmaxGrad_13 MaxPoolGrad ReduceSumTraining ReluGrad Scale SigmoidGrad SliceGrad
SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal SoftmaxCrossEntropyLossInternalGrad SoftmaxGrad
SoftmaxGrad_13 SplitTraining TanhGrad
"""
GRADIENTS = frozenset(_GRADIENTS.split())


def check_classic(artifact: Artifact, *, batch: int, free_bytes: int | None = None) -> None:
    """Raise BadArtifact when the artifact is not what it must be, OverBudget when a step would not fit into memory."""
    check_files(artifact)
    if artifact.manifest.backend != "classic":
        raise BadArtifact("artifact is not for the classic backend; run this device with --backend portable")
    files = unpack_files(artifact.train)
    _check_training(files)
    _check_optimizer(files)
    need = need_bytes(artifact.manifest, batch)
    if free_bytes is not None and need > free_bytes:
        raise OverBudget(need, free_bytes)


def _check_training(files: ClassicFiles) -> None:
    outline = scan(files.training, what="classic training graph")
    if outline.ir_version > MAX_IR:
        raise BadArtifact(f"classic training graph has IR version {outline.ir_version}; at most {MAX_IR} runs")
    for domain, operator in sorted(outline.operators):
        known = operator in GRADIENTS or (domain in ("", "ai.onnx") and operator in OPERATORS)
        if domain not in ("", "ai.onnx", "com.microsoft") or not known:
            raise BadArtifact(f"classic training graph uses the operator {operator!r}, which is not an allowed one")
    for tensor in (*outline.initializers, *outline.inner):
        if tensor.external:
            raise BadArtifact(f"classic training graph wants to read tensor {tensor.name!r} from a file; none is read")


def _check_optimizer(files: ClassicFiles) -> None:
    # "location" is the key without which a tensor cannot point to a file.
    if len(files.optimizer) > MAX_OPTIMIZER_BYTES or b"location" in files.optimizer:
        raise BadArtifact(
            f"classic optimizer graph must be at most {MAX_OPTIMIZER_BYTES} bytes and read no file; build it again"
        )
