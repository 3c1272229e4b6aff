"""The sublayers of the body: RMSNorm, rotary positions, grouped-query attention, SwiGLU. No biases anywhere.

A sublayer maps its normed input [B, T, D] to its output [B, T, D]; adding that output to anything is the
residual scheme's business. FLOPs per token are in `model.accounting`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Rotary(nn.Module):
    """Rotary positions (RoPE, Su et al., arXiv 2104.09864): channel pairs (c, c + width/2) turn by position *
    theta^-c.

    Tables are computed in float64 and kept in float32 or wider; they are rebuilt from the config, never
    saved.
    """

    cos_TC: Tensor
    sin_TC: Tensor

    def __init__(self, width: int, length: int, theta: float) -> None:
        super().__init__()
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = torch.outer(torch.arange(length, dtype=torch.float64), theta**-exponent)
        dtype = torch.get_default_dtype()
        self.register_buffer("cos_TC", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin_TC", angle.sin().to(dtype), persistent=False)

    def forward(self, x_BNTC: Tensor) -> Tensor:
        """Turn [B, N, T, head width]; the type of the input is kept."""
        length = x_BNTC.shape[-2]
        cos, sin = self.cos_TC[:length], self.sin_TC[:length]
        first, second = x_BNTC.chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return turned.to(x_BNTC.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention; `kv_heads` key/value heads serve `heads` query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = config.heads, config.num_kv_heads, config.head_width
        self.qkv = nn.Linear(config.d_model, (self.heads + 2 * self.kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)
        self.qk_norm = config.qk_norm
        if self.qk_norm:
            self.q_norm = RMSNorm(self.head_width, config.norm_eps)
            self.k_norm = RMSNorm(self.head_width, config.norm_eps)

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None = None) -> Tensor:
        """`mask_B1TT` true where a query may look; None is plain causal."""
        batch, length, _ = x_BTD.shape
        qkv_BNTC = self.qkv(x_BTD).view(batch, length, -1, self.head_width).transpose(1, 2)
        # queries and keys turn together: one pass, and one piece less to put back together in backward
        qk, v = qkv_BNTC.split((self.heads + self.kv_heads, self.kv_heads), 1)
        if self.qk_norm:
            q, k = qk.split((self.heads, self.kv_heads), 1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), 1)
        q, k = rotary(qk).split((self.heads, self.kv_heads), 1)
        y_BNTC = F.scaled_dot_product_attention(
            q, k, v, mask_B1TT, is_causal=mask_B1TT is None, enable_gqa=self.kv_heads != self.heads
        )
        return self.out(y_BNTC.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202); gate and up share one matrix product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.d_model, bias=False)

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None = None) -> Tensor:
        """Position and mask are not used: the signature is the sublayers' common one."""
        gate, up = self.gate_up(x_BTD).chunk(2, -1)
        return self.down(F.silu(gate) * up)
