"""A run's config: TOML into frozen dataclasses, checked in full before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedwright.protocol.address import mask, parse_url
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY, GOALS, REGRESS, find_goal
from fedwright.protocol.support import plugins
from fedwright.protocol.support.settings import check_range, from_dict, hint
from fedwright.protocol.topics import check_name
from fedwright.server_runtime import model_names
from fedwright.server_runtime.blocks.budget import Budget
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.config_sections.metrics import MetricsSection
from fedwright.server_runtime.config_sections.privacy import PrivacySection
from fedwright.server_runtime.config_sections.reading import parse_toml, read_sections, read_text, sections_of
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.config_sections.store import StoreSection
from fedwright.server_runtime.config_sections.track import TrackSection
from fedwright.server_runtime.config_sections.train import TrainSection
from fedwright.server_runtime.config_sections.update import UpdateSection
from fedwright.server_runtime.fleet.class_names import check_classes
from fedwright.server_runtime.public_data.section import PublicSection

EMBEDDED = "embedded"
LOCAL_BROKER = "mqtt://localhost:1883"
MB = 1e6


@dataclass(frozen=True)
class RunSection:
    """What the run is called, how long it is and where it keeps its state."""

    name: str = field(default="run", metadata=hint("names the folder of the run; one run has one name"))
    seed: int = field(default=1, metadata=hint("every random number of the run derives from this"))
    rounds: int = field(default=10, metadata=hint("how many rounds to train"))
    folder: str = field(default="runs", metadata=hint("where runs keep their state; relative to the current folder"))
    keep_states: int = field(
        default=5, metadata=hint("after how many of the last rounds, beside the best one, `server rollback` can go on")
    )

    def __post_init__(self) -> None:
        """Check values."""
        check_range("keep_states", self.keep_states, low=1, high=20)
        check_name(self.name, what="name")
        check_range("seed", self.seed, low=0, high=2**62)
        check_range("rounds", self.rounds, low=1, high=1_000_000)
        if not self.folder:
            raise ConfigError("folder is empty; name a folder such as 'runs'")


@dataclass(frozen=True)
class FleetSection:
    """Where the devices are met and when a round may start and must end."""

    broker: str = field(
        default=EMBEDDED,
        metadata=hint("'embedded': the server starts one for the network; or mqtt://host:1883, mqtts://host:8883"),
    )
    port: int | None = field(default=None, metadata=hint("of the embedded broker; absent: 1883 or the next free one"))
    password_file: str | None = field(default=None, metadata=hint("holds the password of a broker that is named"))
    name: str = field(default="default", metadata=hint("the devices of one fleet share this name"))
    devices: int = field(default=2, metadata=hint("how many devices to wait for before the first round"))
    sample_ratio: float = field(default=1.0, metadata=hint("share of the known devices that take part in a round"))
    per_round: int | None = field(default=None, metadata=hint("or: how many devices take part in a round"))
    quorum_ratio: float = field(
        default=0.5, metadata=hint("share of a round's devices that must answer for it to count")
    )
    buffer: int | None = field(
        default=None, metadata=hint("asynchronous rounds: advance after this many updates, whoever they come from")
    )
    deadline_s: float = field(default=600.0, metadata=hint("a round closes after this long with those who answered"))
    join_timeout_s: float = field(default=600.0, metadata=hint("give up when too few devices came in this time"))
    chunk_kib: int = field(default=1024, metadata=hint("largest chunk; some brokers take at most 128"))
    trust: str | None = field(
        default=None, metadata=hint("folder of `fedwright server enroll`; for an mqtts broker and signed tasks")
    )

    def __post_init__(self) -> None:
        """Check values."""
        check_broker(self.broker)
        if self.port is not None:
            check_range("port", self.port, low=1, high=65_535)
        check_name(self.name, what="name")
        check_range("devices", self.devices, low=1, high=1_000_000)
        check_range("sample_ratio", self.sample_ratio, above=0, high=1)
        check_range("quorum_ratio", self.quorum_ratio, above=0, high=1)
        check_range("deadline_s", self.deadline_s, above=0)
        check_range("join_timeout_s", self.join_timeout_s, above=0)
        check_range("chunk_kib", self.chunk_kib, low=1, high=1024)
        if self.per_round is not None:
            check_range("per_round", self.per_round, low=1)
            if self.sample_ratio != 1.0:
                raise ConfigError("per_round and sample_ratio are both given; keep one of them")
        if self.buffer is not None:
            check_range("buffer", self.buffer, low=1)
        if self.broker.startswith("mqtt:") and self.trust is not None:
            raise ConfigError("trust is set but broker is an mqtt address, where nobody is known; use the mqtts one")
        if self.broker.startswith("mqtts:") and self.trust is None:
            raise ConfigError("broker is an mqtts address but trust is not set; see `fedwright server enroll --help`")


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    model: str = field(
        default="cnn-small",
        metadata=hint(
            "a name from `fedwright models`, such as lenet or lenet@0.5 (its width), python:module:name or onnx:file"
        ),
    )
    input_shape: tuple[int, ...] | None = field(
        default=None,
        metadata=hint("one sample's shape, such as [1, 28, 28]; taken from the devices' reports when absent"),
    )
    classes: int | tuple[str, ...] | None = field(
        default=None, metadata=hint('how many, or names: ["cat", "dog"]; as the devices report when absent')
    )
    weights: str | None = field(
        default=None,
        metadata=hint("safetensors file that the run begins with; a classifier for other classes begins anew"),
    )

    task: str = field(
        default=CLASSIFY,
        metadata=hint("what it is for: " + ", ".join(GOALS) + "; or a loss of your own, python:module:function"),
    )
    labels: str | None = field(
        default=None, metadata=hint("with a loss of your own: of which task its labels are; regress when absent")
    )

    def __post_init__(self) -> None:
        """Check values."""
        if plugins.is_reference(self.task):
            plugins.parse(plugins.LOSSES, self.task)
        elif self.labels is not None:
            raise ConfigError(f"labels is for a loss of your own, but task is {self.task!r}; leave labels out")
        find_goal(self.goal)
        if not self.model:
            raise ConfigError("model is empty; choose a name from `fedwright models`")
        if plugins.is_reference(self.model):
            plugins.parse(plugins.MODELS, self.model)
        check_classes(self.classes)
        if self.input_shape is not None:
            if not 1 <= len(self.input_shape) <= 8:
                raise ConfigError(f"input_shape has {len(self.input_shape)} dimensions but must have 1 to 8")
            for size in self.input_shape:
                check_range("input_shape entry", size, low=1, high=1_000_000)

    @property
    def goal(self) -> str:
        """What the labels are for, by name."""
        return (self.labels or REGRESS) if self.loss else self.task

    @property
    def loss(self) -> str:
        """The user's own loss, or nothing."""
        return self.task if plugins.is_reference(self.task) else ""

    @property
    def class_count(self) -> int | None:
        """How many classes are asked for, by number or by name; None leaves it to the devices."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes


@dataclass(frozen=True)
class MethodSection:
    """The method by name, with its own parameters (an instance of the class it registered)."""

    name: str
    params: Any


@dataclass(frozen=True)
class BudgetSection:
    """What one round may take of any device; devices report their own limits beside these."""

    round_s: float | None = field(
        default=None, metadata=hint("most seconds of a device's work in a round, as far as its speed is known")
    )
    round_mb: float | None = field(default=None, metadata=hint("most MB that a round may send to and from a device"))
    memory_mb: float | None = field(default=None, metadata=hint("most MB of its free memory that training may use"))
    short_of_memory: Literal["narrower", "slower"] = field(
        default="narrower", metadata=hint("devices short of memory train 'narrower' models, or the same 'slower'")
    )

    def __post_init__(self) -> None:
        """Check values."""
        for name in ("round_s", "round_mb", "memory_mb"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), above=0)

    @property
    def slower(self) -> bool:
        """A device short of memory trains the same model in more time."""
        return self.short_of_memory == "slower"

    def limits(self) -> Budget:
        """As the search for a plan reads it."""
        memory, link = (None if mb is None else int(mb * MB) for mb in (self.memory_mb, self.round_mb))
        return Budget(memory, self.round_s, link)


@dataclass(frozen=True)
class ServerSection:
    """Where the server computes."""

    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto", metadata=hint("'auto' takes CUDA when it is there, else 'cpu' or 'cuda'")
    )
    memory_ratio: float = field(default=1.0, metadata=hint("the most that the run takes of a GPU's memory, 0 to 1"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("memory_ratio", self.memory_ratio, low=0.01, high=1.0)


@dataclass(frozen=True)
class ExportSection:
    """What is written when the run ends."""

    global_model: bool = field(default=True, metadata=hint("write model.onnx into the run's folder at the end"))


@dataclass(frozen=True)
class RunConfig:
    """All of one run."""

    method: MethodSection
    run: RunSection = field(default_factory=RunSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    model: ModelSection = field(default_factory=ModelSection)
    train: TrainSection = field(default_factory=TrainSection)
    update: UpdateSection = field(default_factory=UpdateSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    budget: BudgetSection = field(default_factory=BudgetSection)
    server: ServerSection = field(default_factory=ServerSection)
    public: PublicSection = field(default_factory=PublicSection)
    export: ExportSection = field(default_factory=ExportSection)
    store: StoreSection = field(default_factory=StoreSection)
    engine: EngineSection = field(default_factory=EngineSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    track: TrackSection = field(default_factory=TrackSection)
    simulate: SimulateSection = field(default_factory=SimulateSection)


# The method is read with the parameters of its own that it registered.
SECTIONS = {name: cls for name, cls in sections_of(RunConfig).items() if name != "method"}


def check_broker(url: str) -> None:
    """Raise ConfigError unless `url` is `embedded` or names a scheme, a host and a sensible port."""
    if url == EMBEDDED:
        return
    try:
        parse_url(url)
    except ConfigError as err:
        raise ConfigError(
            f"broker is {mask(url)!r} but must look like mqtt://host:1883 or mqtts://host:8883, or be 'embedded'"
        ) from err


def config_from_dict(data: Mapping[str, Any], *, where: str) -> RunConfig:
    """Check a whole config; the method's parameters are checked against the class that the method registered."""
    sections = read_sections(SECTIONS, data, where=where, beside=("method",))
    if "model" in sections:
        _check_model(sections["model"].model, where=f"{where} [model]")
    if "method" not in data:
        raise ConfigError(f"{where} lacks the section [method]; name one from `fedwright methods`")
    asynchronous = "fleet" in sections and sections["fleet"].buffer is not None
    method = _method(data["method"], where=f"{where} [method]", asynchronous=asynchronous)
    from fedwright.server_runtime.methods.goal_check import check_public

    if "model" in sections:
        _check_goal(method, sections["model"])
    if "update" in sections:
        _check_combine(method.name, sections["update"], where=where)
        _check_secure(method, sections["update"], asynchronous, where=where)
    config = RunConfig(method=method, **sections)
    check_public(method.name, config.model.goal, given=config.public.given or bool(config.public.rows))
    _check_privacy(config, where=f"{where} [privacy]")
    if config.fleet.buffer is not None and config.update.patch_codec is not None:
        raise ConfigError(
            f"{where} [update] model_codec is {config.update.model_codec!r}, but in asynchronous rounds models travel "
            "whole; take float32 or bf16, or remove fleet.buffer"
        )
    warmup, rounds = config.train.schedule.warmup_rounds, config.run.rounds
    if warmup >= rounds:
        raise ConfigError(
            f"{where} [train] schedule.warmup_rounds is {warmup} but the run has {rounds} rounds, so that none would"
            " train at learning_rate; warm up for fewer"
        )
    return config


