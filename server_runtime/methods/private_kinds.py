"""With which methods which kinds of [privacy] hold; tests/contracts/ tries to get past them."""

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
