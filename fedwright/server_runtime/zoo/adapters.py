"""Low-rank adapters: a linear layer whose weight stays frozen while two thin factors train."""

import torch
from torch import Tensor, nn
from torch.nn import functional

LORA_NAMES = ("lora_down", "lora_up")


class LoraLinear(nn.Linear):
    """y = x W' + b + (x down') up', down: [rank, in], up: [out, rank].

    The base keeps the parameter names of `nn.Linear`, so weights of the same model without adapters load into it.
    `up` starts at zero, so the adapter starts as no change at all.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_down = nn.Parameter(torch.empty(rank, inputs))
        self.lora_up = nn.Parameter(torch.zeros(outputs, rank))
        nn.init.xavier_normal_(self.lora_down)

    def forward(self, x: Tensor) -> Tensor:
        """The base layer's output plus the adapter's."""
        return super().forward(x) + functional.linear(functional.linear(x, self.lora_down), self.lora_up)


def adapter_names(model: nn.Module) -> tuple[str, ...]:
    """The adapters' parameters by full name, ready to be a structure's trainable set."""
    return tuple(name for name, _ in model.named_parameters() if name.rpartition(".")[2] in LORA_NAMES)
