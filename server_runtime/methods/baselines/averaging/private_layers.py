"""FedAvg of a part of the model, while every device keeps the rest to itself: its head, its encoder or its norms.

Paper: Arivazhagan et al., Federated Learning with Personalization Layers (2019) and Collins et al., Exploiting Shared
Representations for Personalized Federated Learning (FedRep, ICML 2021), for head-private; Liang et al., Think Locally,
Act Globally (LG-FedAvg, 2020), for encoder-private; Li et al., FedBN (ICLR 2021), for fedbn.
Implemented: private layers stay on the device, are trained on from task to task and never leave it; the others are
averaged by samples.
Left out: FedRep's two phases (head first, then encoder), so that head-private is FedPer; LG-FedAvg's auxiliary tasks.
Differs: the head is the last layer with one row per class. FedBN keeps every kind of normalisation, running statistics
included. Devices that never train have the server's private layers, which are those of the beginning.
"""

from abc import abstractmethod
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.artifacts.export import norm_tensors
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Setting, Tensors
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.averaging import PrivateLayersParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams


class PrivateLayers(FedAvg):
    """W_s ← W_s + Σ n_i Δ_is / Σ n_i for what is shared; each device its own for the rest."""

    def __init__(self, params: PrivateLayersParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        del params
        private = self.private_names(setting)
        self._private = tuple(name for name in self._weights if name in private)
        if not self._private or len(self._private) == len(self._weights):
            raise ConfigError(
                f"model {setting.spec.model} cannot be divided into private layers and shared ones by this method;"
                f" {'all' if self._private else 'none'} of its tensors would be private; choose another model"
            )

    @abstractmethod
    def private_names(self, setting: Setting) -> frozenset[str]:
        """The tensors that a device keeps to itself."""

    def _assignment(self, device: str, round_number: int) -> Assignment:
        whole = super()._assignment(device, round_number)
        return replace(whole, returns=structs.replace(whole.returns, personal=list(self._private)))

    def counted(self, update: CheckedUpdate) -> Tensors:
        """A change without private layers."""
        return {name: value for name, value in update.tensors.items() if name not in self._private}

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """The same on every device."""
        return self._private


class HeadPrivate(PrivateLayers):
    """The last layer is private."""

    def private_names(self, setting: Setting) -> frozenset[str]:
        """The classifier."""
        return frozenset(classifier_names(setting.spec, setting.initial))


class EncoderPrivate(PrivateLayers):
    """All but the last layer is private."""

    def private_names(self, setting: Setting) -> frozenset[str]:
        """Everything but the classifier."""
        head = classifier_names(setting.spec, setting.initial)
        return frozenset(setting.initial) - frozenset(head) if head else frozenset()


class FedBN(PrivateLayers):
    """Normalisation layers are private."""

    def private_names(self, setting: Setting) -> frozenset[str]:
        """Scales, shifts and running statistics of normalisation layers."""
        return norm_tensors(zoo.create(setting.spec, seed=0))
