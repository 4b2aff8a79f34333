"""All methods there are, by name: what each is and can be told; its code is imported when it is made."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support import plugins
from fedwright.protocol.support.settings import suggest
from fedwright.server_runtime.blocks.robust import ALL, BY_UPDATE, UNAVERAGED, Kind
from fedwright.server_runtime.blocks.trained_part import EVERYTHING
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.params import averaging, generated_models, personal_models, pruned, submodels
from fedwright.server_runtime.methods.params.hasa import HasaParams
from fedwright.server_runtime.methods.private_kinds import CENTRAL, DISTRIBUTED, EXAMPLE
from fedwright.server_runtime.methods.starts import STARTS, Start
from fedwright.server_runtime.public_data.embedded_sets import STARTER_PUBLIC

if TYPE_CHECKING:
    from fedwright.server_runtime.methods.base import Method, Setting


@dataclass(frozen=True)
class Entry:
    """One line of the registry; `model` is one that the method can train, to start from.

    source: the method's class, or `module:name` with a module below this package. needs_public: it cannot begin without
    examples on the server. relays: whether it passes work on inside a round with these parameters, as advice how to
    do without that; else empty. robust: the choices of update.combine that do to its average what they should.
    """

    name: str
    summary: str
    params: type[Any]
    source: "str | type[Any]"
    model: str = "cnn-small"
    needs_public: bool = False
    relays: Callable[[Any], str] = lambda params: ""
    robust: Sequence[Kind] = UNAVERAGED

    @property
    def private(self) -> tuple[str, ...]:
        """The kinds of privacy that a run of it may ask for."""
        kinds = {"central": CENTRAL, "distributed": DISTRIBUTED, "example": EXAMPLE}
        return tuple(kind for kind, methods in kinds.items() if self.name in methods)

    @property
    def start(self) -> Start:
        """What its starter config sets to other values than the defaults."""
        return STARTS.get(self.name, {"public": STARTER_PUBLIC} if self.needs_public else {})

    @property
    def method(self) -> "type[Method]":
        """The method's class; importing it imports torch."""
        if isinstance(self.source, type):
            return self.source
        module, _, name = self.source.partition(":")
        found: type[Method] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return found

    def make(self, params: Any, setting: "Setting") -> "Method":
        """The method at its birth; ConfigError when it cannot do what the setting asks for."""
        check_combine(self, setting.combine.kind)
        make: Callable[[Any, Setting], Method] = self.method
        if setting.trainable != EVERYTHING:
            from fedwright.server_runtime.methods.shared.partly_trained import partly_trained

            return partly_trained(self.name, lambda inner: make(params, inner), setting)
        return make(params, setting)


def _always(params: Any) -> str:
    return "choose another method"


def _pairs(params: generated_models.HyperFLoRAParams) -> str:
    wanted = [("pairs = false", params.pairs), ("choose_every = 0", params.choose_every)]
    return " and ".join(f"set {how}" for how, given in wanted if given)


def _exchange(params: FedConvParams) -> str:
    return "set exchange = false" if params.exchange else ""


