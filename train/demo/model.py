"""A Llama in PyTorch, for training the demo model: RMSNorm, rotary positions, grouped KV heads, SwiGLU, a tied head.

Parameter names are those of a Hugging Face checkpoint without the "model." prefix, so exporting is a rename. It exists
beside transformers' own class because training wants dropout on the residual branches, which that one does not have;
evaluate.py loads the exported folder with transformers and so checks that both compute the same.

Shapes: B sequences, T tokens, E width, H query heads, K KV heads, D head size, F feed-forward width, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    vocab: int
    width: int = 256
    ffn: int = 768
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    context: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and sin (context, D), the two halves of a head rotated together as Hugging Face checkpoints store them."""
    frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.outer(torch.arange(shape.context).float(), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, q, bias=False)
        self.k_proj = nn.Linear(shape.width, kv, bias=False)
        self.v_proj = nn.Linear(shape.width, kv, bias=False)
        self.o_proj = nn.Linear(q, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        s = self.shape
        q = self.q_proj(x).view(b, t, s.heads, s.head_dim).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)  # (B, K, T, D)
        v = self.v_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SharedDropout(nn.Module):
    """Drops whole channels of a sequence, with one mask for all its positions (Gal and Ghahramani,
    https://arxiv.org/abs/1512.05287). It needs T times fewer random numbers, which on a CPU is a fifth of the step."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:  # (B, T, E)
        if not self.training or self.p == 0: return x
        mask = torch.rand(x.shape[0], 1, x.shape[2]) >= self.p
        return x * (mask / (1 - self.p)).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.input_layernorm = RmsNorm(shape.width, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.norm_eps)
        self.mlp = FeedForward(shape)
        self.dropout = SharedDropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    def __init__(self, shape: Shape, dropout: float = 0.0, token_dropout: float = 0.0):
        """token_dropout: share of input tokens that are blanked, so that no phrase can be learned by heart from its
        first words alone (https://arxiv.org/abs/1703.02573)."""
        super().__init__()
        self.shape, self.token_dropout = shape, token_dropout
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, shape.norm_eps)
        self.dropout = SharedDropout(dropout)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() < 2: continue
            # Branches that write to the residual stream start smaller, so that its variance does not grow with depth.
            branch = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(p, std=0.02 / (2 * shape.layers) ** 0.5 if branch else 0.02)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        x = self.dropout(self.embed_tokens(ids))
        if self.training and self.token_dropout > 0:
            x = x * (torch.rand(*ids.shape, 1) >= self.token_dropout)
        for layer in self.layers: x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)
