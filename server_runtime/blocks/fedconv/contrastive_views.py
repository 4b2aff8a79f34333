"""Two views of an example that a model should hold for the same, and the loss that says so (NT-Xent)."""

import torch
from torch import Tensor
from torch.nn import functional

# Least side of a crop, strength of the colour jitter, chance of losing all colour.
CROP, JITTER, GREY = 0.8, 0.5, 0.2
# Spread of the noise on examples that are no images, in standard deviations.
NOISE = 0.1


def view(x: Tensor, rng: torch.Generator) -> Tensor:
    """x [n, …] changed at random: images cropped, flipped and in other colours, anything else with noise."""
    if x.dim() != 4:
        return x + NOISE * x.std() * torch.randn(x.shape, generator=rng).to(x.device)
    x = _cropped(x, rng)
    return _coloured(x, rng) if x.shape[1] == 3 else x * _about_one(x, rng)


def _cropped(x: Tensor, rng: torch.Generator) -> Tensor:
    """A square of 0.8 to 1 of the side somewhere in the image, at its full size, mirrored half of the time."""
    n = len(x)
    scale = CROP + (1 - CROP) * torch.rand(n, generator=rng)
    mirror = 1.0 - 2.0 * (torch.rand(n, generator=rng) < 0.5).float()
    shift = (1 - scale)[:, None] * (2 * torch.rand(n, 2, generator=rng) - 1)
    # [n, 2, 3]: x' = ± s x + t
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * mirror, scale, shift
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False).to(x.device)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _coloured(x: Tensor, rng: torch.Generator) -> Tensor:
    """Another brightness, contrast and saturation; some without any colour."""
    x = x * _about_one(x, rng)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (x - mean) * _about_one(x, rng)
    grey = x.mean(1, keepdim=True)
    colour = _about_one(x, rng)
    lost = (torch.rand(len(x), generator=rng) < GREY).reshape(-1, 1, 1, 1).to(x.device)
    return grey + (x - grey) * torch.where(lost, torch.zeros_like(colour), colour)


def _about_one(x: Tensor, rng: torch.Generator) -> Tensor:
    """A factor for each example; drawn on the CPU, so that a seed gives the same views on every device."""
    return (1 - JITTER + 2 * JITTER * torch.rand(len(x), generator=rng)).reshape(-1, 1, 1, 1).to(x.device)


def nt_xent(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """mean_i -log exp(cos(z_i, z_j)/τ) / Σ_{k≠i} exp(cos(z_i, z_k)/τ), j the other view of i; views [n, classes]."""
    z = functional.normalize(torch.cat([one, other]), dim=1)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
    partner = torch.arange(len(z), device=z.device).roll(len(one))
    return functional.cross_entropy(logits, partner)
