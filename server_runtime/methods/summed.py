"""Which methods can do with sums of changes (update.secure), and why the others cannot."""

from typing import Any

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.secure.graph import LEAST_DEVICES

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
        "framp",
        "hasa",
        "head-private",
        "heterofl",
        "hyperflora",
        "per-fedavg",
        "pfedhn",
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
    "scaffold": "the server keeps a control variate of each device",
}


# A hypernetwork learns from Σ J_i' Δ_i, which is J' Σ Δ_i where all of a sum share a description, and so J.
WRITTEN: dict[str, dict[str, Any]] = {
    "framp": {"align": 0, "granularity": "channel", "describe": ("features", "classes")},
    "hyperflora": {"pairs": False, "sequential": False, "choose_every": 0},
    "pfedhn": {"parallel": True, "describe": "classes"},
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
    if method in WRITTEN:
        _check_written(method, params)
    if method in ("fedconv", "slice-tuned") and (params.group != "ratio" or params.exchange):
        raise ConfigError(
            f"secure is true but {method} looks at single devices with these settings; set method.group = 'ratio' and "
            f"method.exchange = false, or secure = false"
        )


def _check_written(method: str, params: Any) -> None:
    if params.alike < LEAST_DEVICES:
        raise ConfigError(
            f"secure is true but with {method} every device has a description of its own, through which its change "
            f"must go back; set method.alike = {LEAST_DEVICES} or more, so that groups share one, or secure = false"
        )
    for name, wanted in WRITTEN[method].items():
        found, allowed = getattr(params, name), wanted if isinstance(wanted, tuple) else (wanted,)
        if found not in allowed:
            words = " or ".join(str(one).lower() if isinstance(one, bool) else repr(one) for one in allowed)
            raise ConfigError(
                f"secure is true but {method} with {name} = {found!r} is told more than mean changes; set "
                f"method.{name} = {words}, or secure = false"
            )
