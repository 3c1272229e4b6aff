"""Depth attention: a softmax over the K sources of a site, a weighted sum of their raw values.

With R(v) = v / sqrt(mean(v^2) + eps) over the full width D, query q_D, key gain g_D, and D cut into H equal
groups of neighbouring channels (heads):

    logit_k[h]  = sum over channels c of head h of q[c] g[c] R(v_k)[c]
    weight_k[h] = softmax over k of logit_k[h]
    out[c]      = sum over k of weight_k[head of c] v_k[c]

The key norm spans the full width; with one rms a head (MHAR's ablation) R divides each head by its own. A query may
also be [..., D], another one for every token.

Sources are [..., D], all of one shape and type (float32, float64, bfloat16, float16). Routing is computed in
float32, in float64 for float64 sources, whatever autocast says; the output has the type of the sources. 1 /
rms of a source is the same at every site, so callers compute it once a source with `inverse_rms` and pass it
in; gradients flow through it. Source: Attention Residuals (arXiv 2603.15031, section 3), heads from MHAR
(arXiv 2607.27230).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels import dispatch
from kernels.depth_mix import ref

__all__ = ["depth_mix", "depth_weights", "inverse_rms"]

_PATHS = {"ref": ref}


def inverse_rms(source: Tensor, eps: float, groups: int = 1) -> Tensor:
    """1 / sqrt(mean(source^2) + eps) over the last dimension: [..., D] -> [...], float32 or float64. With `groups`
    equal parts of the channels: [groups, ...], one for each part."""
    return ref.inverse_rms(source, eps, groups)


def depth_mix(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """Mix K sources [..., D] into one [..., D]. `inverse[k]` is `inverse_rms(sources[k], eps)`, or with groups=heads;
    `query` is [D], or [..., D] for a query a token.

    Saved for backward: the sources and their inverse rms (alive anyway), logits and weights [K, H, M]; nothing of size
    K*M*D, but with a query a token, which is left to autograd. One source comes back as it is, and a single query and
    its gain get a gradient of exactly zero.
    """
    _check(sources, inverse, heads)
    return _PATHS[dispatch.kernel_path()].depth_mix(sources, inverse, query, gain_D, heads)


def depth_weights(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """The weights alone, for telemetry and tests: [K, H, ...], without gradient; they sum to one over K."""
    _check(sources, inverse, heads)
    return ref.depth_weights(sources, inverse, query, gain_D, heads)


def _check(sources: Sequence[Tensor], inverse: Sequence[Tensor], heads: int) -> None:
    if not sources or len(sources) != len(inverse):
        raise ValueError(f"depth_mix needs one inverse rms a source, got {len(sources)} and {len(inverse)}")
    width = sources[0].shape[-1]
    if heads < 1 or width % heads:
        raise ValueError(f"depth_mix: {heads} heads do not divide the width {width}")
    for source in sources[1:]:
        if source.shape != sources[0].shape or source.dtype != sources[0].dtype:
            raise ValueError(
                f"depth_mix: sources differ, {tuple(sources[0].shape)} {sources[0].dtype} "
                f"against {tuple(source.shape)} {source.dtype}"
            )
