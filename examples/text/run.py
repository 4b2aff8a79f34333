"""Which of three things a message is about: words as numbers, an embedding, a mean, a line."""

import sys

import numpy as np
from torch import nn

import fedwright as fw

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
LENGTH = 6
TOPICS = {
    "heating": "warm cold radiator degrees heater freezing boiler",
    "light": "lamp dark bright bulb dim shade glow",
    "door": "lock key open shut bell knock handle",
}
COMMON = ["please", "the", "is", "it", "now", "in", "kitchen", "hall", "upstairs", "again", "too", "very"]
WORDS = ["", *COMMON, *(word for words in TOPICS.values() for word in words.split())]


def messages(count):
    """Word numbers [n, words], 0 behind the end, and what each message is about."""
    rng = np.random.default_rng(0)
    x, y = np.zeros((count, LENGTH), np.int64), np.arange(count) % len(TOPICS)
    for row, topic in enumerate(y):
        length = int(rng.integers(3, LENGTH + 1))
        own = list(TOPICS.values())[topic].split()
        chosen = [rng.choice(own), *rng.choice(COMMON, length - 1)]
        x[row, :length] = [WORDS.index(word) for word in rng.permutation(chosen)]
    return x, y


class Reader(nn.Module):
    """The mean of the words' embeddings, then one linear layer."""

    def __init__(self, classes):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


settings = {"simulate": {"processes": 0}, "train": {"learning_rate": 0.5}}
run = fw.simulate(
    model=Reader, data=fw.Dataset(*messages(900), classes=list(TOPICS)), devices=10, rounds=ROUNDS, settings=settings
)
print(run)
