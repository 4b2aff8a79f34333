"""An edge's config: TOML into frozen dataclasses, checked in full before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.security import Bundle, read_bundle
from fedwright.protocol.rendezvous import MOST_SHARDS
from fedwright.protocol.support.settings import check_range, hint
from fedwright.protocol.topics import check_name
from fedwright.server_runtime.config import EMBEDDED, LOCAL_BROKER, check_broker
from fedwright.server_runtime.config_sections.metrics import MetricsSection
from fedwright.server_runtime.config_sections.reading import parse_toml, read_sections, read_text, sections_of


@dataclass(frozen=True)
class EdgeSection:
    """The edge itself."""

    name: str = field(metadata=hint("the edge's name in the host's fleet; its devices run with --edge NAME"))
    folder: str = field(default="edges", metadata=hint("where edges keep their state"))
    bundle: str | None = field(
        default=None,
        metadata=hint("folder that `fedwright server enroll --edge` made; for mqtts and signed orders"),
    )
    once: bool = field(default=False, metadata=hint("leave when the host's run is over"))
    stands: bool = field(
        default=False,
        metadata=hint("stand for the devices: the host knows this edge alone and leads it like one device"),
    )
    shards: int | None = field(
        default=None,
        metadata=hint("how many edges share this config; they are called NAME-0, NAME-1 … and stand for their devices"),
    )

    def __post_init__(self) -> None:
        """Check values."""
        check_name(self.name, what="name")
        if not self.folder:
            raise ConfigError("folder is empty; name a folder such as 'edges'")
        if self.shards is not None:
            check_range("shards", self.shards, low=1, high=MOST_SHARDS)


@dataclass(frozen=True)
class HostSection:
    """Where the host is met."""

    broker: str = field(default=LOCAL_BROKER, metadata=hint("the broker that the host uses"))
    password_file: str | None = field(default=None, metadata=hint("file with its password; the user is edge"))
    fleet: str = field(default="default", metadata=hint("the fleet that the host runs"))
    timeout_s: float = field(default=600.0, metadata=hint("give up when no host was heard of for so long"))

    def __post_init__(self) -> None:
        """Check values."""
        check_remote(self.broker)
        check_name(self.fleet, what="fleet")
        check_range("timeout_s", self.timeout_s, above=0)


@dataclass(frozen=True)
class DevicesSection:
    """Where the devices are met."""

    broker: str | None = field(default=None, metadata=hint("the broker of this site; the host's when absent"))
    password_file: str | None = field(default=None, metadata=hint("file with the password of this site's broker"))
    least: int = field(default=1, metadata=hint("with edge.stands or shards: so many must be here before it reports"))

    def __post_init__(self) -> None:
        """Check values."""
        if self.broker is not None:
            check_remote(self.broker)
        check_range("least", self.least, low=1)


@dataclass(frozen=True)
class ClusterSection:
    """Devices grouped by how their last layers differ; one mean goes up for each group."""

    most: int = field(
        default=1,
        metadata=hint("clusters at most, chosen by silhouette; 1, the default: clusters are off, one mean for all"),
    )
    exact: int | None = field(default=None, metadata=hint("or: exactly so many"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("most", self.most, low=1, high=1000)
        if self.exact is not None:
            check_range("exact", self.exact, low=1, high=1000)


@dataclass(frozen=True)
class ExchangeSection:
    """Linked clusters of different size teach each other's last layer, with projections that stay on the edge."""

    form: Literal["off", "folded", "eq8"] = field(
        default="off",
        metadata=hint("off (the default), folded (one linear layer again), or eq8 (the paper's, aligned by label)"),
    )
    share: float = field(default=0.5, metadata=hint("lambda: how much the other cluster's layer counts"))
    quantile: float = field(default=0.25, metadata=hint("share of the most similar pairs that are linked"))
    steps: int = field(default=50, metadata=hint("steps of the projection's training per round"))
    rate: float = field(default=1.0, metadata=hint("length of those steps; the loss falls for any below 2"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("share", self.share, above=0, high=1)
        check_range("quantile", self.quantile, above=0, high=1)
        check_range("steps", self.steps, low=1, high=100_000)
        check_range("rate", self.rate, above=0, high=2)


@dataclass(frozen=True)
class EdgeConfig:
    """All of one edge."""

    edge: EdgeSection
    host: HostSection = field(default_factory=HostSection)
    devices: DevicesSection = field(default_factory=DevicesSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    exchange: ExchangeSection = field(default_factory=ExchangeSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)

    @property
    def stands(self) -> bool:
        """Whether the host knows this edge alone, and not the devices behind it."""
        return self.edge.stands or self.edge.shards is not None


SECTIONS = sections_of(EdgeConfig)


def check_remote(url: str) -> None:
    """Raise ConfigError unless `url` is the address of a broker that others have started."""
    if url == EMBEDDED:
        raise ConfigError("an edge needs a broker that is running already; give its mqtt:// address")
    check_broker(url)


def edge_from_dict(data: Mapping[str, Any], *, where: str) -> EdgeConfig:
    """Check a whole config."""
    sections = read_sections(SECTIONS, data, where=where)
    if "edge" not in sections:
        raise ConfigError(f"{where} lacks the section [edge]; it needs at least a name")
    config = EdgeConfig(**sections)
    if config.stands and (config.cluster != ClusterSection() or config.exchange != ExchangeSection()):
        raise ConfigError(
            f"{where}: an edge that stands for its devices makes one mean; leave [cluster] and [exchange] out"
        )
    secure = any((url or "").startswith("mqtts:") for url in (config.host.broker, config.devices.broker))
    if secure and config.edge.bundle is None:
        raise ConfigError(f"{where} has an mqtts broker but no edge.bundle; see `fedwright server enroll --help`")
    return config


def is_edge(text: str) -> bool:
    """Whether a config is that of an edge and not that of a run."""
    try:
        return "edge" in parse_toml(text, where="")
    except ConfigError:
        return False


def check_edge(config: EdgeConfig) -> Bundle | None:
    """The bundle that the config names, None without one; ConfigError when it is missing or another's."""
    if config.edge.bundle is None:
        return None
    bundle = read_bundle(Path(config.edge.bundle))
    if config.edge.shards is None and bundle.info.device != config.edge.name:
        raise ConfigError(
            f"edge.bundle is of {bundle.info.device!r} but edge.name is {config.edge.name!r}; make them one"
        )
    return bundle


def load_edge(path: Path) -> EdgeConfig:
    """Read and check a config file."""
    return edge_from_dict(parse_toml(read_text(path), where=path.name), where=path.name)
