"""Run by Flower's own Python: what its SecAgg+ costs one client, as JSON. Arguments: clients, length, shares."""

import importlib
import json
import sys
import time

import numpy as np

# Those of its own workflow, but for the range.
TARGET, MODULUS, WEIGHT = 1 << 22, 1 << 32, 1000.0


def main(clients: int, length: int, shares: int) -> dict[str, float]:
    """CPU seconds and bytes both ways of the first client; the others do only what it needs of them."""
    # Imported here, because other environments have none of it; the package has a function of the module's name.
    mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    Key = importlib.import_module("flwr.common.secure_aggregation.secaggplus_constants").Key
    setup = {
        Key.SAMPLE_NUMBER: clients,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: 2 * shares // 3 + 1,
        Key.CLIPPING_RANGE: 8.0,
        Key.TARGET_RANGE: TARGET,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: WEIGHT,
    }
    states = []
    sent = received = cpu_s = 0.0
    for number in range(shares):
        state = mod.SecAggPlusState(nid=number)
        began = time.process_time()
        keys = mod._setup(state, setup)
        if number == 0:
            cpu_s += time.process_time() - began
            sent += sum(len(key) for key in keys.values())
        states.append(state)
    public = {str(state.nid): [state.pk1, state.pk2] for state in states}
    received += sum(len(key) for pair in public.values() for key in pair)
    sealed = []
    for state in states:
        began = time.process_time()
        found = mod._share_keys(state, public)
        if state.nid == 0:
            cpu_s += time.process_time() - began
            sent += sum(len(text) for text in found[Key.CIPHERTEXT_LIST])
        else:
            place = found[Key.DESTINATION_LIST].index(0)
            sealed.append(found[Key.CIPHERTEXT_LIST][place])
    received += sum(len(text) for text in sealed)
    change = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)
    parameters = importlib.import_module("flwr.common").ndarrays_to_parameters([change])
    told = {Key.CIPHERTEXT_LIST: sealed, Key.SOURCE_LIST: list(range(1, shares))}
    began = time.process_time()
    masked = mod._collect_masked_vectors(states[0], told, 500, parameters)
    cpu_s += time.process_time() - began
    sent += sum(len(part) for part in masked[Key.MASKED_PARAMETERS])
    began = time.process_time()
    opened = mod._unmask(states[0], {Key.ACTIVE_NODE_ID_LIST: list(range(shares)), Key.DEAD_NODE_ID_LIST: []})
    cpu_s += time.process_time() - began
    sent += sum(len(share) for share in opened[Key.SHARE_LIST])
    return {"cpu_s": cpu_s, "sent": sent, "received": received}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:4]))) + "\n")
