"""What methods share whose server gives each device a teacher that was put together from others' blocks."""

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwright.protocol.messages import Refusal, Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.budget import step_count
from fedwright.server_runtime.blocks.pfedclub import similarity
from fedwright.server_runtime.blocks.pfedclub.block_search import Block, BlockGroups, Chain
from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import Candidate, side_by_side
from fedwright.server_runtime.blocks.torch_device import on_device
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.params.personal_models import PersonalModelParams
from fedwright.server_runtime.methods.shared.budget_fit import budget_of, cost_of, fits
from fedwright.server_runtime.methods.shared.personal_models import (
    PersonalModels,
    models_state,
    restored_models,
)
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.public_data.examples import need_public
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from fedwright.server_runtime.zoo.stitched import Stitched, cut

log = logging.getLogger(__name__)

TEACHER = "teacher/"


@dataclass(frozen=True)
class Teacher:
    """A model that only teaches."""

    spec: ModelSpec
    weights: Tensors

    @property
    def parameters(self) -> int:
        """How many its blocks and stitches have."""
        return count_parameters(self.spec)


@dataclass(frozen=True)
class Pupil:
    """A device that has just trained: its blocks with their weights, and what its model says of the public examples."""

    device: str
    chain: Chain
    blocks: tuple[nn.Module, ...]
    logits: Tensor
    _taken: dict[int, Tensor] = field(default_factory=dict)

    def taken(self, block: Block, x: Tensor) -> Tensor:
        """What one of the blocks takes when the model is given x, the same rows in every call."""
        if not self._taken:
            with torch.no_grad():
                for index, layer in enumerate(self.blocks):
                    self._taken[index] = x
                    x = layer(x)
        return self._taken[block.index]


@dataclass(frozen=True)
class BoardLimits:
    """Where a device's update came from: the round and the memory that was free when it was planned."""

    round: int
    free_bytes: int


