"""The model that a device should use by what a run has come to, and that model as a file."""

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.artifacts.standalone import export_model
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.method_setting import make_method
from fedwright.server_runtime.methods.base import MethodState, Tensors
from fedwright.server_runtime.rounds.device_records import device_records
from fedwright.server_runtime.rounds.privacy.round_privacy import model_notes
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.run_folder.blobs import open_blobs
from fedwright.server_runtime.run_folder.folder import RunFolder, folder_of
from fedwright.server_runtime.run_folder.rounds import open_rounds
from fedwright.server_runtime.spec import ModelSpec, Structure

log = logging.getLogger(__name__)

# Ids that an error names.
SHOWN = 20


@dataclass(frozen=True)
class RunModel:
    """The model that a device should use; kept: layers of it that never left the device."""

    spec: ModelSpec
    weights: Tensors
    class_names: tuple[str, ...]
    kept: tuple[str, ...]


def model_of_run(config: RunConfig, device: str) -> RunModel:
    """What a device should use now, by the last finished round of a run; that of no device is the global model."""
    folder = folder_of(config)
    with plain_storage_errors(folder.store), closing(open_rounds(folder, config.store.database)) as store:
        record = store.run()
        closed = store.closed()
        if record is None or record.spec is None or not closed:
            raise ConfigError(f"run {config.run.name} in {folder.path} has no finished round to export yet")
        _check_known(device, device_records(store, rounds=config.run.rounds), folder)
        method = make_method(config, record.spec, class_names=record.class_names)
        method.restore(MethodState.read(open_blobs(folder, config, record).path(closed[-1].state)))
    spec, weights = method.model_of(device)
    return RunModel(spec, weights, record.class_names, method.personal_layers(device))


def export_device(config: RunConfig, device: str, target: Path) -> None:
    """Write the model that a device should use now as a plain ONNX file; that of no device is the global one."""
    found = model_of_run(config, device)
    if found.kept:
        names = ", ".join(found.kept)
        log.warning("%s never left %s; the exported model has the server's own in place of them", names, device)
    artifact = Builder(folder_of(config).artifacts).build(Structure(found.spec))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(
        export_model(
            artifact, found.weights, class_names=found.class_names, notes=model_notes(config, folder_of(config).path)
        )
    )


def _check_known(device: str, known: Mapping[str, DeviceRecord], folder: RunFolder) -> None:
    """Raise ConfigError for a device that has never answered in a run."""
    if device and device not in known:
        names = sorted(known)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ConfigError(
            f"no device {device!r} has answered in the run in {folder.path}; those that have are "
            f"{', '.join(names[:SHOWN])}{more}"
        )