def config_from_text(text: str, *, where: str) -> RunConfig:
    """Check a config given as TOML; `where` opens every error message."""
    return config_from_dict(parse_toml(text, where=where), where=where)


def load_config(path: Path) -> RunConfig:
    """Read and check a config file."""
    return config_from_text(read_text(path), where=path.name)


def _method(data: Any, *, where: str, asynchronous: bool) -> MethodSection:
    from fedwright.server_runtime.methods import registry

    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings")
    name = data.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{where} lacks the key 'name'; choose one of {', '.join(sorted(registry.METHODS))}")
    try:
        entry = registry.find(name)
    except ConfigError as err:
        raise ConfigError(f"{where} name: {err}") from err
    params = from_dict(entry.params, {key: value for key, value in data.items() if key != "name"}, where=where)
    remedy = entry.relays(params)
    if asynchronous and remedy:
        raise ConfigError(
            f"{where} {name} passes work on inside a round, which asynchronous rounds have no place for; "
            f"{remedy} or remove fleet.buffer"
        )
    return MethodSection(name=name, params=params)


def _check_goal(method: MethodSection, model: ModelSection) -> None:
    from fedwright.server_runtime.methods import registry
    from fedwright.server_runtime.methods.goal_check import check_goal

    known = method.name in registry.METHODS
    check_goal(method.name, method.params, model.goal, known=known, loss=bool(model.loss))


