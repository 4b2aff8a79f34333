"""With which methods which kinds of [privacy] hold; tests/contracts/ tries to get past them."""

from fedwright.server_runtime.methods.summed import SUMMED

# All that these take of an update goes into one mean over devices: what is done to it there holds for the model.
CENTRAL = (
    "encoder-private",
    "fedadam",
    "fedavg",
    "fedavg-masked",
    "fedavgm",
    "fedbn",
    "feddropout",
    "fedprox",
    "fedrolex",
    "fedyogi",
    "hasa",
    "head-private",
    "heterofl",
    "per-fedavg",
    "pfedme",
    "scalefl",
)

# Noise on sums: what comes of a sum, and of how many samples each device has, hides as the sum does.
DISTRIBUTED = tuple(sorted(SUMMED - {"fedgh", "fedmd"}))

# These train on plain cross-entropy and ask devices for nothing but the change, so that hiding samples hides all.
EXAMPLE = (
    "adapters-private",
    "encoder-private",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbn",
    "feddropout",
    "fedrolex",
    "fedyogi",
    "hasa",
    "head-private",
    "heterofl",
)
