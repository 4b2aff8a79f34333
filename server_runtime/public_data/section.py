"""The section [public] of a config: examples that the server itself may use."""

from dataclasses import dataclass, field

from fedwright.protocol.support.settings import check_range
from fedwright.server_runtime.public_data.embedded_sets import check_public_source


@dataclass(frozen=True)
class PublicSection:
    """Examples that the server itself may use; some methods, such as FedMD, need them."""

    file: str | None = field(default=None, metadata={"help": "an .npz with arrays x and y"})
    data: str | None = field(
        default=None,
        metadata={"help": "or 'digits:holdout': images that come with the server, for devices with digits"},
    )
    rows: int = field(
        default=0, metadata={"help": "how many; 0 = all. Without file or data a simulation takes its own"}
    )
    labelled: bool = field(default=True, metadata={"help": "false: the server does not look at the labels"})
    foreign: bool = field(default=False, metadata={"help": "true: labels of another task, for FedConv's transfer"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("rows", self.rows, low=0, high=10_000_000)
        check_public_source(self.file, self.data)

    @property
    def given(self) -> bool:
        """Whether the examples are named here; else a simulation may take some of its own data."""
        return self.file is not None or self.data is not None
