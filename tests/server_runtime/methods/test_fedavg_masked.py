"""FedAvg with logits masked to owned classes."""

import numpy as np

from fedwright.protocol.messages import DataSummary
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.baselines.fedavg_masked import Masked
from fedwright.server_runtime.methods.params.submodels import MaskedParams
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SPEC = ModelSpec("cnn-small", (1, 8, 8), 4)


def test_a_device_gives_only_its_own_classes() -> None:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    method = Masked(MaskedParams(), setting(spec=SPEC, initial=initial))
    own = {"a": report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=[0, 5, 0, 1]), trains=False)}
    method.meet(own)
    bias = method.model_of("a")[1]["head.bias"]
    assert (bias < -1000).tolist() == [True, False, True, False]
    np.testing.assert_array_equal(method.model_of("a")[1]["head.weight"], initial["head.weight"])
    np.testing.assert_array_equal(method.model_of("stranger")[1]["head.bias"], initial["head.bias"])
