"""Models that `fedwright bench train-step` times beside those of the zoo."""

from torch import Tensor, nn

from fedwright.server_runtime.spec import ModelSpec

WORDS, EMBEDDING, HIDDEN = 3437, 128, 256


class GruLanguageModel(nn.Module):
    """As the zoo's `lstm-lm`, with a GRU."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, EMBEDDING)
        self.gru = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, words)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the word after the last."""
        states, _ = self.gru(self.words(x))
        answer: Tensor = self.head(states[:, -1])
        return answer


def gru_lm(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model for that many words; it reads titles of any length."""
    return GruLanguageModel(classes)


SPECS = {"gru-lm": ModelSpec(f"python:{__name__}:gru_lm", (23,), WORDS)}
