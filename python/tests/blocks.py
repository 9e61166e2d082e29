"""Attention of the diffusion models' blocks, as their authors wrote it in shape and order of
operations: RMSNorm of q and k, concatenation of text and image, RoPE, attention. `attend` is given
each block's q, k, v before all of that, so that eager and fused ways can be compared."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import fovea.torch as ft

EPS = 1e-6


def tables(length, head_dim, dtype=torch.float32):
    angle = torch.outer(torch.arange(length), 1e-4 ** torch.linspace(0, 1, head_dim // 2))
    return angle.cos().to(dtype), angle.sin().to(dtype)


@dataclass(frozen=True)
class Model:
    """What tells the models' attention apart."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    double: bool  # text and image each with weights of their own, attended together
    complex_table: bool = False
    mlp_in_qkv: int = 0  # columns of the MLP in the same projection: a wider row stride


MODELS = [
    Model("flux_double", 4, 4, 32, True),
    Model("flux_single", 4, 4, 32, False, mlp_in_qkv=96),
    Model("flux2_double", 6, 6, 16, True),
    Model("flux2_single", 6, 6, 16, False, mlp_in_qkv=192),
    Model("chroma_double", 4, 4, 32, True),
    Model("z_image", 6, 6, 24, False, complex_table=True),
    Model("krea", 8, 2, 16, False),
]


class Stream(nn.Module):
    """Projection and norms of one stream (text or image)."""

    def __init__(self, model, width):
        super().__init__()
        self.model = model
        self.columns = (model.heads + 2 * model.kv_heads) * model.head_dim
        self.project = nn.Linear(width, self.columns + model.mlp_in_qkv)
        self.q_norm = nn.Parameter(torch.rand(model.head_dim) + 0.5)
        self.k_norm = nn.Parameter(torch.rand(model.head_dim) + 0.5)
        self.out = nn.Linear(model.heads * model.head_dim, width)

    def qkv(self, x):
        """[batch, heads, length, head_dim] views of one projection."""
        m = self.model
        columns = self.project(x)[..., : self.columns]
        heads = columns.view(*x.shape[:2], -1, m.head_dim).transpose(1, 2)
        return heads.split((m.heads, m.kv_heads, m.kv_heads), 1)


class Block(nn.Module):
    """The attention of a block, `fused` or by eager operations."""

    def __init__(self, model, width=48):
        super().__init__()
        torch.manual_seed(0)
        self.model = model
        self.streams = nn.ModuleList(Stream(model, width) for _ in range(1 + model.double))

    def forward(self, streams, fused):
        parts = [s.qkv(x) for s, x in zip(self.streams, streams, strict=True)]
        length = sum(x.shape[1] for x in streams)
        cos, sin = tables(length, self.model.head_dim)
        pieces = (self._fused if fused else self._eager)(parts, cos, sin)
        return [
            x + s.out(p.transpose(1, 2).flatten(2))
            for s, x, p in zip(self.streams, streams, pieces, strict=True)
        ]

    def _fused(self, parts, cos, sin):
        q, k, v = ([p[n] for p in parts] for n in range(3))
        table = (torch.complex(cos, sin),) if self.model.complex_table else (cos, sin)
        out = ft.qk_norm_rope_attention(
            q,
            k,
            v,
            [s.q_norm for s in self.streams],
            [s.k_norm for s in self.streams],
            *table,
            eps=EPS,
        )
        return out if isinstance(out, list) else [out]

    def _eager(self, parts, cos, sin):
        dim = (self.model.head_dim,)
        q = torch.cat(
            [F.rms_norm(p[0], dim, s.q_norm, EPS) for p, s in zip(parts, self.streams)], 2
        )
        k = torch.cat(
            [F.rms_norm(p[1], dim, s.k_norm, EPS) for p, s in zip(parts, self.streams)], 2
        )
        v = torch.cat([p[2] for p in parts], 2)
        out = ft.eager_rope_attention(q, k, v, cos, sin, enable_gqa=True)
        return out.split([p[0].shape[2] for p in parts], 2)
