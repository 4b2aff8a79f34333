"""Standalone: every device trains its own model on its own data and nothing is shared.

Paper: none; the floor that any method with unlike models must stand above.
Implemented: local training with the run's recipe; models of any architecture.
Left out: nothing.
Differs: a device's model rests on the server between rounds, so that its loss costs nothing; nobody else reads it.
"""

from dataclasses import dataclass, field

from fedwright.server_runtime.methods.base import Entry, Setting, register
from fedwright.server_runtime.methods.shared.personal_models import PersonalModelParams, PersonalModels


@dataclass(frozen=True)
class StandaloneParams:
    """own: who has which model."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)


class Standalone(PersonalModels):
    """w_m ← w_m + Δ_m."""

    def __init__(self, params: StandaloneParams, setting: Setting) -> None:
        super().__init__(params.own, setting)


register(Entry("standalone", "every device alone, with a model of its own", StandaloneParams, Standalone))