METHODS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "adapters-private",
            "every device its own adapter on a shared frozen base",
            generated_models.AdaptersPrivateParams,
            "baselines.adapters_private:AdaptersPrivate",
            model="cnn-lora",
            robust=ALL,
        ),
        Entry(
            "encoder-private",
            "own encoders under a common last layer",
            averaging.PrivateLayersParams,
            "baselines.averaging.private_layers:EncoderPrivate",
            robust=ALL,
        ),
        Entry(
            "fccl",
            "models of any kind whose public logits go together",
            personal_models.FCCLParams,
            "baselines.fccl:FCCL",
            needs_public=True,
            relays=_always,
            robust=ALL,
        ),
        Entry(
            "fedadam",
            "FedAvg with Adam on the server",
            averaging.AdaptiveParams,
            "baselines.averaging.server_optimizers:FedAdam",
            robust=ALL,
        ),
        Entry(
            "fedavg",
            "the whole model on every device, averaged by samples",
            submodels.FedAvgParams,
            "baselines.fedavg:FedAvg",
            robust=ALL,
        ),
        Entry(
            "fedavg-masked",
            "FedAvg; a device uses only the classes that it holds",
            submodels.MaskedParams,
            "baselines.fedavg_masked:Masked",
            robust=ALL,
        ),
        Entry(
            "fedavgm",
            "FedAvg with momentum on the server",
            averaging.FedAvgMParams,
            "baselines.averaging.server_optimizers:FedAvgM",
            robust=ALL,
        ),
        Entry(
            "fedbn",
            "FedAvg; every device keeps its normalisation layers",
            averaging.PrivateLayersParams,
            "baselines.averaging.private_layers:FedBN",
            model="cnn-gn",
            robust=ALL,
        ),
        Entry(
            "fedconv",
            "small models by convolution of a large one, tuned on the server",
            FedConvParams,
            "fedconv.method:FedConv",
            relays=_exchange,
            robust=BY_UPDATE,
        ),
        Entry(
            "feddropout",
            "a random subset of channels, anew each round",
            submodels.FedDropoutParams,
            "baselines.feddropout:FedDropout",
            robust=ALL,
        ),
        Entry(
            "fedgh",
            "own extractors under a head that the server trains on class means",
            personal_models.FedGHParams,
            "baselines.fedgh:FedGH",
        ),
        Entry(
            "fedkemf",
            "own models and a small common network that teach each other",
            personal_models.FedKEMFParams,
            "baselines.fedkemf:FedKEMF",
            needs_public=True,
            relays=_always,
            robust=ALL,
        ),
        Entry(
            "fedmd",
            "models of any kind that agree on public examples",
            personal_models.FedMDParams,
            "baselines.fedmd:FedMD",
            needs_public=True,
            relays=_always,
            robust=ALL,
        ),
        Entry(
            "fedprox",
            "FedAvg with devices held near the global model",
            submodels.FedProxParams,
            "baselines.fedprox:FedProx",
            robust=ALL,
        ),
        Entry(
            "fedrolex",
            "a rolling window of channels",
            submodels.FedRolexParams,
            "baselines.fedrolex:FedRolex",
            robust=ALL,
        ),
        Entry(
            "fedyogi",
            "FedAvg with Yogi on the server",
            averaging.AdaptiveParams,
            "baselines.averaging.server_optimizers:FedYogi",
            robust=ALL,
        ),
        Entry(
            "fiarse",
            "the largest entries of the model, chosen by importance",
            submodels.FiarseParams,
            "baselines.fiarse:Fiarse",
            robust=ALL,
        ),
        Entry(
            "flexifed",
            "own architectures that average the layers they share",
            personal_models.FlexiFedParams,
            "baselines.flexifed:FlexiFed",
            robust=ALL,
        ),
        Entry(
            "framp",
            "a model written for each device, cut to the part that fits",
            FrampParams,
            "framp.method:Framp",
            model="cnn-gn",
            robust=BY_UPDATE,
        ),
        Entry(
            "hasa",
            "wider submodels for devices whose data is unlike everyone's",
            HasaParams,
            "hasa:Hasa",
            robust=ALL,
        ),
        Entry(
            "head-private",
            "a common encoder; every device keeps its last layer",
            averaging.PrivateLayersParams,
            "baselines.averaging.private_layers:HeadPrivate",
            robust=ALL,
        ),
        Entry(
            "hermes",
            "own pruned channels; what all have is averaged",
            pruned.PruningParams,
            "baselines.pruned.hermes:Hermes",
            robust=ALL,
        ),
        Entry(
            "heterofl",
            "nested widths: the first channels of every layer",
            submodels.HeteroFLParams,
            "baselines.heterofl:HeteroFL",
            model="cnn-gn",
            robust=ALL,
        ),
        Entry(
            "hyperflora",
            "adapters written from a device's classes",
            generated_models.HyperFLoRAParams,
            "hyperflora:HyperFLoRA",
            model="cnn-lora",
            relays=_pairs,
            robust=BY_UPDATE,
        ),
        Entry(
            "lotteryfl",
            "an own sparse ticket of the common model",
            pruned.PruningParams,
            "baselines.pruned.lotteryfl:LotteryFL",
            robust=ALL,
        ),
        Entry(
            "per-fedavg",
            "a common start that one own step makes personal",
            averaging.PerFedAvgParams,
            "baselines.averaging.per_fedavg:PerFedAvg",
            robust=ALL,
        ),
        Entry(
            "pfedclub",
            "own architectures, taught by models stitched from others' blocks",
            personal_models.PFedClubParams,
            "pfedclub:PFedClub",
            needs_public=True,
        ),
        Entry(
            "pfedhn",
            "a hypernetwork writes every device's whole model",
            generated_models.PFedHNParams,
            "baselines.pfedhn:PFedHN",
            robust=BY_UPDATE,
        ),
        Entry(
            "pfedhr",
            "own architectures, taught by models reassembled for all",
            personal_models.PFedHRParams,
            "baselines.pfedhr:PFedHR",
            needs_public=True,
        ),
        Entry(
            "pfedme",
            "personal models near a common one",
            averaging.PFedMeParams,
            "baselines.averaging.pfedme:PFedMe",
            robust=ALL,
        ),
        Entry(
            "scaffold",
            "FedAvg with control variates against drift",
            averaging.ScaffoldParams,
            "baselines.averaging.scaffold:Scaffold",
            robust=ALL,
        ),
        Entry(
            "scalefl",
            "narrower and shallower submodels with exits",
            submodels.ScaleFLParams,
            "baselines.scalefl:ScaleFL",
            model="cnn-exits",
            robust=ALL,
        ),
        Entry(
            "slice-tuned",
            "FedConv's control: slices with as much server training",
            FedConvParams,
            "baselines.slice_tuned:SliceTuned",
            robust=BY_UPDATE,
        ),
        Entry(
            "standalone",
            "every device alone, with a model of its own",
            personal_models.StandaloneParams,
            "baselines.standalone:Standalone",
        ),
        Entry(
            "tailorfl",
            "the channels that matter most for a device's data",
            pruned.TailorFLParams,
            "baselines.pruned.tailorfl:TailorFL",
            model="cnn-gn",
            robust=ALL,
        ),
    )
}


