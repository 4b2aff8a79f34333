"""Pictures of FedConv: sensitivity, feature maps of compressed models, distributions of parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedwright.benchmarks.harness.plots import save_pictures
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.methods.base import Setting, Tensors
from fedwright.server_runtime.methods.baselines.slice_tuned import SliceTuned
from fedwright.server_runtime.methods.fedconv.method import FedConv
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.params.submodels import Levels
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import deal, reserve

MAPS, BINS = 6, 60
RATIOS = (0.25, 0.5, 0.75)


def draw(found: Mapping[str, Any], tables: Mapping[str, Any], result: Path) -> list[str]:
    """Write all pictures beside a result; returns their file names."""
    pictures = {"sensitivity": sensitivity(tables)} if found["suite"]["sensitivity"] else {}
    models, example = first_models(found)
    pictures["distributions"] = distributions(models)
    if example.ndim == 3:
        pictures["maps"] = feature_maps(models, example)
    return save_pictures(result, pictures)


def first_models(found: Mapping[str, Any]) -> tuple[dict[str, tuple[ModelSpec, Tensors]], Any]:
    """The pre-trained large model, its compressed forms and its slices, and one example to look at."""
    suite = found["suite"]
    dealing = {key: suite[key] for key in ("devices", "rows") if key in suite}
    data = {**found["config"], "method": {"name": "fedavg"}, "public": {"rows": suite["public"]}}
    data["simulate"] = {**found["config"]["simulate"], **dealing}
    config = config_from_dict(data, where="pictures")
    dealt, public = reserve(deal(config.simulate, seed=1), config.public, seed=1)
    spec = ModelSpec(config.model.model, dealt.input_shape, dealt.classes)
    setting = Setting(spec, config.train.optimizer, initial_weights(zoo.create(spec, seed=1)), 1e-3, 32, 1, 1)
    setting = replace(setting, public=public)
    params = shown_params(found)
    conv, cut = FedConv(params, setting), SliceTuned(replace(params, compress_epochs=0), setting)
    models = {"global": conv.model_of("")}
    for place, ratio in enumerate(RATIOS):
        models[f"compressed {ratio:g}"] = conv.model_of(f"d-{place}")
        models[f"sliced {ratio:g}"] = cut.model_of(f"d-{place}")
    assert public is not None
    return models, public.x[0]


def shown_params(found: Mapping[str, Any]) -> FedConvParams:
    """The suite's own settings of FedConv, at the ratios that are drawn."""
    config = config_from_dict(
        {**found["config"], "method": {"name": "fedconv", **found["params"]["fedconv"]}}, where="pictures"
    )
    assert isinstance(config.method.params, FedConvParams)
    return replace(config.method.params, levels=Levels(sizes=(*RATIOS, 1.0)))


def feature_maps(models: Mapping[str, tuple[ModelSpec, Tensors]], example: Any) -> Figure:
    """What the first convolution of each model makes of an example (the paper's figure 3)."""
    figure, axes = _figure(len(models), MAPS, size=1.1)
    for row, (label, (spec, weights)) in enumerate(models.items()):
        module = zoo.create(spec, seed=0)
        module.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in weights.items()}, strict=False)
        first = next(layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d))
        with torch.no_grad():
            maps = torch.relu(first(torch.from_numpy(example)[None]))[0].numpy()
        for column in range(MAPS):
            axis = axes[row * MAPS + column]
            axis.axis("off")
            if column < len(maps):
                axis.imshow(maps[column], cmap="viridis")
        axes[row * MAPS].set_title(label, fontsize=6, loc="left")
    return figure


def distributions(models: Mapping[str, tuple[ModelSpec, Tensors]]) -> Figure:
    """How the weights of each model are spread, beside the global one's (the paper's figure 7)."""
    shown = [label for label in models if label != "global"]
    figure, axes = _figure(1, len(shown), size=2.4)
    whole = _weights(models["global"][1])
    low, high = np.percentile(whole, [0.5, 99.5])
    edges = np.linspace(low, high, BINS)
    for axis, label in zip(axes, shown, strict=True):
        axis.hist(whole, bins=edges, density=True, alpha=0.5, label="global")
        axis.hist(_weights(models[label][1]), bins=edges, density=True, alpha=0.5, label=label)
        axis.legend(fontsize=6, loc="upper right")
        axis.set_xlabel("weight", fontsize=7)
    return figure


def _weights(tensors: Tensors) -> Any:
    return np.concatenate([value.reshape(-1) for value in tensors.values() if value.ndim > 1])


def sensitivity(tables: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Accuracy over the ratio, the public rows and the number of devices."""
    kinds = ("ratio", "public", "devices")
    figure, axes = _figure(1, len(kinds), size=3.2)
    for axis, kind in zip(axes, kinds, strict=True):
        rows = tables[f"sensitivity: {kind}"]
        for name in ("global", "mean"):
            axis.plot([row[kind] for row in rows], [row[name] for row in rows], marker=".", label=name)
        axis.set(xlabel=kind, ylabel="accuracy in percent")
        axis.legend(fontsize=7, loc="upper right")
    return figure


def _figure(rows: int, columns: int, *, size: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(size * columns, size * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()
