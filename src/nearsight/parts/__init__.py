"""What fills a slot: frozen values that say what to build, and the modules they build."""

from .attention import Global, SpatialReduction, Window
from .dense import DenseFfn, DenseStem, PoolMerge
from .depthwise import DepthWise
from .embed import ConvStem, Patchify
from .feedforward import BiGate, DepthwiseThen, LocalityFfn, Mlp, PatchesOnly
from .gather import GatherBroadcast
from .local_mlp import LocalMlp
from .merge import ConcatMerge, ConvMerge, DeformableMerge, ResidualMerge
from .overlapping import ConvProjection, OverlapMerge, OverlapPatchify
from .pixels import PixelEmbed, PixelTransformer
from .position import Learned, Sinusoid
from .qkv import Life, LinearQkv
from .sliding import Sliding
from .slots import register
from .squeeze import Squeezed
from .tokenizers import ConvTokenizer, ShiftedPatches
from .tokens_to_token import TokensToToken

__all__ = [
    "BiGate",
    "ConcatMerge",
    "ConvMerge",
    "ConvProjection",
    "ConvStem",
    "ConvTokenizer",
    "DeformableMerge",
    "DenseFfn",
    "DenseStem",
    "DepthWise",
    "DepthwiseThen",
    "GatherBroadcast",
    "Global",
    "Learned",
    "Life",
    "LinearQkv",
    "LocalMlp",
    "LocalityFfn",
    "Mlp",
    "OverlapMerge",
    "OverlapPatchify",
    "PatchesOnly",
    "Patchify",
    "PixelEmbed",
    "PixelTransformer",
    "PoolMerge",
    "ResidualMerge",
    "ShiftedPatches",
    "Sinusoid",
    "Sliding",
    "SpatialReduction",
    "Squeezed",
    "TokensToToken",
    "Window",
    "register",
]
