"""What every error means: a code, what brings it about and what helps; `fedwright explain` and the site show it."""

from typing import NamedTuple


class Explanation(NamedTuple):
    """One kind of error. causes, cures: in the same order, as far as they belong together."""

    code: str
    meaning: str
    causes: tuple[str, ...]
    cures: tuple[str, ...]


def _kind(code: str, meaning: str, causes: str, cures: str) -> Explanation:
    return Explanation(code, meaning, tuple(causes.split(" | ")), tuple(cures.split(" | ")))


# By the name of the error's class; a kind that is not listed is explained as the kind that it belongs to.
EXPLANATIONS = {
    "FedwrightError": _kind(
        "FW000",
        "an error of Fedwright that has no kind of its own",
        "see the sentence itself",
        "do what its last part says",
    ),
    "ConfigError": _kind(
        "FW100",
        "a setting is unknown, of the wrong type or impossible",
        "a key is misspelt or in the wrong section | two settings exclude each other"
        " | a name of a method, model, data set or profile is not known here",
        "run `fedwright validate run.toml`: it names the section and the valid keys | keep the one that you mean"
        " | `fedwright methods`, `models`, `datasets` and `profiles` list the names",
    ),
    "DataError": _kind(
        "FW110",
        "a data set or a data source cannot be used as it is",
        "the file or folder is not there, or not of the form that its scheme says"
        " | x and y differ in length, or labels are not whole numbers from 0 on | there are too few rows",
        "`fedwright device doctor --data SOURCE` says what it finds | save x as [n, ...] and y as [n]"
        " | take fewer devices, or more data",
    ),
    "ProtocolError": _kind(
        "FW200",
        "the other side sent something that cannot be accepted",
        "an agent or a server of another major version | a program that is no Fedwright on its topics",
        "install the same release on both sides | give the fleet a name of its own, or certificates",
    ),
    "BadMessage": _kind(
        "FW201",
        "the bytes do not decode to a known message",
        "another program publishes on these topics | a release that is too new or too old",
        "look at who may publish there | install the same release on both sides",
    ),
    "BadBlob": _kind(
        "FW202",
        "a chunk or a blob does not match its hash, size or form",
        "a disk or a file was damaged | the blob is no longer there",
        "delete the state folder's blobs: they are fetched again | start the run again from `server rollback`",
    ),
    "BadArtifact": _kind(
        "FW203",
        "a hash, shape, operator or opset in a training graph is not what it must be",
        "the graph's files were changed or lost | the graph was built for a newer runtime, or for another backend",
        "build or fetch it again | upgrade onnxruntime on the device",
    ),
    "BadUpdate": _kind(
        "FW204",
        "an update's tensors are not finite, not of the right shape, or too late",
        "training diverged on the device | the device answered after its round had closed",
        "lower train.learning_rate, or set update.clip_norm | raise fleet.deadline_s",
    ),
    "LinkError": _kind(
        "FW300",
        "the broker cannot be reached or turned us away",
        "wrong host or port, or a firewall | wrong password | a certificate that the broker does not know",
        "`fedwright device doctor --broker URL` tries it step by step"
        " | take the line that `fedwright server run` prints | `fedwright server enroll` makes them",
    ),
    "DeviceError": _kind(
        "FW400",
        "this device cannot do what it was asked",
        "see the sentence itself | the disk of the state folder is full",
        "run `fedwright device doctor` there | free some space, or name another folder with --state",
    ),
    "OverBudget": _kind(
        "FW401",
        "the task needs more memory than is free",
        "the model or the batch is too large for what is free now | other programs took the memory",
        "take a method that gives devices smaller models, or lower train.batch"
        " | the server offers less by itself; see [budget] memory_mb",
    ),
    "IdentityTaken": _kind(
        "FW402",
        "another live device already uses this id",
        "two boards have the same host name | an agent runs already, for example as a service",
        "give each its own with --device ID | stop one of them",
    ),
    "PolicyRefused": _kind(
        "FW403",
        "the owner of this device does not allow it",
        "a rule of policy.toml forbids what the server asks for",
        "the sentence names the rule; only the owner can change the file",
    ),
    "RoundError": _kind(
        "FW500",
        "the server cannot finish this round",
        "see the sentence itself",
        "`fedwright server status` shows what was met on the way; `server resume` goes on",
    ),
    "NoQuorum": _kind(
        "FW501",
        "too few devices answered before the deadline",
        "devices are off or too slow | the quorum is larger than what usually answers",
        "raise fleet.deadline_s, or bring them back and `fedwright server resume` | lower fleet.quorum_ratio",
    ),
    "EngineError": _kind(
        "FW550",
        "the machines that do the work cannot be reached or were lost",
        "no cluster runs at engine.address | its versions are others | workers ran out of memory",
        "start Ray there, or set engine.address = 'local' | install the same everywhere"
        " | give machines more memory or lower engine.workers; the same command goes on",
    ),
    "StorageError": _kind(
        "FW600",
        "what a run keeps on disk cannot be read or written",
        "the disk is full or read-only | another process holds the run | files were damaged",
        "free some space; what was finished is kept | let it end first"
        " | `fedwright server check RUN` finds them, `server rollback` goes back before them",
    ),
    "LeaseLost": _kind(
        "FW602",
        "another server has taken the run over",
        "this server was silent for longer than the run's lease, and a standby went on with it",
        "leave it to the other one; start this one again as the standby",
    ),
    "BuildError": _kind(
        "FW700",
        "a model cannot be turned into a training graph",
        "its forward pass cannot be traced for export | input_shape or classes are not what the model takes",
        "export it with torch.onnx by itself to see where it stops | set model.input_shape and model.classes",
    ),
    "UnsupportedOperator": _kind(
        "FW701",
        "an operator of the model has no gradient rule",
        "a layer that no gradient is written for",
        "replace that layer by one made of supported operators, or keep it frozen with `trainable`",
    ),
    "ModuleNotFoundError": _kind(
        "FW900",
        "a package is missing",
        "the extra for this command is not installed",
        'pip install "fedwright[server]" on a host, "fedwright[device]" on a device',
    ),
    "OSError": _kind(
        "FW910",
        "the system refused a file or a connection",
        "a path is not there, not allowed, or its disk is full | a port is taken",
        "the sentence says what and where | stop what listens there, or choose another port",
    ),
}
BY_CODE = {explanation.code: (name, explanation) for name, explanation in EXPLANATIONS.items()}


def explain(error: BaseException | type[BaseException]) -> Explanation:
    """The explanation of an error's kind, or of the nearest kind above it."""
    kind = error if isinstance(error, type) else type(error)
    known = [cls.__name__ for cls in kind.__mro__ if cls.__name__ in EXPLANATIONS]
    return EXPLANATIONS[known[0] if known else "FedwrightError"]
