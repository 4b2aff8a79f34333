"""On the board: train on what was measured here, keep the result, go on from it next time."""

import numpy as np

import fedwright as fw


def measured(seed):
    """What the board's sensor saw: ten patterns under noise."""
    patterns = np.random.default_rng(0).random((10, 1, 8, 8))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, 400)
    return (patterns[y] + rng.normal(0, 0.3, (400, 1, 8, 8))).astype(np.float32), y


trainer = fw.Trainer(fw.TrainingGraph.load("graph"), learning_rate=0.003)
x, y = measured(1)
losses = trainer.fit(x, y, epochs=8, batch=16)
trainer.graph().save("graph")
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}, accuracy on new examples {trainer.accuracy(*measured(2)):.0%}")
