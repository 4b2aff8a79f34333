"""Low-rank adapters: layers whose weights stay frozen while two thin factors of each matrix train."""

import torch
from torch import Tensor, nn
from torch.nn import functional

LORA_NAMES = ("lora_down", "lora_up")
GATES = 4


class LoraLinear(nn.Linear):
    """y = x W' + b + (x down') up', down: [rank, in], up: [out, rank].

    The base keeps the parameter names of `nn.Linear`, so weights of the same model without adapters load into it.
    `up` starts at zero, so the adapter starts as no change at all.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_down = first_factor(rank, inputs)
        self.lora_up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """The base layer's output plus the adapter's."""
        return super().forward(x) + functional.linear(functional.linear(x, self.lora_down), self.lora_up)


class LoraLSTM(nn.LSTM):
    """One LSTM layer, batch first, with W_g + up_g down_g for each gate g of both matrices.

    down: [gates · rank, in], up: [gates · hidden, rank]; the base keeps the parameter names of `nn.LSTM`.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor
    ih_l0_lora_down: Tensor
    ih_l0_lora_up: Tensor
    hh_l0_lora_down: Tensor
    hh_l0_lora_up: Tensor

    def __init__(self, inputs: int, hidden: int, rank: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)
        self.add_factors(self, rank)

    @staticmethod
    def add_factors(layer: nn.LSTM, rank: int) -> None:
        """The factors of both matrices."""
        for matrix, inputs in (("ih_l0", layer.input_size), ("hh_l0", layer.hidden_size)):
            down = first_factor(GATES * rank, inputs, parts=GATES)
            up = nn.Parameter(torch.zeros(GATES * layer.hidden_size, rank))
            layer.register_parameter(f"{matrix}_lora_down", down)
            layer.register_parameter(f"{matrix}_lora_up", up)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # type: ignore[override]
        """As `nn.LSTM` from a zero state."""
        # The recurrence needs whole matrices at every step, so the factors are multiplied once, before it.
        weights = [
            self.weight_ih_l0 + gate_product(self.ih_l0_lora_up, self.ih_l0_lora_down),
            self.weight_hh_l0 + gate_product(self.hh_l0_lora_up, self.hh_l0_lora_down),
            self.bias_ih_l0,
            self.bias_hh_l0,
        ]
        start = x.new_zeros(1, x.shape[0], self.hidden_size)
        states, last, cell = torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)
        return states, (last, cell)


def gate_product(up: Tensor, down: Tensor) -> Tensor:
    """up_g down_g for each gate, one below the other: [gates · hidden, in]."""
    rank, inputs = up.shape[1], down.shape[1]
    product = up.reshape(GATES, -1, rank) @ down.reshape(GATES, rank, inputs)
    return product.reshape(-1, inputs)


def first_factor(rows: int, inputs: int, *, parts: int = 1) -> nn.Parameter:
    """Xavier-normal for each part of the rows; drawn aside, so that the base is that of a model without adapters."""
    factor = torch.empty(rows, inputs)
    with torch.random.fork_rng(devices=[]):
        for part in factor.chunk(parts):
            nn.init.xavier_normal_(part)
    return nn.Parameter(factor)


def adapter_names(model: nn.Module) -> tuple[str, ...]:
    """The adapters' parameters by full name, ready to be a structure's trainable set."""
    return tuple(name for name, _ in model.named_parameters() if name.endswith(LORA_NAMES))
