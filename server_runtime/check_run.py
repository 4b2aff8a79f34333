"""What would end a run at its start, found before anybody waits for devices."""

from collections.abc import Mapping
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.protocol.secure.graph import LEAST_DEVICES
from fedwright.protocol.support import plugins
from fedwright.protocol.support.metrics import check_installed
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.model_names import is_file, resolve
from fedwright.server_runtime.needed_packages import check_accounting, check_engine, check_stores
from fedwright.server_runtime.public_data.examples import PublicData, need_public, read_public
from fedwright.server_runtime.run_folder.folder import check_place
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.track.base import check_tools

# What a user's own code may raise when it is given data that it was not made for.
OWN_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def check_server(config: RunConfig) -> None:
    """Raise unless what the config names is here: the folder of trust, the public file, the code of own models."""
    if config.fleet.trust is not None:
        from fedwright.server_runtime.fleet.trust import Authority

        Authority(Path(config.fleet.trust)).check_signing()
    if config.metrics.listen:
        check_installed()
    check_tools(config.track.to)
    check_accounting(config)
    check_stores(config)
    check_engine(config)
    check_place(config)
    if config.public.given:
        read_public(config.public)
    if config.model.weights is not None:
        from fedwright.server_runtime.artifacts.pretrained import read_weights

        read_weights(config.model.weights)
    if is_file(config.model.model):
        from fedwright.server_runtime.zoo.onnx_file import read

        read(config.model.model)
    for name in sorted(own_models(config)):
        from fedwright.server_runtime.zoo import own_function

        own_function(name)
    if config.model.loss:
        from fedwright.server_runtime.artifacts.own_loss import load_loss

        load_loss(config.model.loss)
    check_hidden(config, config.fleet.devices, setting="fleet.devices")


def own_models(config: RunConfig) -> set[str]:
    """The models that a config names by a user's own code."""
    own = getattr(config.method.params, "own", None)
    named = {config.model.model, *getattr(own, "models", ()), *getattr(own, "devices", {}).values()}
    return {name for name in map(resolve, named) if plugins.is_reference(name)}


def own_code(config: RunConfig) -> set[str]:
    """The models, the method and the loss of a config that are a user's own code."""
    return own_models(config) | ({config.method.name} - METHODS.keys()) | ({config.model.loss} - {""})


def check_hidden(config: RunConfig, devices: int, *, setting: str) -> None:
    """Raise when a method asks for sums that hide their parts and the fleet is too small to hide any."""
    if getattr(config.method.params, "secure_sum", False) and devices < LEAST_DEVICES:
        raise ConfigError(
            f"method.secure_sum hides the counts of single devices in sums over {LEAST_DEVICES} or more, but {setting} "
            f"is {devices}; set it to {LEAST_DEVICES} or more, or set method.secure_sum = false"
        )


def check_method(
    config: RunConfig, data: ModelSpec, public: PublicData | None, *, reports: Mapping[str, Report]
) -> None:
    """Make model and method as a run would and plan a round, so that what does not go together is said.

    data: shape and classes of the data. public: the server's examples, where they come from no file.
    """
    from fedwright.server_runtime import zoo
    from fedwright.server_runtime.method_setting import make_method

    spec = zoo.named(config.model.model, data)
    if find(config.method.name).needs_public and not config.public.given:
        need_public(public, config.method.name)
    try:
        method = make_method(config, spec, public=public)
        # Sums that hide their parts need devices that answer.
        if not getattr(config.method.params, "secure_sum", False):
            method.meet(reports)
            method.assign(reports, 1)
    except OWN_ERRORS as err:
        names = ", ".join(sorted(own_code(config)))
        if not names:
            raise
        raise ConfigError(
            f"{names} cannot be used for samples of shape {list(spec.input_shape)} and {spec.classes} classes: "
            f"{type(err).__name__}: {err}; mend it, or set model.input_shape if your samples differ"
        ) from err


def assumed(config: RunConfig) -> ModelSpec:
    """Shape and classes: as configured, else those of the public file, else those of an example for the model."""
    from fedwright.server_runtime import zoo

    section = config.model
    shape, classes = section.input_shape, section.class_count
    entry = zoo.MODELS.get(section.model.partition("@")[0])
    if config.public.given:
        found = read_public(config.public)
        shape = shape or tuple(found.x.shape[1:])
        classes = classes or (None if found.y is None else max(2, int(found.y.max(initial=0)) + 1))
    if entry is not None:
        shape, classes = shape or entry.example_shape, classes or entry.example_classes
    if shape is None:
        raise ConfigError(f"the input of {section.model} is not known before devices come; set model.input_shape")
    return ModelSpec(section.model, shape, classes or 2, goal=section.goal, loss=section.loss)