def _check_combine(method: str, update: UpdateSection, *, where: str) -> None:
    from fedwright.server_runtime.methods import registry

    try:
        registry.check_combine(registry.find(method), update.combine)
    except ConfigError as err:
        raise ConfigError(f"{where} [update] {err}") from err


def _check_secure(method: MethodSection, update: UpdateSection, asynchronous: bool, *, where: str) -> None:
    from fedwright.server_runtime.methods import registry
    from fedwright.server_runtime.methods.summed import check_summed

    if not update.secure:
        return
    if asynchronous:
        raise ConfigError(
            f"{where} [update] secure is true, but in asynchronous rounds nobody waits for the others of a"
            " sum; remove fleet.buffer"
        )
    try:
        check_summed(method.name, method.params, known=method.name in registry.METHODS)
    except ConfigError as err:
        raise ConfigError(f"{where} [update] {err}") from err


def _check_privacy(config: RunConfig, *, where: str) -> None:
    from fedwright.server_runtime.methods import registry

    kind = config.privacy.kind
    if kind == "none":
        return
    if kind == "distributed":
        _check_distributed(config, where=where)
    elif config.update.secure:
        raise ConfigError(
            f"{where} kind is {kind!r}, which looks at single changes; set update.secure = false, or kind = "
            "'distributed'"
        )
    if config.fleet.buffer is not None:
        raise ConfigError(f"{where} kind is {kind!r} but asynchronous rounds are not accounted; remove fleet.buffer")
    if config.update.combine != "mean":
        raise ConfigError(f"{where} kind is {kind!r} but update.combine looks at updates as they are; set it to 'mean'")
    entry = registry.find(config.method.name)
    if kind not in entry.private:
        others = ", ".join(name for name, other in registry.METHODS.items() if kind in other.private)
        raise ConfigError(f"{where} kind {kind!r} does not work with {entry.name}; choose a method such as {others}")


def _check_distributed(config: RunConfig, *, where: str) -> None:
    if not config.update.secure:
        raise ConfigError(f"{where} kind is 'distributed', whose noise is added up in sums; set update.secure = true")
    if config.update.clip_norm is not None:
        raise ConfigError(f"{where} kind is 'distributed', which clips to privacy.clip; leave update.clip_norm out")


def _check_model(name: str, *, where: str) -> None:
    try:
        model_names.check(name)
    except ConfigError as err:
        raise ConfigError(f"{where} model: {err}") from err