def find(name: str) -> Entry:
    """The method of that name, also one from outside, or an error that lists the names there are."""
    plugin = plugins.find(plugins.METHODS, name, taken=METHODS)
    if plugin is not None:
        return _from_outside(plugin)
    if name not in METHODS:
        names = [*METHODS, *(other.name for other in offered())]
        raise ConfigError(f"there is no method {name!r}; {suggest(name, names)}, or python:module:class")
    return METHODS[name]


def check_combine(entry: Entry, kind: Kind) -> None:
    """Raise ConfigError where a robust choice would not do to a method's average what it should."""
    if kind not in entry.robust:
        others = ", ".join(name for name, other in METHODS.items() if kind in other.robust)
        raise ConfigError(
            f"update.combine is {kind!r} but {entry.name} has no average that it could work on; choose one of "
            f"{', '.join(entry.robust)}, or a method that it works with: {others}"
        )


def offered() -> list[plugins.Plugin]:
    """The methods of installed packages; none of them is imported."""
    return plugins.offered(plugins.METHODS, taken=METHODS)


def _from_outside(plugin: plugins.Plugin) -> Entry:
    """What a class from outside says of itself."""
    from fedwright.server_runtime.methods.base import Method

    cls = plugin.load()
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise plugin.problem(f"it is no subclass of {Method.__module__}.Method; derive it from that")
    missing = sorted(cls.__abstractmethods__)
    if missing:
        raise plugin.problem(f"it lacks {', '.join(missing)}; a method must have them")
    if not isinstance(cls.params, type) or not is_dataclass(cls.params):
        raise plugin.problem("its `params` is no dataclass; write one with a default for each setting")
    summary = cls.summary or cls.__doc__ or cls.__name__
    return Entry(
        plugin.name,
        summary.strip().splitlines()[0],
        cls.params,
        cls,
        model=cls.model,
        needs_public=cls.needs_public,
        relays=cls.relays,
        robust=cls.robust,
    )
