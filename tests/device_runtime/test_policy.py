"""What the owner of a device forbids is refused, whatever a server asks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.cli.main import main
from fedwright.device_runtime.answers import refusal_of
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.doctor import diagnose
from fedwright.device_runtime.equipment import make_equipment
from fedwright.device_runtime.equipment_settings import EquipmentSettings, limits_of
from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.policy import EXAMPLE, Policy, read_policy
from fedwright.device_runtime.run_task import _enough, _measures
from fedwright.device_runtime.train.loop import Evaluation
from fedwright.protocol.errors import ConfigError, FedwrightError, PolicyRefused
from fedwright.protocol.messages import BlobRef, Effort, Hiding, Recipe, Returns, SumTerms, Task

BLOB = BlobRef("0" * 64, 1_000_000, 65_536, [])
NOON = 12 * 60


def task(*, recipe: dict[str, Any] | None = None, **returns: Any) -> Task:
    made = Recipe(**{"batch": 16, "learning_rate": 0.1, "seed": 1, **(recipe or {})})
    asked = Returns(**{"evaluate": False, **returns})
    return Task("t1", "b1", "run", 1, BLOB, BLOB, made, asked, deadline_s=60.0)


@pytest.mark.parametrize(
    ("policy", "asked", "rule"),
    [
        (Policy(returns=("delta",)), task(weights="weights"), "returns"),
        (Policy(returns=("delta",)), task(class_means=True), "returns"),
        (Policy(returns=("delta",)), task(logits=5), "returns"),
        (Policy(returns=("delta",)), task(evaluate=True), "returns"),
        (Policy(least_batch=8), task(recipe={"batch": 4}), "least_batch"),
        # A batch of 16 in parts of at most 14 would come as two of 8, one of 15 as one of 7 and one of 8.
        (Policy(least_batch=8), task(recipe={"batch": 16, "part": 14}), "least_batch"),
        (Policy(hours=("22:00-06:00",)), task(), "hours"),
    ],
    ids=["weights", "class means", "logits", "evaluation", "batch", "parts of a batch", "hours"],
)
def test_what_is_forbidden_is_refused_by_its_rule(policy: Policy, asked: Task, rule: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        policy.check(asked, NOON)

    refusal = refusal_of("t1", caught.value)
    assert (refusal.rule, refusal.reason) == (rule, "failed")
    assert refusal.detail.startswith(f"the policy of this device's owner ({rule})")


def test_what_is_allowed_passes() -> None:
    policy = Policy(returns=("delta",), least_batch=8, hours=("11:00-13:00",))

    policy.check(task(), NOON)


def test_a_batch_of_public_rows_may_be_small() -> None:
    Policy(least_batch=8).check(task(recipe={"batch": 1, "public": True}), NOON)


@pytest.mark.parametrize(
    "terms",
    [None, SumTerms("g", 3, 8.0, Effort(8)), SumTerms("g", 3, 8.0, Effort(8), clip_norm=1.0, noise_multiplier=0.9)],
    ids=str,
)
def test_an_owner_tells_what_was_learnt_in_sums_with_noise_enough_alone(terms: SumTerms | None) -> None:
    owner = Policy(least_noise_in_sum=1.0)
    with pytest.raises(PolicyRefused, match="in sums with noise of 1 or more, not"):
        owner.check(structs.replace(task(), sum=terms), NOON)

    enough = SumTerms("g", 3, 8.0, Effort(8), clip_norm=1.0, noise_multiplier=1.0)
    owner.check(structs.replace(task(), sum=enough), NOON)


def test_what_is_told_of_data_privately_is_not_told_by_tasks() -> None:
    owner = Policy(tells_epsilon=1.0)
    with pytest.raises(PolicyRefused, match="class means in sums alone"):
        owner.check(task(class_means=True), NOON)
    with pytest.raises(PolicyRefused, match="trains no classes alone"):
        owner.check(task(recipe={"classes": [1]}), NOON)

    owner.check(structs.replace(task(class_means=True), sum=SumTerms("g", 3, 64.0, Effort(8))), NOON)


@pytest.mark.parametrize(("minute", "works"), [(22 * 60, True), (5 * 60 + 59, True), (6 * 60, False), (NOON, False)])
def test_hours_may_go_over_midnight(minute: int, works: bool) -> None:
    assert Policy(hours=("22:00-06:00",)).may_work(minute) == works


def test_few_samples_are_not_trained_on() -> None:
    with pytest.raises(PolicyRefused, match="works on 20 samples or more, and the task asks for 3"):
        Policy(least_samples=20).check_samples(task().recipe, 3)


def test_means_of_few_samples_are_withheld() -> None:
    means = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], np.float32)

    kept, counts = _enough(means, np.array([5, 1, 0]), least=2)

    np.testing.assert_array_equal(kept, [[1, 2], [0, 0], [0, 0]])
    assert counts.tolist() == [5, 0, 0]


@pytest.mark.parametrize(("held_out", "told"), [(1, False), (2, True)])
def test_mean_errors_of_few_samples_are_withheld(held_out: int, told: bool) -> None:
    found = Evaluation(correct=0, n=held_out, loss=1.0, measures={"mae": 0.25})

    assert _measures(found, least=2) == ({"mae": 0.25} if told else None)


def test_the_traffic_of_a_day_is_kept_over_restarts(tmp_path: Path) -> None:
    policy = Policy(mb_per_day=5.0)
    OwnerRules(policy, tmp_path, today=lambda: "monday").check(
        task(), 2_500_000, missing_bytes=1_000_000, samples=100, taken="a"
    )

    again = OwnerRules(policy, tmp_path, today=lambda: "monday")
    with pytest.raises(PolicyRefused, match=r"5 MB a day; 3.5 MB are used and the task takes 2.0 MB"):
        again.check(task(), 1_000_000, missing_bytes=1_000_000, samples=100, taken="a")
    OwnerRules(policy, tmp_path, today=lambda: "tuesday").check(
        task(), 0, missing_bytes=1_000_000, samples=100, taken="a"
    )


def test_a_change_in_fewer_bits_takes_less_of_the_day(tmp_path: Path) -> None:
    packed = structs.replace(task(), returns=structs.replace(task().returns, codec="int8"))
    rules = OwnerRules(Policy(mb_per_day=1.3), tmp_path)

    with pytest.raises(PolicyRefused, match=r"takes 2.0 MB"):
        rules.check(task(), 0, missing_bytes=1_000_000, samples=100, taken="a")
    rules.check(packed, 0, missing_bytes=1_000_000, samples=100, taken="a")


def test_tasks_with_noise_are_counted_for_good_whoever_asks(tmp_path: Path) -> None:
    policy = Policy(private_tasks=2)
    sums = structs.replace(task(), sum=SumTerms("g", 3, 8.0, Effort(8), clip_norm=1.0, noise_multiplier=1.0))
    samples = structs.replace(task(), task="t2", privacy=Hiding(1.0, 1.0))
    for one in (sums, samples, sums):
        OwnerRules(policy, tmp_path).check(one, 0, missing_bytes=0, samples=100, taken=one.task)

    again = OwnerRules(policy, tmp_path)
    again.check(structs.replace(task(), task="t3"), 0, missing_bytes=0, samples=100, taken="a")
    with pytest.raises(PolicyRefused, match="has done 2 tasks with noise"):
        again.check(structs.replace(sums, task="t3", run="another"), 0, missing_bytes=0, samples=100, taken="t3")
    (tmp_path / "private-tasks.json").write_text("{")
    with pytest.raises(PolicyRefused, match="to begin at 0 again"):
        again.check(sums, 0, missing_bytes=0, samples=100, taken="a")


def test_the_stricter_limit_counts() -> None:
    policy = Policy(most_temperature_c=70.0, least_battery_ratio=0.5, hours=("22:00-06:00",))
    settings = EquipmentSettings("", "", "", 0.2, most_temperature_c=80.0, least_battery_ratio=0.2, policy=policy)

    limits = limits_of(settings)

    assert (limits.most_temperature_c, limits.least_battery_ratio, limits.most_load_ratio) == (70.0, 0.5, None)
    assert limits.may_work is not None
    assert not limits.may_work(NOON)


def test_graphs_that_nobody_can_follow_need_the_owners_word() -> None:
    settings = EquipmentSettings("npz:nothing", "", "", 0.2, backend="classic")

    with pytest.raises(ConfigError, match=r"classic backend carry single samples .* set unfollowed_graphs = true"):
        make_equipment(settings)
    with pytest.raises(FedwrightError, match="nothing"):
        make_equipment(structs.replace(settings, policy=Policy(unfollowed_graphs=True)))


def test_the_printed_example_is_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "policy"]) == 0
    file = tmp_path / "policy.toml"
    file.write_text(capsys.readouterr().out)

    assert file.read_text() == EXAMPLE
    assert read_policy(file).policy.least_batch == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("least_bacth = 3", "unknown key 'least_bacth'; did you mean 'least_batch'"),
        ('returns = ["everything"]', "returns names 'everything'; valid are delta"),
        ('hours = ["ten to four"]', "not of the form 22:00-06:00"),
        ("least_batch = 0", "least_batch is 0 but must be at least 1"),
        ("least_batch = ", "is no TOML"),
    ],
)
def test_a_wrong_policy_is_told_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_policy(file)


def test_the_owners_folder_is_looked_in_and_the_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "fedwright").mkdir()
    (tmp_path / "fedwright" / "policy.toml").write_text("least_batch = 7\n")
    config = AgentConfig(broker="", device="d", data="", state=tmp_path)

    (said,) = [finding.what for finding in diagnose(config) if "policy" in finding.what]

    assert "least_batch: 7" in said
    assert str(tmp_path) in said
    assert "defaults" in _policy_line(replace(config, policy=None), tmp_path / "elsewhere", monkeypatch)


def _policy_line(config: AgentConfig, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return next(finding.what for finding in diagnose(config) if "policy" in finding.what)


@pytest.mark.parametrize("hiding", [None, Hiding(clip=1.0, noise_multiplier=0.5)], ids=["no noise", "too little"])
def test_an_owner_may_ask_that_samples_are_hidden(hiding: Hiding | None) -> None:
    policy = Policy(least_noise=1.0)
    policy.check(structs.replace(task(), privacy=Hiding(clip=1.0, noise_multiplier=1.0)), NOON)
    policy.check(structs.replace(task(recipe={"epochs": 0}), privacy=hiding), NOON)

    with pytest.raises(PolicyRefused, match="noise of 1 or more"):
        policy.check(structs.replace(task(), privacy=hiding), NOON)


def test_what_would_tell_of_samples_beside_an_update_is_refused_where_they_are_hidden() -> None:
    asked = structs.replace(task(class_means=True), privacy=Hiding(clip=1.0, noise_multiplier=1.0))

    with pytest.raises(PolicyRefused, match="no class_means"):
        Policy().check(asked, NOON)
