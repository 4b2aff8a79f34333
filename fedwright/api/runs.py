"""`fedwright.Run`: a finished run to look at, plot, use and export."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import MEASURES
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.run_model import export_device, model_of_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

Array = NDArray[Any]
Part = Literal["devices", "rounds", "evaluations"]


class Run:
    """What a run came to.

    devices, rounds, evaluations: a dictionary per device, per round, and per measurement of the whole fleet; the same
    that `--json` writes. folder: where the run is kept.
    """

    def __init__(self, config: RunConfig, result: dict[str, Any]) -> None:
        self.config = config
        self.folder = Path(result["folder"])
        self.devices: list[dict[str, Any]] = result["devices"]
        self.rounds: list[dict[str, float]] = result["metrics"]
        self.evaluations: list[dict[str, Any]] = result.get("evaluations", [])

    @property
    def accuracy(self) -> float:
        """Mean over the devices of what their models get right on the devices' own held-out data, at the end.

        ConfigError for tasks that have no share of right answers; their figures are in `measures`.
        """
        known = [row["accuracy_after"] for row in self.devices if row["accuracy_after"] is not None]
        if known and not self.evaluations:
            return float(np.mean(known))
        measures = self.measures
        if measures and not {"mean", "accuracy"} & measures.keys():
            raise ConfigError(f"this run is judged by {', '.join(measures)}; read Run.measures")
        return measures.get("mean", measures.get("accuracy", 0.0))

    @property
    def measures(self) -> dict[str, float]:
        """The fleet's figures of the last measurement, by name: of classes accuracy and perplexity, else the task's.

        Of a run over a broker, those of its last round.
        """
        if self.evaluations:
            last = self.evaluations[-1]
            return {name: float(value) for name, value in last.items() if name not in ("round", "part", "devices")}
        last = self.rounds[-1] if self.rounds else {}
        return {name: last[f"{name}_after"] for name in sorted(MEASURES) if f"{name}_after" in last}

    def frame(self, part: Part = "devices") -> Any:
        """Devices, rounds or evaluations as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as err:
            raise ConfigError(
                'Run.frame needs pandas: pip install "fedwright[notebook]"; or read Run.devices, .rounds, .evaluations'
            ) from err
        tables = {"devices": self.devices, "rounds": self.rounds, "evaluations": self.evaluations}
        if part not in tables:
            raise ConfigError(f"there is no table {part!r}; choose one of {', '.join(tables)}")
        rows = [{key: value for key, value in row.items() if key != "devices"} for row in tables[part]]
        frame = pandas.DataFrame(rows)
        return frame.set_index("id") if part == "devices" else frame

    def plot(self) -> "Figure":
        """Accuracy over the rounds (mean, tenth percentile, worst) beside each device's; of a task, its figures.

        Of a run over a broker, its figures before and after training in every round.
        """
        from matplotlib.figure import Figure

        if not self.evaluations:
            return self._plot_rounds(Figure(figsize=(10, 4), layout="constrained"))
        if "mean" not in self.evaluations[-1]:
            return self._plot_measures(Figure(figsize=(10, 4), layout="constrained"))
        figure = Figure(figsize=(10, 4), layout="constrained")
        over, each = figure.subplots(1, 2)
        numbers = [entry["round"] for entry in self.evaluations]
        for name, label in (("mean", "mean"), ("p10", "tenth percentile"), ("worst", "worst device")):
            over.plot(numbers, [100 * entry[name] for entry in self.evaluations], marker="o", label=label)
        over.set(xlabel="round", ylabel="accuracy in %", title=f"{self.config.method.name} over the rounds")
        over.legend()
        places = np.arange(len(self.devices))
        for shift, key, label in ((-0.2, "accuracy_before", "before"), (0.2, "accuracy_after", "after")):
            each.bar(places + shift, [100 * (row[key] or 0.0) for row in self.devices], width=0.4, label=label)
        each.set(xlabel="device", ylabel="accuracy in %", title="each device's model on its own data")
        each.legend()
        return figure

    def _plot_measures(self, figure: "Figure") -> "Figure":
        """Each measure of the task over the rounds: the mean over devices and the worst device."""
        names = [name for name in self.measures if name in MEASURES]
        numbers = [entry["round"] for entry in self.evaluations]
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for key, label in ((name, "mean"), (f"{name}_worst", "worst device")):
                axes.plot(numbers, [entry.get(key, np.nan) for entry in self.evaluations], marker="o", label=label)
            axes.set(xlabel="round", title=name)
            axes.legend()
        return figure

    def _plot_rounds(self, figure: "Figure") -> "Figure":
        """Each figure of the rounds: of the model sent out, and of what devices made of it."""
        numbers = np.arange(len(self.rounds)) + 1
        names = list(self.measures)
        for axes, name in zip(figure.subplots(1, max(1, len(names)), squeeze=False)[0], names, strict=False):
            for when, label in (("before", "before training"), ("after", "after training")):
                values = [entry.get(f"{name}_{when}", np.nan) for entry in self.rounds]
                axes.plot(numbers, values, marker="o", label=label)
            axes.set(xlabel="round", title=name)
            axes.legend()
        return figure

    def weights(self, device: str = "") -> dict[str, Array]:
        """The tensors of a device's model; of no device, those of the one that all share."""
        return dict(model_of_run(self.config, device).weights)

    def model(self, device: str = "") -> "nn.Module":
        """A device's model as a torch module in evaluation mode; of no device, the one that all share."""
        import torch

        from fedwright.server_runtime import zoo

        found = model_of_run(self.config, device)
        module = zoo.create(found.spec, seed=0)
        state = {name: torch.from_numpy(np.array(value)) for name, value in found.weights.items()}
        module.load_state_dict(state, strict=False)
        return module.eval()

    def export(self, file: str | Path, device: str = "") -> None:
        """Write a device's model, or the one that all share, as one plain ONNX file."""
        export_device(self.config, device, Path(file))

    def __repr__(self) -> str:
        """In one line."""
        done = f"{len(self.rounds)} rounds, {len(self.devices)} devices"
        measures = self.measures
        if not measures or {"mean", "accuracy"} & measures.keys():
            figures = f"accuracy {self.accuracy:.1%}"
        else:
            figures = ", ".join(f"{name} {value:.3g}" for name, value in measures.items() if name in MEASURES)
        return f"<Run {self.config.method.name}: {done}, {figures}, in {self.folder}>"