class TeacherMethod(PersonalModels):
    """min over w_m of CE(w_m) + λ KL(teacher ‖ w_m) on each device; the server makes the teachers."""

    name = ""
    distill = 0.2

    def __init__(self, own: PersonalModelParams, setting: Setting) -> None:
        super().__init__(own, setting)
        self.teachers: dict[str, Teacher] = {}
        self._trained: dict[str, BoardLimits] = {}
        self._whole: set[str] = set()

    @abstractmethod
    def make_teachers(self, pupils: Mapping[str, Pupil], known: Mapping[str, BoardLimits]) -> dict[str, list[Teacher]]:
        """For each device teachers to choose from, best first; a device without any goes on alone."""

    @cached_property
    def _public_order(self) -> NDArray[np.int64]:
        """The server's examples in any order but their own: the first of a sorted file are all of one class."""
        rng = np.random.default_rng(self.seed_of("public order"))
        return rng.permutation(len(need_public(self.setting.public, self.name)))

    @cached_property
    def public_x(self) -> Tensor:
        """The server's examples, shuffled."""
        x = need_public(self.setting.public, self.name).x
        return side_by_side(on_device(x[self._public_order], self.setting.device))

    @cached_property
    def public_y(self) -> Tensor | None:
        """Their labels, if there are any."""
        y = need_public(self.setting.public, self.name).y
        return None if y is None else on_device(y[self._public_order], self.setting.device)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone trains its own model, with its teacher where there is one that fits."""
        need_public(self.setting.public, self.name)
        return super().assign(reports, round_number)

    def assignment(self, device: str, round_number: int) -> Assignment:
        """What a device does this round."""
        free_bytes = self.reports[device].free_bytes
        plan = super().assignment(device, round_number)
        taught = self._with_teacher(plan, self.teachers.get(device))
        if not self._fits(device, taught, free_bytes):
            taught = plan
        return replace(taught, marks=(round_number, free_bytes))

    def _with_teacher(self, plan: Assignment, teacher: Teacher | None) -> Assignment:
        if teacher is None or self.distill == 0:
            return plan
        objective = Objective(distill=self.distill, teacher=teacher.spec)
        return replace(plan, structure=replace(plan.structure, objective=objective))

    def _fits(self, device: str, plan: Assignment, free_bytes: int) -> bool:
        """Whether student and teacher together are within the device's memory, seconds and bytes per round."""
        report = self.reports.get(device)
        if report is None or plan.structure.objective.teacher is None:
            return True
        return fits(self.setting, device, report=structs.replace(report, free_bytes=free_bytes), assignment=plan)

    def room_s(self, device: str) -> float | None:
        """Seconds of a round that a device's own training leaves for a teacher; None without a limit or a forecast."""
        report = self.reports.get(device)
        limit_s = None if report is None else budget_of(self.setting, report).seconds
        if report is None or limit_s is None or not self.step_s(device, self.specs[device]):
            return None
        alone = super().assignment(device, 0)
        return limit_s - cost_of(self.setting, device, report=report, assignment=alone).seconds

    def steps_of(self, device: str) -> int:
        """Steps of a device that has reported in one round."""
        return step_count(recipe_for(self.setting, 0, device), self.reports[device].data.samples)

    def step_s(self, device: str, spec: ModelSpec) -> float:
        """Seconds of one step of a model on a device; 0 where nobody knows."""
        if self.setting.manifest is None or self.setting.forecasts is None:
            return 0.0
        manifest = self.setting.manifest(Structure(spec, optimizer=self.setting.optimizer))
        ahead = self.setting.forecasts.predict(device, manifest, batch=self.setting.batch)
        return 0.0 if ahead is None else ahead.step_s

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """The same without a teacher."""
        if assignment.structure.objective.teacher is None:
            return None
        return replace(assignment, structure=replace(assignment.structure, objective=Objective()))

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own weights, and its teacher's."""
        sides = {}
        if assignment.structure.objective.teacher is not None:
            sides = {TEACHER + name: value for name, value in self.teachers[device].weights.items()}
        return Emission(self.weights[device], sides)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Take the device's change, and note that it is to get a new teacher."""
        self.take(device, update)
        self._trained[device] = BoardLimits(*update.assignment.marks)
        return None

    def advance(self) -> dict[str, float]:
        """New teachers for those who trained."""
        known, self._trained = self._trained, {}
        began_s = time.process_time()
        pupils = {device: pupil for device in sorted(known) if (pupil := self.pupil(device)) is not None}
        made = self.make_teachers(pupils, known) if pupils else {}
        server_s = time.process_time() - began_s
        for device in known:
            self.teachers.pop(device, None)
            chosen = self._first_that_fits(device, made.get(device, []), known[device].free_bytes)
            if chosen is not None:
                self.teachers[device] = chosen
        taught = [device for device in known if device in self.teachers]
        change = [self.size_change(device) for device in taught]
        return {
            "server_s": server_s,
            "teachers": float(len(taught)),
            "size_change": float(np.mean(change)) if change else 0.0,
        }

    def _first_that_fits(self, device: str, teachers: list[Teacher], free_bytes: int) -> Teacher | None:
        plan = super().assignment(device, 0)
        fitting = (one for one in teachers if self._fits(device, self._with_teacher(plan, one), free_bytes))
        return next(fitting, None)

    def size_change(self, device: str) -> float:
        """φ of a device's present teacher: (|w*| - |w_m|) / |w_m|."""
        return self.teachers[device].parameters / count_parameters(self.specs[device]) - 1.0

    def pupil(self, device: str) -> Pupil | None:
        """A device's model in blocks; None for one that cannot be cut."""
        spec = self.specs[device]
        module = zoo.create(spec, seed=0)
        load(module, self.weights[device])
        module.to(self.setting.device).eval().requires_grad_(False)
        found = cut(module, spec.input_shape)
        if len(found.blocks) < 2:
            self._say_whole(device, found.why)
            return None
        count = len(found.blocks)
        chain = tuple(Block(device, index, count, part) for index, part in enumerate(found.parts))
        with torch.no_grad():
            logits = torch.cat([module(part) for part in torch.split(self.public_x, 128)])
        return Pupil(device, chain, found.blocks, logits)

    def _say_whole(self, device: str, why: str) -> None:
        """Tell once that a device neither lends blocks nor learns from others'."""
        if device not in self._whole:
            self._whole.add(device)
            log.warning(
                "device %s lends no blocks and gets no teacher: its model %s cannot be cut (%s); give it a model whose "
                "layers follow one another",
                device,
                self.specs[device].model,
                why,
                extra={"device": device, "fate": "kept whole"},
            )

    def grouped(self, pupils: Mapping[str, Pupil], *, groups: int, rows: int, seed: int) -> BlockGroups:
        """All blocks of all pupils in groups, by what they make of some of the public examples."""
        x = self.public_x[:rows]
        embedded = similarity.embed([_seams(pupil, x) for pupil in pupils.values()])
        blocks = [block for pupil in pupils.values() for block in pupil.chain]
        labels = similarity.group(embedded.cpu(), groups, seed=seed)
        at = {block: row for row, block in enumerate(blocks)}
        return BlockGroups(
            dict(zip(blocks, labels.tolist(), strict=True)),
            lambda one, other: float(embedded[at[one]] @ embedded[at[other]]),
        )

    def named(self, device: str) -> str:
        """The name of a device's model as a piece of a stitched one."""
        return zoo.spelled(self.specs[device])

    def seed_of(self, *what: str | int) -> int:
        """A seed for torch and numpy."""
        return derive_seed(self.setting.seed, *what)

    def state(self) -> MethodState:
        """Every device's model and teacher."""
        taught = {device: (teacher.spec, teacher.weights) for device, teacher in self.teachers.items()}
        return super().state() | models_state("teachers", taught)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self.teachers = {device: Teacher(*model) for device, model in restored_models("teachers", state).items()}
        self._trained = {}


@lru_cache(maxsize=1024)
def count_parameters(spec: ModelSpec) -> int:
    """How many parameters a model has."""
    return sum(value.numel() for value in zoo.create(spec, seed=0).parameters())


def load(module: nn.Module, weights: Tensors) -> None:
    """Put weights into a module by name."""
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()}, strict=False)


def teacher_of(module: Stitched, spec: ModelSpec) -> Teacher:
    """A tuned model as a teacher."""
    return Teacher(spec, initial_weights(module))


def candidate_of(module: Stitched, keys: Chain) -> Candidate:
    """A stitched model to be tuned."""
    return Candidate(module.stitches, module.blocks, keys)


def _seams(pupil: Pupil, x: Tensor) -> list[Tensor]:
    """What enters the first block and leaves each, averaged over places: [rows, width]."""
    seams = [similarity.pooled(x)]
    with torch.no_grad():
        for block in pupil.blocks:
            x = block(x)
            seams.append(similarity.pooled(x))
    return seams
