"""Run by pfl-research's own Python: rounds of FedAvg over simulated users; prints what they cost as JSON.

One argument, JSON: data (an .npz file with x, y and rows [users, samples]), model (a ModelSpec of the zoo), rounds,
drawn, batch, learning_rate.
"""

import importlib
import json
import os
import resource
import sys
from typing import Any

import msgspec
import numpy as np
import torch

from fedwright.server_runtime import zoo
from fedwright.server_runtime.spec import ModelSpec


def make_model(spec: ModelSpec) -> torch.nn.Module:
    """The zoo's module with what pfl asks of one."""
    weighted = importlib.import_module("pfl.metrics").Weighted

    class Model(torch.nn.Module):
        """A module that knows its loss and its metrics."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = zoo.create(spec, seed=0)

        def logits(self, x: Any) -> torch.Tensor:
            """What the model makes of a batch."""
            found = self.inner(torch.as_tensor(x))
            return found if isinstance(found, torch.Tensor) else found[0]

        def loss(self, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
            """The mean cross-entropy of a batch; pfl calls its last argument by this name."""
            self.train(not eval)
            return torch.nn.functional.cross_entropy(self.logits(x), torch.as_tensor(y))

        @torch.no_grad()
        def metrics(self, x: Any, y: Any, eval: bool = True) -> dict[str, Any]:
            """Loss and hits of a batch."""
            self.train(not eval)
            labels = torch.as_tensor(y)
            logits = self.logits(x)
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            right = int((logits.argmax(1) == labels).sum())
            return {"loss": weighted(loss, len(labels)), "accuracy": weighted(right, len(labels))}

    return Model()


def main(given: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds until the first round ended, of each further one, and the most memory that was held."""
    pfl = {
        name: importlib.import_module("pfl." + name.replace("/", "."))
        for name in (
            "aggregate/simulate",
            "algorithm/base",
            "algorithm/federated_averaging",
            "callback/base",
            "data/dataset",
            "data/federated_dataset",
            "data/sampling",
            "hyperparam/base",
            "model/pytorch",
        )
    }
    torch.set_num_threads(1)
    arrays = np.load(given["data"])
    x, y, rows = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), arrays["rows"]
    ends: list[float] = []

    class Clock(pfl["callback/base"].TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            """Note when a round ended."""
            ends.append(cpu_s())
            return False, importlib.import_module("pfl.metrics").Metrics()

    def user(number: int) -> Any:
        own = rows[number]
        return pfl["data/dataset"].Dataset([x[own], y[own]], user_id=number)

    users = pfl["data/federated_dataset"].FederatedDataset(
        user, pfl["data/sampling"].get_user_sampler("minimize_reuse", list(range(len(rows))))
    )
    module = make_model(msgspec.convert(given["model"], ModelSpec))
    model = pfl["model/pytorch"].PyTorchModel(
        module, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0)
    )
    rounds = given["rounds"]
    params = pfl["hyperparam/base"]
    pfl["algorithm/federated_averaging"].FederatedAveraging().run(
        algorithm_params=pfl["algorithm/base"].NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=given["drawn"],
            val_cohort_size=0,
        ),
        backend=pfl["aggregate/simulate"].SimulatedBackend(training_data=users, val_data=None),
        model=model,
        model_train_params=params.NNTrainHyperParams(
            local_batch_size=given["batch"], local_num_epochs=1, local_learning_rate=given["learning_rate"]
        ),
        model_eval_params=params.NNEvalHyperParams(local_batch_size=32),
        callbacks=[Clock()],
    )
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"first_cpu_s": ends[0], "rounds_cpu_s": np.diff(ends).tolist(), "peak_bytes": rss}


def cpu_s() -> float:
    """CPU time of this process and of those that it started and waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
