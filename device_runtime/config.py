"""What `fedwright device run` was asked for; the agent reads nothing else."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.protocol.address import Login
from fedwright.protocol.errors import ConfigError

# The doctor must work where msgspec is what is missing, so what needs it is imported when used.
if TYPE_CHECKING:
    from fedwright.protocol.link.security import Bundle, TlsFiles


# By short name; onnxruntime's own names end in ExecutionProvider.
PROVIDERS = ("cpu", "cuda", "auto")
# What MQTT has room for.
MOST_KEEP_ALIVE_S = 65_535
BACKENDS = ("portable", "classic")


def default_state() -> Path:
    """Where an agent keeps its journal, blobs and checkpoints unless told otherwise."""
    return Path.home() / ".fedwright"


@dataclass(frozen=True)
class AgentConfig:
    """One agent: who it is, where its broker and its data are, what it may use.

    threads: 0 means one, or one per core where a graph is large enough for that to pay. backend: portable or classic.
    provider: cpu, cuda or auto (cuda where the installed onnxruntime can). profile: name of an emulated
    device, for the report only. trains: False makes a device that only evaluates. once: leave when the
    server says that the run is over, instead of waiting for the next one. bundle: folder that enrolment
    made; without one the agent is in development mode. most_temperature_c, least_battery_ratio, most_load_ratio (what
    others use, per core): training pauses beyond them. nice: how far the agent steps back behind other programs.
    model: architecture to keep, where the run's method lets devices have their own.
    noise_ratio: Gaussian noise on counts and descriptor that are told, in shares of their mean. further: edges to go
    to when the fleet's own has said nothing for patience_s.
    hide_counts: nothing of the data's content is told; the device takes part in sums that hide its counts.
    login: as whom to connect to a broker that asks for a password; password_file: where a service reads it again.
    policy: what the owner lets any server ask; None: the file at its usual place, if there is one.
    keep_alive_s: the broker hears of this device at least so often, and misses it after one and a half of these.
    metrics: where Prometheus may ask, such as 9100 or 0.0.0.0:9100; empty: nowhere.
    tell: facts of the data that are told although no run asked (data_summary.FACTS), as earlier releases did.
    round_s, round_mb: the most seconds of work and MB both ways that a round may take; the server plans within them.
    """

    broker: str
    device: str
    data: str
    fleet: str = "default"
    state: Path = field(default_factory=default_state)
    threads: int = 0
    backend: str = "portable"
    provider: str = "cpu"
    holdout_ratio: float = 0.2
    profile: str = ""
    trains: bool = True
    once: bool = False
    bundle: Path | None = None
    most_temperature_c: float | None = None
    least_battery_ratio: float | None = None
    most_load_ratio: float | None = None
    nice: int = 5
    noise_ratio: float = 0.0
    model: str = ""
    further: tuple[str, ...] = ()
    patience_s: float = 15.0
    keep_alive_s: int = 120
    hide_counts: bool = False
    round_s: float | None = None
    round_mb: float | None = None
    login: Login | None = None
    password_file: Path | None = None
    policy: Path | None = None
    tell: tuple[str, ...] = ()
    metrics: str = ""

    def __post_init__(self) -> None:
        """Check values."""
        for name in ("round_s", "round_mb"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value} but must be above 0; leave it out for no limit")
        if not 1 <= self.keep_alive_s <= MOST_KEEP_ALIVE_S:
            raise ConfigError(f"--keep-alive is {self.keep_alive_s} but must be 1 to {MOST_KEEP_ALIVE_S} seconds")
        if self.provider not in PROVIDERS and not self.provider.endswith("ExecutionProvider"):
            raise ConfigError(f"--provider is {self.provider!r}; choose one of {', '.join(PROVIDERS)}")
        if self.backend not in BACKENDS:
            raise ConfigError(f"--backend is {self.backend!r}; choose one of {', '.join(BACKENDS)}")

    def identity(self) -> "Bundle | None":
        """Certificate, key and the server's key from the bundle; ConfigError when that is another device's."""
        from fedwright.protocol.link.security import read_bundle

        if self.bundle is None:
            return None
        bundle = read_bundle(self.bundle)
        if bundle.info.device != self.device:
            raise ConfigError(
                f"--device is {self.device} but {self.bundle} is the bundle of {bundle.info.device}, whose certificate "
                "counts; leave out --device or give the bundle of that device"
            )
        return bundle

    def tls(self) -> "TlsFiles":
        """Files for an mqtts broker."""
        from fedwright.protocol.link.security import TlsFiles

        bundle = self.identity()
        return TlsFiles() if bundle is None else bundle.tls()
