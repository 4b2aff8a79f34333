"""Which methods can do with sums of changes (update.secure), and why the others cannot."""

from typing import Any

from fedwright.protocol.errors import ConfigError

# Their changes (logits, class means) are averaged as they are: the sum of those who trained the same part says all.
SUMMED = frozenset(
    {
        "encoder-private",
        "fedadam",
        "fedavg",
        "fedavg-masked",
        "fedavgm",
        "fedbn",
        "fedconv",
        "fedgh",
        "fedmd",
        "fedprox",
        "fedrolex",
        "fedyogi",
        "hasa",
        "head-private",
        "heterofl",
        "per-fedavg",
        "pfedme",
        "scalefl",
        "slice-tuned",
    }
)
REASONS = {
    "adapters-private": "every device has an adapter of its own",
    "fccl": "each device is sent its own model as its teacher",
    "feddropout": "every device has other channels",
    "fiarse": "which entries a device sends is chosen for each round",
    "framp": "the change of each device goes back through the hypernetwork by its own descriptor",
    "hyperflora": "the change of each device goes back through the hypernetwork by its own classes",
    "pfedhn": "the change of each device goes back through the hypernetwork by its own embedding",
    "scaffold": "the server keeps a control variate of each device",
}


def check_summed(method: str, params: Any, known: bool) -> None:
    """Raise ConfigError where a method needs what single devices send; known: it comes with Fedwright."""
    reason = REASONS.get(method, "it needs what each device sends by itself")
    if known and method not in SUMMED:
        raise ConfigError(
            f"secure is true but {method} cannot do with sums: {reason}; choose one of {', '.join(sorted(SUMMED))}, "
            f"or set secure = false"
        )
    if method == "hasa" and (not params.width_step or params.submodels == "random"):
        raise ConfigError(
            "secure is true but with hasa every device has a width, or channels, of its own, so that no sum would hide "
            "any; set method.width_step, such as 0.2, and no random submodels, or secure = false"
        )
    if method in ("fedconv", "slice-tuned") and (params.group != "ratio" or params.exchange):
        raise ConfigError(
            f"secure is true but {method} looks at single devices with these settings; set method.group = 'ratio' and "
            f"method.exchange = false, or secure = false"
        )
