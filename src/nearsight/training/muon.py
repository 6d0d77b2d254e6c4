"""Muon: orthogonal steps for matrices, AdamW for the rest.

timm's Muon computes every step in bfloat16, which a processor without instructions for it does a hundred times slower
than float32. This one asks first; the iteration itself and the scale of a step are timm's.
"""

from typing import Any

import torch
from timm.optim.muon import get_lr_scale, zeropower_via_newtonschulz
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTUM = 0.95  # of matrices; the others have AdamW's
# Of the iteration's quintic polynomials, one for each of its steps, as in timm.
COEFFICIENTS = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are brought to singular values near 1 before a step (Jordan et al., 2024).

    A step has the size of AdamW's: its root mean square is 0.2 times the learning rate (Liu et al., 2025).

    Args:
        groups: Parameters in groups; one with `use_fallback` is left to AdamW.
        lr: Learning rate.
        betas: Of AdamW.
        eps: Of AdamW.

    Example:
        >>> layer = torch.nn.Linear(8, 8, bias=False)
        >>> optimizer = Muon([{"params": [layer.weight], "weight_decay": 0.0, "use_fallback": False}], lr=0.1)
        >>> before = layer.weight.detach().clone()
        >>> layer(torch.randn(64, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> bool(0.01 < (layer.weight - before).square().mean().sqrt() < 0.03)
        True
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "use_fallback": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; a closure is not called."""
        for group in self.param_groups:
            taught = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["use_fallback"]:
                self.step_adamw(taught, group)
            else:
                for parameter in taught:
                    self.step_matrix(parameter, group)

    def step_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Move a matrix, or a convolution as the matrix `[out, in * kernel]`."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        momentum = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(momentum, MOMENTUM).flatten(1)  # Nesterov's
        turned = zeropower_via_newtonschulz(ahead, len(COEFFICIENTS), COEFFICIENTS, dtype=fastest_type(ahead.device))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        scale = get_lr_scale(turned.shape, "match_rms_adamw")
        parameter.add_(turned.view_as(parameter).to(parameter.dtype), alpha=-group["lr"] * scale)

    def step_adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move what is no matrix."""
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def fastest_type(device: torch.device) -> torch.dtype:
    """The type in which matrices are multiplied fastest on a device: 16 bits only with instructions for them."""
    if device.type == "cpu":
        about: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch has it from 2.12 on
        return torch.bfloat16 if about.get("avx512_bf16") or about.get("amx_bf16") else torch.float32
    return torch.bfloat16
