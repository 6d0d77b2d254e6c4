"""LocalViT: Bringing Locality to Vision Transformers (Li, Zhang, Cao, Timofte, Van Gool, 2021).

A depth-wise convolution between the two layers of the feed-forward part, in five hosts.
"""

from dataclasses import replace

from ..parts import LocalityFfn, TokensToToken
from ..parts.slots import Ffn
from .hosts import SPECS as HOSTS
from .registry import register
from .spec import BackboneSpec


def local(host: str, *ffns: Ffn, **changes: object) -> BackboneSpec:
    """A host with LocalViT's feed-forward part: one for all stages, or one per stage."""
    spec = HOSTS[host]
    per_stage = ffns if len(ffns) > 1 else ffns * len(spec.stages)
    stages = tuple(replace(stage, ffn=ffn) for stage, ffn in zip(spec.stages, per_stage, strict=True))
    return replace(spec, stages=stages, family="localvit", **changes)  # type: ignore[arg-type]


def reduced(gamma: float, reduction: int) -> LocalityFfn:
    """The form of the pyramid hosts, where the SE reduction follows the width of the stage."""
    return LocalityFfn(gamma=gamma, se_reduction=reduction)


TOKEN_FFN = LocalityFfn(gamma=1, channel_attention=None)  # the token module's feed-forward is local too, without SE

SPECS = {
    "localvit_tiny": local("deit_tiny", LocalityFfn()),
    "localvit_tiny_se4": local("deit_tiny", LocalityFfn(se_reduction=4)),
    "localvit_small": local("deit_small", LocalityFfn()),
    "localvit_t2t": local("t2t_vit_7", LocalityFfn(gamma=2), embed=TokensToToken(ffn=TOKEN_FFN)),
    "localvit_tnt": local("tnt_tiny", LocalityFfn()),
    # The release reduces by the width, so that stages 1 and 2 keep 8 channels instead of 4; only this gives 13.5 M.
    "localvit_pvt": local("pvt_tiny", reduced(8, 64), reduced(8, 128), LocalityFfn(), LocalityFfn()),
    # Not in the paper, only in the release: 16 squeezed channels.
    "localvit_swin": local("swin_tiny", reduced(4, 24), reduced(4, 48), reduced(4, 96), reduced(4, 192), drop_path=0.1),
    "localvit_nano": local("deit_nano", LocalityFfn()),
    "localvit_t2t_nano": local("t2t_nano", LocalityFfn(), embed=TokensToToken(patch=4, ffn=TOKEN_FFN)),
    **{f"localvit_{host}_nano": local(f"{host}_nano", LocalityFfn()) for host in ("tnt", "pvt", "swin", "swinv2")},
}

register(__name__, SPECS)
