"""Every term of an objective against the same formula in torch, on gradients."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer
from helpers.graphs import Stepper, collect, graph_gradients, relative_error, structure_of

CLASSES = 4


class Net(nn.Module):
    """An encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.encoder(x))
        return answer


class TwoExits(nn.Module):
    """Logits after one layer and after two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.exits = nn.ModuleList([nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.tanh(self.first(x))
        b = torch.tanh(self.second(a))
        return self.exits[0](a), self.exits[1](b)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"x": rng.standard_normal((7, 6)).astype(np.float32), "y": np.array([0, 1, 1, 3, 0, 1, 3])}


def _twin(module: nn.Module) -> Any:
    return copy.deepcopy(module).double()


def _x(batch: dict[str, np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(batch["x"]).double()


def _cross_entropy(logits: torch.Tensor, batch: dict[str, np.ndarray]) -> torch.Tensor:
    return functional.cross_entropy(logits, torch.from_numpy(batch["y"]))


def _same(found: tuple[float, dict[str, Any]], wanted: tuple[float, dict[str, Any]]) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    assert relative_error(found[1], wanted[1]) < 1e-5


def test_proximal(net: Net, batch: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(2)
    centre = {n: w + rng.standard_normal(w.shape).astype(np.float32) for n, w in initial_weights(net).items()}

    found = graph_gradients(
        net, batch, CLASSES, objective=Objective(proximal=0.3), sides={f"centre/{n}": w for n, w in centre.items()}
    )

    twin = _twin(net)
    away = sum(((p - torch.from_numpy(centre[n]).double()) ** 2).sum() for n, p in twin.named_parameters())
    _same(found, collect(_cross_entropy(twin(_x(batch)), batch) + 0.15 * away, twin))


def test_no_proximal_weight_is_plain_cross_entropy_to_the_bit(net: Net) -> None:
    plain = build(structure_of((6,), CLASSES), net)
    proximal = build(structure_of((6,), CLASSES, objective=Objective(proximal=0.0)), net)

    assert plain.train == proximal.train


def test_prototypes(net: Net, batch: dict[str, Any]) -> None:
    # class 2 is not in the batch, class 3 has no prototype
    prototypes = np.random.default_rng(3).standard_normal((CLASSES, 8)).astype(np.float32)
    owned = np.array([1, 1, 1, 0], np.float32)

    found = graph_gradients(
        net,
        batch,
        CLASSES,
        objective=Objective(prototypes=0.7),
        sides={"prototypes": prototypes, "prototype_owned": owned},
    )

    twin = _twin(net)
    embedding = twin.encoder(_x(batch))
    distance = sum(
        torch.linalg.norm(
            embedding[torch.from_numpy(batch["y"] == c)].mean(0) - torch.from_numpy(prototypes[c]).double()
        )
        for c in (0, 1)
    )
    _same(found, collect(_cross_entropy(twin.head(embedding), batch) + 0.7 * distance, twin))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_from_a_teacher_with_batch_norm(batch: dict[str, np.ndarray], temperature: float) -> None:
    shape = (3, 8, 8)
    spec = ModelSpec("resnet8", shape, CLASSES, (("stem", 4),) if "stem" in zoo.MODELS["resnet8"].sizes else ())
    torch.manual_seed(1)
    student = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    teacher = zoo.create(spec, seed=5)
    with torch.no_grad():
        teacher.train()(torch.randn(16, *shape))
    data = {"x": np.random.default_rng(4).standard_normal((7, *shape)).astype(np.float32), "y": batch["y"]}

    found = graph_gradients(
        student,
        data,
        CLASSES,
        objective=Objective(distill=0.2, distill_temperature=temperature, teacher=spec),
        sides={f"teacher/{n}": w for n, w in initial_weights(teacher).items()},
    )

    twin, wise = _twin(student), _twin(teacher).eval()
    with torch.no_grad():
        target = functional.log_softmax(wise(_x(data)) / temperature, 1)
    logits = twin(_x(data))
    log_p = functional.log_softmax(logits / temperature, 1)
    kl = functional.kl_div(log_p, target, log_target=True, reduction="batchmean")
    _same(found, collect(_cross_entropy(logits, data) + 0.2 * temperature**2 * kl, twin))


def test_matching_logits_alone(net: Net, batch: dict[str, np.ndarray]) -> None:
    target = np.random.default_rng(5).standard_normal((7, CLASSES)).astype(np.float32)

    found = graph_gradients(
        net,
        batch | {"target_logits": target},
        CLASSES,
        objective=Objective(cross_entropy=0.0, match_logits=1.0),
    )

    twin = _twin(net)
    _same(found, collect(functional.l1_loss(twin(_x(batch)), torch.from_numpy(target).double()), twin))


def test_masked_classes_have_zero_logits(net: Net, batch: dict[str, np.ndarray]) -> None:
    mask = np.array([1, 1, 0, 1], np.float32)

    found = graph_gradients(net, batch, CLASSES, objective=Objective(masked_classes=True), sides={"class_mask": mask})

    twin = _twin(net)
    _same(found, collect(_cross_entropy(twin(_x(batch)) * torch.from_numpy(mask).double(), batch), twin))


def test_all_exits_share_one_class_mask(batch: dict[str, np.ndarray]) -> None:
    torch.manual_seed(2)
    module = TwoExits()
    mask = np.array([1, 1, 0, 1], np.float32)

    objective = Objective(exits=True, masked_classes=True)
    found = graph_gradients(module, batch, CLASSES, objective=objective, sides={"class_mask": mask})

    twin = _twin(module)
    shallow, deep = (logits * torch.from_numpy(mask).double() for logits in twin(_x(batch)))
    _same(found, collect((_cross_entropy(shallow, batch) + 2 * _cross_entropy(deep, batch)) / 3, twin))


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_exits_with_self_distillation(batch: dict[str, np.ndarray], distill: float) -> None:
    torch.manual_seed(2)
    module = TwoExits()

    found = graph_gradients(
        module, batch, CLASSES, objective=Objective(exits=True, exit_distill=distill, exit_temperature=3.0)
    )

    twin = _twin(module)
    shallow, deep = twin(_x(batch))
    kl = functional.kl_div(
        functional.log_softmax(shallow / 3, 1),
        functional.log_softmax(deep / 3, 1),
        log_target=True,
        reduction="batchmean",
    )
    first = _cross_entropy(shallow, batch) + distill * 9 * kl
    _same(found, collect((first + 2 * _cross_entropy(deep, batch)) / 3, twin))


def test_fiarse_masks_weights_and_scales_their_gradient(net: Net, batch: dict[str, np.ndarray]) -> None:
    theta = 0.2

    found = graph_gradients(
        net, batch, CLASSES, objective=Objective(fiarse=True), sides={"threshold": np.array(theta, np.float32)}
    )

    twin = _twin(net)
    factors = {}
    with torch.no_grad():
        for name, p in twin.named_parameters():
            size, kept = p.abs(), (p.abs() >= theta).double()
            norm = name.startswith("encoder.2")
            factors[name] = torch.ones_like(p) if norm else kept * (1 + 2 * theta * size / (size + theta) ** 2)
            p.mul_(torch.ones_like(p) if norm else kept)
    loss, plain = collect(_cross_entropy(twin(_x(batch)), batch), twin)
    _same(found, (loss, {name: grad * factors[name].numpy() for name, grad in plain.items()}))


def test_fiarse_leaves_biases_of_masked_parts_alone(net: Net, batch: dict[str, np.ndarray]) -> None:
    theta = 0.2
    sides = {f"mask/{name}": np.ones(tuple(p.shape), np.float32) for name, p in net.named_parameters()}

    found = graph_gradients(
        net,
        batch,
        CLASSES,
        objective=Objective(fiarse=True, element_masks=True),
        sides={"threshold": np.array(theta, np.float32), **sides},
    )

    twin = _twin(net)
    factors = {}
    with torch.no_grad():
        for name, p in twin.named_parameters():
            size, kept = p.abs(), (p.abs() >= theta).double()
            factors[name] = torch.ones_like(p) if p.ndim < 2 else kept * (1 + 2 * theta * size / (size + theta) ** 2)
            p.mul_(torch.ones_like(p) if p.ndim < 2 else kept)
    loss, plain = collect(_cross_entropy(twin(_x(batch)), batch), twin)
    _same(found, (loss, {name: grad * factors[name].numpy() for name, grad in plain.items()}))


def test_the_scaler_divides_hidden_layers_only(batch: dict[str, Any]) -> None:
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    found = graph_gradients(module, batch, CLASSES, objective=Objective(scaler=0.25))

    twin = _twin(module)
    first = torch.relu(twin[0](_x(batch)) / 0.25)
    _same(found, collect(_cross_entropy(twin[4](torch.tanh(twin[2](first) / 0.25)), batch), twin))


def test_normalised_models_have_no_scaler(net: Net) -> None:
    plain = build(structure_of((6,), CLASSES), net)
    scaled = build(structure_of((6,), CLASSES, objective=Objective(scaler=0.5)), net)

    assert plain.train == scaled.train


def test_without_an_exit_objective_the_deepest_exit_is_trained(batch: dict[str, np.ndarray]) -> None:
    torch.manual_seed(2)
    module = TwoExits()

    loss, _ = graph_gradients(module, batch, CLASSES)

    assert loss == pytest.approx(_cross_entropy(_twin(module)(_x(batch))[1], batch).item(), rel=1e-5)


def test_masked_entries_stay_zero_under_momentum_and_decay(net: Net, batch: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(6)
    weights = initial_weights(net)
    masks = {f"mask/{n}": (rng.random(w.shape) < 0.5).astype(np.float32) for n, w in weights.items()}
    structure = structure_of(
        (6,),
        CLASSES,
        objective=Objective(element_masks=True),
        optimizer=Optimizer(momentum=0.9, weight_decay=0.01, clip_norm=1.0),
    )
    stepper = Stepper(build(structure, net), {n: w * masks[f"mask/{n}"] for n, w in weights.items()}, sides=masks)

    for _ in range(3):
        stepper.step(batch)

    for name in weights:
        mask = masks[f"mask/{name}"]
        assert not np.any(stepper.slots[name][mask == 0])
        assert np.all(stepper.slots[name][mask == 1] != weights[name][mask == 1])


def test_side_inputs_are_declared_with_their_shapes(net: Net) -> None:
    objective = Objective(prototypes=0.5, masked_classes=True, match_logits=0.1)

    manifest = build(structure_of((6,), CLASSES, objective=objective), net).manifest

    assert {spec.name: list(spec.shape) for spec in manifest.sides} == {
        "class_mask": [4],
        "prototypes": [4, 8],
        "prototype_owned": [4],
    }
    assert [spec.name for spec in manifest.batch] == ["x", "y", "target_logits"]


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Objective(exits=True), "returns one set of logits"),
        (Objective(distill=1.0), "names no teacher"),
        (Objective(cross_entropy=0.0), "no term that depends on the data"),
    ],
    ids=["exits", "teacher", "empty"],
)
def test_an_objective_that_does_not_fit_is_refused(net: Net, objective: Objective, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        build(structure_of((6,), CLASSES, objective=objective), net)
