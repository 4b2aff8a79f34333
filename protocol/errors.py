"""Every error Fedwright raises on purpose, drawn once.

FedwrightError
  x ConfigError          a setting is unknown, of the wrong type or impossible
  x DataError            a data set or a data source cannot be used as it is
  x ProtocolError        the other side sent something we cannot accept
    - BadMessage         the bytes do not decode to a known message
    - BadBlob            a chunk or a blob does not match its hash, size or form
    - BadArtifact        a hash, shape, operator or opset in an artifact is not what it must be
    - BadUpdate          an update's tensors are not finite, not of the right shape, or too late
  x LinkError            the broker cannot be reached or turned us away
  x DeviceError          this device cannot do what it was asked
    - OverBudget         the task needs more memory than is free
    - IdentityTaken      another live device already uses this id
    - PolicyRefused      the owner of this device does not allow it
  x RoundError           the server cannot finish this round
    - NoQuorum           too few devices answered before the deadline
    - LeaseLost          another server has taken the run over
  x EngineError          the machines that do the work cannot be reached or were lost
  x StorageError         what a run keeps on disk cannot be read or written
  x BuildError           a model cannot be turned into a training graph
    - UnsupportedOperator  an operator in it has no gradient rule

A message is one sentence: what is wrong, where, and what to do about it.
"""


class FedwrightError(Exception):
    """Base of all errors that end in one sentence for the user instead of a traceback."""


class ConfigError(FedwrightError):
    """A setting is unknown, of the wrong type or impossible."""


class DataError(FedwrightError):
    """A data set or a data source cannot be used as it is."""


class ProtocolError(FedwrightError):
    """The other side sent something we cannot accept."""


class BadMessage(ProtocolError):
    """The bytes do not decode to a known message."""


class BadBlob(ProtocolError):
    """A chunk or a blob does not match its hash, size or form."""


class BadArtifact(ProtocolError):
    """A hash, shape, operator or opset in an artifact is not what it must be."""


class BadUpdate(ProtocolError):
    """An update's tensors are not finite, not of the right shape, or too late."""


class LinkError(FedwrightError):
    """The broker cannot be reached or turned us away."""


class DeviceError(FedwrightError):
    """This device cannot do what it was asked."""


class OverBudget(DeviceError):
    """The task needs more memory than is free."""

    def __init__(self, need_bytes: int, free_bytes: int) -> None:
        super().__init__(f"needs {need_bytes / 1e6:.0f} MB, {free_bytes / 1e6:.0f} MB free")
        self.need_bytes = need_bytes
        self.free_bytes = free_bytes


class IdentityTaken(DeviceError):
    """Another live device already uses this id."""


class PolicyRefused(DeviceError):
    """The owner of this device does not allow it; rule: the key of the policy that says so; least: what it asks for."""

    def __init__(self, rule: str, detail: str, *, least: int = 0) -> None:
        super().__init__(f"the policy of this device's owner ({rule}): it {detail}")
        self.rule = rule
        self.least = least


class RoundError(FedwrightError):
    """The server cannot finish this round."""


class NoQuorum(RoundError):
    """Too few devices answered before the deadline."""


class LeaseLost(RoundError):
    """Another server has taken the run over."""


class EngineError(FedwrightError):
    """The machines that do the work cannot be reached or were lost."""


class StorageError(FedwrightError):
    """What a run keeps on disk cannot be read or written."""


class BuildError(FedwrightError):
    """A model cannot be turned into a training graph."""


class UnsupportedOperator(BuildError):
    """An operator of the model has no gradient rule."""

    def __init__(self, operator: str, node: str, module: str) -> None:
        super().__init__(
            f"operator {operator} (node {node}, module {module or 'the model itself'}) has no gradient rule; write "
            "that layer with other operators (`fedwright artifact build --supported` lists them)"
        )
        self.operator = operator
        self.node = node
        self.module = module
