"""What a run came to, as plain data for programs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedwright.cli.tables import record_row
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds.notices import read_notices
from fedwright.server_runtime.run_folder.folder import SIMULATED_SUFFIX

# To look at a run takes no torch.
if TYPE_CHECKING:
    from fedwright.server_runtime.run_reader import PastRun
    from fedwright.simulation.simulate import FleetEvaluation, Simulated


def run_result(past: "PastRun") -> dict[str, Any]:
    """A run over a broker, as far as it has come; `fedwright server status --json` prints it."""
    return {
        "run": past.config.run.name,
        "kind": past.kind,
        "folder": str(past.folder.path),
        "method": past.config.method.name,
        "rounds": past.config.run.rounds,
        "rounds_done": past.rounds_done,
        "complete": past.complete,
        "rounds_kept": list(past.kept),
        "classes": list(past.class_names),
        "privacy": None if past.privacy is None else {**past.privacy.facts(), "devices": dict(past.privacy.by_device)},
        "metrics": past.metrics,
        "devices": [record_row(record) for _, record in sorted(past.devices.items())],
        "notices": [asdict(notice) for notice in read_notices(past.folder.path)],
        "model_path": str(past.folder.model) if past.folder.model.exists() else None,
    }


def simulation_result(config: RunConfig, found: "Simulated") -> dict[str, Any]:
    """A simulation; `fedwright simulate --json` writes it."""
    return {
        "run": config.run.name.removesuffix(SIMULATED_SUFFIX),
        "folder": str(found.folder),
        "method": config.method.name,
        "rounds": config.run.rounds,
        "round_s": found.round_s,
        "metrics": found.outcome.metrics,
        "devices": [record_row(record) for _, record in sorted(found.outcome.devices.items())],
        "evaluations": [_evaluation(entry) for entry in found.evaluations],
        "model_path": None if found.outcome.model is None else str(found.outcome.model),
    }


def _evaluation(entry: "FleetEvaluation") -> dict[str, Any]:
    devices = {
        d.device: {"accuracy": d.accuracy, "loss": d.loss, "n": d.n}
        if d.measures is None
        else {**d.measures, "loss": d.loss, "n": d.n}
        for d in entry.devices
    }
    return {"round": entry.round, "part": entry.part, **entry.summary(), "devices": devices}
