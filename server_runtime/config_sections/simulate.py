"""The section [simulate] of a config: the fleet that a simulation makes."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.support.settings import check_range, hint


@dataclass(frozen=True)
class SimulateSection:
    """The fleet that `fedwright simulate` runs in this machine; a server over a broker does not read it."""

    dataset: str = field(default="digits", metadata=hint("of `fedwright datasets`, or python:module:function"))
    data: str | None = field(
        default=None, metadata=hint("own data: npz:, csv:, text:, graph:FILE; images:DIR; devices:DIR")
    )
    partition: Literal[
        "iid", "dirichlet", "balanced-dirichlet", "shards", "few-classes", "stretches", "owner", "metis"
    ] = field(
        default="dirichlet",
        metadata=hint("iid, dirichlet, balanced-dirichlet, shards, few-classes, stretches, owner or metis"),
    )
    devices: int = field(default=20, metadata=hint("how many devices; 'owner' makes one per person or publication"))
    bystanders: int = field(default=0, metadata=hint("how many of them, the last ones, never train"))
    hostile: int = field(default=0, metadata=hint("how many of them, the first ones, do what `attack` says"))
    attack: Literal["sign-flip", "scale", "random", "label-flip", "back-door", "absence"] = field(
        default="sign-flip", metadata=hint("sign-flip, scale, random, label-flip, back-door or absence")
    )
    alpha: float = field(default=0.5, metadata=hint("of the Dirichlet partitions; smaller is less alike"))
    per_device: int = field(default=2, metadata=hint("shards, or classes, of each device"))
    least: int = field(default=10, metadata=hint("rows that every device gets at least (dirichlet)"))
    least_classes: int = field(default=1, metadata=hint("classes that every device gets at least (dirichlet)"))
    rows: int | None = field(default=None, metadata=hint("use only so many training examples"))
    skip_rows: int = field(default=0, metadata=hint("leave so many training examples out before those"))
    val_ratio: float = field(default=0.0, metadata=hint("share of each device's rows to choose settings by; 0 = none"))
    profiles: str | None = field(default=None, metadata=hint("a fleet of `fedwright profiles`, or its TOML file"))
    hide_counts: bool = field(
        default=False, metadata=hint("devices tell nothing of their data but sums over 3 or more (secure_sum)")
    )
    count_bytes: bool = field(
        default=True, metadata=hint("pack updates as for a link, so that bytes are right; false is faster")
    )
    processes: int | None = field(default=None, metadata=hint("how many in parallel; 0 = inside this one"))
    edges: int = field(default=0, metadata=hint("edge servers that devices sit behind in turn; 0 = none"))
    clusters: int = field(default=1, metadata=hint("clusters at most that an edge makes of devices of one size"))
    exchange: Literal["off", "folded", "eq8"] = field(
        default="off", metadata=hint("off, folded or eq8: how an edge's clusters of different size teach each other")
    )
    evaluate_every: int = field(default=5, metadata=hint("measure every device after so many rounds; 0 = at the end"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("devices", self.devices, low=1, high=100_000)
        check_range("bystanders", self.bystanders, low=0, high=self.devices - 1)
        check_range("hostile", self.hostile, low=0, high=self.devices)
        check_range("alpha", self.alpha, above=0)
        check_range("per_device", self.per_device, low=1)
        check_range("least", self.least, low=1)
        check_range("least_classes", self.least_classes, low=1)
        check_range("skip_rows", self.skip_rows, low=0)
        check_range("val_ratio", self.val_ratio, low=0, high=0.7)
        check_range("evaluate_every", self.evaluate_every, low=0)
        check_range("edges", self.edges, low=0, high=self.devices)
        check_range("clusters", self.clusters, low=1)
        for name in ("rows", "processes"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), low=0 if name == "processes" else 1)
