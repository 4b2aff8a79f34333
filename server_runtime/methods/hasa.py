"""HASA: wider submodels for devices whose data is less like everyone's, under a fixed budget.

Paper: HASA (arXiv 2606.07621, 2026).
Implemented: Algorithm 1 with the rules uniform, size, mixed, inverse and hasa; budgets of widths and of their squares;
caps from the memory, seconds and MB per round that a device has; aggregation by the original FedAvg (protocol A) and
selective (protocol B); the first channels, or sets as FedDropout's and windows as FedRolex's (Table II);
scores from counts (classes of labels; of text the words that the model reads, every text once), from the pixels of
images and from frozen features.
with `secure_sum` the server sees of the counts only their sum over all devices, and one score of each in 64 steps
(rounds/secure/counts.py; what that protects from is said in docs/privacy.md).
Left out: nothing of the allocation.
Differs: widths are allocated over all devices known so far, so that devices may come later or take part by turns.
Without `secure_sum` counts come with a device's report. With it, a device that comes later is scored against the sum
of the first ones: a sum with it and one without it would tell its counts.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import model_inputs
from fedwright.server_runtime.blocks.allocation import allocate, realised_budget
from fedwright.server_runtime.blocks.budget import Cost, largest_ratio
from fedwright.server_runtime.blocks.scores import distances, heterogeneity
from fedwright.server_runtime.blocks.slicing import Plan, random_plan, rolling_plan
from fedwright.server_runtime.methods.base import Assignment, MethodState, Setting, SumRequest, SumResult
from fedwright.server_runtime.methods.params.hasa import HasaParams
from fedwright.server_runtime.methods.shared.budget_fit import budget_of, cost_of, shown
from fedwright.server_runtime.methods.shared.submodels import SubmodelMethod
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceData:
    """What the allocation knows of a device, from its first report.

    cap: the width that it can hold. values: what it is scored by (counts, the spread of its pixels, or features).
    """

    samples: int
    cap: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Roster:
    """The devices whose data decides the widths, and the widths; with a secure sum, that and what came of it."""

    known: dict[str, DeviceData]
    widths: dict[str, float]
    summed: SumResult = field(default_factory=lambda: SumResult(()))


class Hasa(SubmodelMethod):
    """r_i = clip(s (rmin + (rmax − rmin) h̃_i), rmin, u_i), then W ← W + mean of the changes at width r_i."""

    def __init__(self, params: HasaParams, setting: Setting) -> None:
        self._params = params
        self.diluted = params.aggregation == "original"
        if self.diluted and setting.combine.by_entry:
            raise ConfigError(
                f"update.combine is {setting.combine.kind!r} but method.aggregation = 'original' averages whole models;"
                " set aggregation = 'selective' or another combine"
            )
        self._known: dict[str, DeviceData] = {}
        self._widths: dict[str, float] = {}
        self._summed = SumResult(())
        super().__init__(setting)

    def note(self, reports: Mapping[str, Report]) -> None:
        """Remember new devices and allocate widths anew when there are any; a device that cannot have one is left out.

        With nobody left, or a budget that the first devices cannot meet, that is an error; a run under way goes on.
        """
        known, problems = dict(self._known), []
        for device, report in sorted(reports.items()):
            if report.trains and device not in known and not self._awaits_score(device, report):
                try:
                    known[device] = self._describe(device, report)
                except ConfigError as err:
                    problems.append(err)
        if not known and problems:
            raise problems[0]
        if known == self._known:
            return
        for problem in problems:
            log.warning("%s; it takes no part", problem)
        self._widths = self._allocated(known)
        self._known = known

    def wanted_sum(self, reports: Mapping[str, Report]) -> SumRequest | None:
        """The sum over the first devices, and the scores of those that have none."""
        new = {d: r for d, r in sorted(reports.items()) if r.trains and self._awaits_score(d, r)}
        if not new:
            return None
        pooled, length, words = self._summed.pooled, self.setting.spec.classes, self._reads_words()
        if words:
            length = len(pooled) or max(length, *(report.sum_words for report in new.values()))
        # A text counts once in full, a label once per sample.
        most = math.prod(self.setting.spec.input_shape) if words else 1
        samples = {device: most * report.data.samples for device, report in new.items()}
        return SumRequest(samples, length, self._params.smoothing, pooled, words)

    def _reads_words(self) -> bool:
        """Whether the model reads word numbers, so that devices are scored by words."""
        spec = self.setting.spec
        return np.dtype(model_inputs(zoo.create(spec, seed=0), spec)[0].dtype).kind in "iu"

    def wanted_facts(self) -> tuple[str, ...]:
        """What scores are made of; sums that hide counts need none of it."""
        if self._params.rule in ("uniform", "size") or self._params.secure_sum:
            return ()
        return {"counts": ("class_counts", "word_counts"), "pixels": ("pixel_std",), "features": ("descriptor",)}[
            self._params.score
        ]

    def take_sum(self, summed: SumResult) -> None:
        """Keep the sum and the scores."""
        self._summed = SumResult(summed.pooled, {**self._summed.scores, **summed.scores})

    def _awaits_score(self, device: str, report: Report) -> bool:
        """Whether a device could be scored but was not yet."""
        secure = self._params.secure_sum and self._params.rule not in ("uniform", "size")
        return secure and report.sums_counts and device not in self._summed.scores

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Widths are shared out over all devices that are here, not only over those that a round takes."""
        self.note(reports)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone who has a width trains a submodel of it."""
        self.note(reports)
        return super().assign({d: r for d, r in reports.items() if d in self._known}, round_number)

    def _describe(self, device: str, report: Report) -> DeviceData:
        data = report.data
        own = min(self._params.caps.get(name, 1.0) for name in (device, report.board.profile))
        cap = min(own, self._cap(device, report))
        if self._params.rule in ("uniform", "size"):
            return DeviceData(data.samples, cap)
        if self._params.secure_sum:
            return DeviceData(data.samples, cap, (self._hidden_score(device),))
        values: Sequence[float] | None = data.known_counts if data.score_counts is None else data.score_counts
        if self._params.score == "pixels":
            values = None if data.pixel_std is None else (data.pixel_std,)
        elif self._params.score == "features":
            values = data.descriptor
        if not values or (self._params.score == "counts" and not any(values)):
            what = {"counts": "class counts", "pixels": "pixels", "features": "features"}[self._params.score]
            raise ConfigError(
                f"device {device} reports no {what} to score; let its owner agree (`tells` in its policy.toml), choose "
                f"another method.score or the rule 'size'"
                + (", or set method.secure_sum = true" if report.sums_counts else "")
            )
        return DeviceData(data.samples, cap, tuple(map(float, values)))

    def _hidden_score(self, device: str) -> float:
        if device not in self._summed.scores:
            raise ConfigError(
                f"device {device} takes part in no sums of counts; start it with --hide-counts (in a simulation: "
                f"simulate.hide_counts = true) or set method.secure_sum = false"
            )
        return self._summed.scores[device]

    def _allocated(self, devices: Mapping[str, DeviceData]) -> dict[str, float]:
        known = dict(sorted(devices.items()))
        samples, caps = [entry.samples for entry in known.values()], [entry.cap for entry in known.values()]
        scores = self._scores([entry.values for entry in known.values()], samples)
        rule, budget = self._params.rule, self._params.limits()
        try:
            widths = allocate(rule, scores, samples, budget, caps=caps, size_share=self._params.size_share)
        except ConfigError as err:
            if not self._widths:
                raise
            log.warning("new devices are too small for the budget (%s); they get what they can hold", err)
            return {device: self._widths.get(device, entry.cap) for device, entry in known.items()}
        return {device: self._stepped(width) for device, width in zip(known, widths.tolist(), strict=True)}

    def _stepped(self, width: float) -> float:
        """The next width below that devices share, but not below the least."""
        step = self._params.width_step
        return max(self._params.least, math.floor(width / step + 1e-9) * step) if step else float(width)

    def _scores(self, values: Sequence[tuple[float, ...]], samples: Sequence[int]) -> NDArray[np.float64]:
        """h_i of every device; zeros for rules that do not look at data."""
        length = max(map(len, values))
        padded = np.array([own + (0.0,) * (length - len(own)) for own in values])
        if not length:
            return np.zeros(len(values))
        if self._params.secure_sum:
            return padded[:, 0]
        if self._params.score == "counts":
            return heterogeneity(list(padded), smoothing=self._params.smoothing)
        return padded[:, 0] if self._params.score == "pixels" else distances(padded, np.array(samples))

    def _cap(self, device: str, report: Report) -> float:
        """u_i: the largest width whose training is within the device's budget."""
        params = self._params
        if self.setting.manifest is None:
            return params.most
        report = structs.replace(report, free_bytes=int(params.memory_ratio * report.free_bytes))
        budget = budget_of(self.setting, report)
        # Straight lines between a few widths lie above the true cost, which grows ever faster.
        widths = np.linspace(params.least, params.most, 4 if params.least < params.most else 1)
        costs = [self._cost(device, report, width) for width in widths]
        rows = np.array([[cost.memory_bytes, cost.seconds, cost.link_bytes] for cost in costs])

        def cost(width: float) -> Cost:
            memory, seconds, link = (float(np.interp(width, widths, column)) for column in rows.T)
            return Cost(int(memory), seconds, int(link))

        found = largest_ratio(cost, budget, least=params.least, most=params.most)
        if found is None:
            raise ConfigError(
                f"device {device} has {shown(budget)} but width {params.least} takes {shown(costs[0])}; "
                f"lower method.least or leave the device out"
            )
        return found

    def _cost(self, device: str, report: Report, width: float) -> Cost:
        whole = self.assignment(device, zoo.scaled(self.setting.spec, width), 1)
        return cost_of(self.setting, device, report=report, assignment=whole)

    def width_of(self, device: str) -> float:
        """The device's width; the most for one that has not reported."""
        return self._widths.get(device, self._params.most)

    def spec_of(self, device: str) -> ModelSpec:
        """The first floor(r C) channels of every group."""
        return zoo.scaled(self.setting.spec, self.width_of(device))

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """Which channels: the seed of a random set, or where a window begins."""
        if self._params.submodels == "random":
            return (derive_seed(self.setting.seed, "subset", round_number, device),)
        return (round_number - 1,) if self._params.submodels == "rolling" else ()

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """The channels of a submodel."""
        sizes = zoo.sizes_of(spec)
        if self._params.submodels == "first":
            return super().plan_of(device, spec, marks)
        if self._params.submodels == "random":
            return random_plan(self.full, sizes, np.random.default_rng(marks[0]))
        return rolling_plan(self.full, sizes, marks[0])

    def widest(self) -> ModelSpec:
        """The first channels as far as the widest device goes; nobody trains the others."""
        if self._params.submodels != "first":
            return self.setting.spec
        return zoo.scaled(self.setting.spec, max(self._widths.values(), default=self._params.most))

    def advance(self) -> dict[str, float]:
        """Apply the mean change; the budget that the widths came to."""
        metrics = super().advance()
        samples = [self._known[device].samples for device in self._widths]
        if samples:
            power = 2 if self._params.square else 1
            metrics["budget"] = realised_budget(list(self._widths.values()), samples, power=power)
        return metrics

    def planning_state(self) -> MethodState:
        """The devices whose data decides the widths: a round goes on with them whatever is reported later."""
        return MethodState.of(roster=Roster(self._known, self._widths, self._summed))

    def restore_planning(self, state: MethodState) -> None:
        """Know the same devices again."""
        roster = state.record("roster", Roster)
        self._known, self._widths, self._summed = roster.known, roster.widths, roster.summed

    def state(self) -> MethodState:
        """The global weights, and the devices whose data decides the widths."""
        return super().state() | self.planning_state()

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self.restore_planning(state)
        super().restore(state)
