"""Models and images that the tests of explanations share."""

import torch
from torch import Tensor, nn

import nearsight
from nearsight.models import MODELS

NANO = sorted(name for name in MODELS if name.endswith("_nano") or name == "deit_nano_life")
# Every mixer of the library, in a host that takes it.
MIXERS = {
    "global": ("deit_nano", {}),
    "global relative": ("lit_nano", {}),
    "locality attention": ("deit_nano", {"mixer": "locality_attention"}),
    "life": ("deit_nano_life", {}),
    "shifted windows": ("swin_nano", {}),
    "locality in windows": ("swin_nano", {"temperature": True, "mask_self": True}),
    "cosine windows": ("swin_nano", {"mixer": "cosine_window"}),
    "life in windows": ("swin_nano", {"qkv": "life"}),
    "spatial reduction": ("swin_nano", {"mixer": "spatial_reduction"}),
    "gather and broadcast": ("lightvit_nano", {}),
    "sliding": ("swin_nano", {"mixer": "sliding", "window": 5}),
    "static and dynamic": ("swin_nano", {"mixer": "static_dynamic_attention", "window": 5}),
    "normal convolution": ("swin_nano", {"mixer": "normal_conv_attention", "window": 5}),
    "pre-convolution": ("swin_nano", {"mixer": "pre_conv_attention", "window": 5}),
    "post-convolution": ("swin_nano", {"mixer": "post_conv_attention", "window": 5}),
    "local mlp": ("swin_nano", {"mixer": "local_mlp"}),
    "depth-wise": ("dwnet_nano", {}),
    "dynamic": ("ddwnet_nano", {}),
    "inhomogeneous": ("iddwnet_nano", {}),
    "shared kernels": ("dwnet_nano", {"share_channels": True, "share_positions": False, "heads": 4}),
    "squeezed": ("swin_nano", {"mixer": "squeezed"}),
}


def build(name: str, **options: object) -> nn.Module:
    """A model whose weights are large enough for attention to differ from place to place."""
    torch.manual_seed(0)
    model = nearsight.create_model(name, num_classes=5, **options).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1 and "offsets" not in key:
                parameter.mul_(3.0)
            elif parameter.ndim == 1 and key.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def pictures(height: int = 32, width: int = 32, count: int = 2) -> Tensor:
    """Random images `[B, 3, H, W]`."""
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))
