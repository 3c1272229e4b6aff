"""A decoder-only Transformer around ONE sublayer loop that knows of a residual scheme only its interface.

    x = embedding(tokens);  for each sublayer i: y = sublayer_i(input_i);  logits = head(readout)

Initialisation, the same for every scheme: matrices are normal with mean 0 and standard deviation `init_std`,
output projections (attention `out`, MLP `down`) `init_std` / sqrt(2L) (GPT-2's rule), norm gains 1. Each
parameter is drawn in float32 on the CPU from its own generator, seeded by SHA-256 of (seed, name): the bodies
of two schemes are equal bit for bit, and adding a parameter changes no other one. Scheme parameters are set
by their scheme, or drawn in the same way where it names a standard deviation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.config import ModelConfig
from model.layers import Attention, RMSNorm, Rotary, SwiGLU
from model.residual import load_scheme
from model.residual.base import Context, Norm, Recorder

OUTPUT_PROJECTIONS = (".attention.out.weight", ".mlp.down.weight")


class Block(nn.Module):
    """The stored parameters of one Transformer block: two sublayers and their norms; it has no forward of its
    own."""

    def __init__(self, config: ModelConfig, pre_norm: bool) -> None:
        super().__init__()
        self.attention_norm = _norm(config) if pre_norm else nn.Identity()
        self.attention = Attention(config)
        self.mlp_norm = _norm(config) if pre_norm else nn.Identity()
        self.mlp = SwiGLU(config)


class Transformer(nn.Module):
    """tokens [B, T] (int64) -> logits [B, T, V]."""

    def __init__(
        self,
        config: ModelConfig,
        scheme: str = "vanilla",
        settings: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        scheme_class = load_scheme(scheme)
        self.config = config
        self.activation_checkpointing = False
        """Recompute each sublayer in the backward pass; the residual scheme is never recomputed."""
        scheme_config = scheme_class.Config(**(settings or {}))
        order = scheme_class.layer_order(config.layers, scheme_config)
        pre_norm = scheme_class.pre_norm(scheme_config)
        self.embedding = nn.Embedding(config.vocab, config.d_model)
        self.rotary = Rotary(config.head_width, config.seq_len, config.rope_theta)
        self.blocks = nn.ModuleList(Block(config, pre_norm) for _ in range(max(order) + 1))
        self.output_norm = _norm(config)
        self.head = nn.Linear(config.d_model, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.residual = scheme_class(config, scheme_config)
        self._order = order
        self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every body parameter anew; see the module's docstring. A model on the meta device is left
        alone."""
        for name, parameter in self.named_parameters():
            own = name.startswith("residual.")
            std = self.residual.init_std(name.removeprefix("residual.")) if own else self._body_std(name, parameter)
            if std is None or parameter.is_meta:
                continue
            draw = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            draw.normal_(0.0, std, generator=_generator(seed, name))
            parameter.copy_(draw if own else draw * self.residual.init_scale(name))

    def _body_std(self, name: str, parameter: Tensor) -> float | None:
        """None for norm gains, which stay one."""
        if parameter.ndim < 2:
            return None
        std = self.config.init_std
        return std / math.sqrt(2 * len(self._order)) if name.endswith(OUTPUT_PROJECTIONS) else std

    def forward(
        self, tokens_BT: Tensor, *, doc_ids_BT: Tensor | None = None, recorder: Recorder | None = None
    ) -> Tensor:
        """Logits [B, T, V]. With `doc_ids_BT`, a token sees only earlier tokens of its own document."""
        length = tokens_BT.shape[-1]
        if length > self.config.seq_len:
            raise ValueError(f"{length} tokens a sequence, but the model's seq_len is {self.config.seq_len}")
        mask = None if doc_ids_BT is None else _document_mask(doc_ids_BT)
        sublayers = self._sublayers()
        state = self.residual.start(self.embedding(tokens_BT), Context(doc_ids_BT, recorder))
        x, carry = self.residual.read(state, 0, sublayers[0][1])
        for i, (sublayer, _) in enumerate(sublayers):
            if self.activation_checkpointing:
                y = checkpoint(sublayer, x, self.rotary, mask, use_reentrant=False)
            else:
                y = sublayer(x, self.rotary, mask)
            if i + 1 < len(sublayers):
                x, carry = self.residual.advance(carry, y, i, sublayers[i + 1][1])
        state = self.residual.write(carry, y, len(sublayers) - 1)
        return self.head(self.residual.readout(state, self.output_norm))

    def inert_parameters(self) -> frozenset[str]:
        """Full names of parameters whose gradient is exactly zero by construction."""
        return frozenset(f"residual.{name}" for name in self.residual.inert)

    def _sublayers(self) -> list[tuple[nn.Module, Norm]]:
        """The applied sublayers in order, each with its norm."""
        applied: list[tuple[nn.Module, Norm]] = []
        for index in self._order:
            block = self.blocks[index]
            assert isinstance(block, Block)  # a ModuleList forgets the type of its items
            applied += [(block.attention, block.attention_norm), (block.mlp, block.mlp_norm)]
        return applied


def _norm(config: ModelConfig) -> RMSNorm:
    return RMSNorm(config.d_model, config.norm_eps)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big", signed=True))


def _document_mask(doc_ids_BT: Tensor) -> Tensor:
    """[B, 1, T, T], true where the row's token may look at the column's: not later, and the same document."""
    length = doc_ids_BT.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=doc_ids_BT.device).tril()
    return (doc_ids_BT[:, None, :, None] == doc_ids_BT[:, None, None, :]) & causal
