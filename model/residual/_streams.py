"""What schemes with S parallel residual streams share: replicas at the start, weighted reads, mixes and writes, norms.

Streams are X [B, T, S, D]. With read weights r [.., S], mixing M [.., S, S] (row: to, column: from), write weights w
[.., S]:

    input = sum over s of r_s X_s,      X'_s = sum over j of M_sj X_j + w_s y

Traffic per token of one sublayer in S D values, as counted for hyper-connections (mHC, arXiv 2512.24880, section 3):
reads 5S + 1 and writes 3S + 1 of width D, (8S + 2) D; vanilla's 3D are subtracted by the schemes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast, routing_dtype
from model.residual.base import Context


def replicas(x_BTD: Tensor, streams: int) -> Tensor:
    """[B, T, D] -> [B, T, S, D], every stream a copy."""
    return x_BTD.unsqueeze(2).expand(-1, -1, streams, -1)


def weighted_read(X_BTSD: Tensor, weights: Tensor) -> Tensor:
    """Sum over streams with weights [S] or [B, T, S]: [B, T, D] in the type of the streams."""
    with no_autocast(X_BTSD):
        return (X_BTSD * weights.to(X_BTSD.dtype).unsqueeze(-1)).sum(2)


def mix_and_write(X_BTSD: Tensor, mixing: Tensor | None, weights: Tensor, y_BTD: Tensor) -> Tensor:
    """The next streams; `mixing` [S, S] or [B, T, S, S], None for the identity; `weights` [S] or [B, T, S]."""
    with no_autocast(X_BTSD):
        kept = X_BTSD if mixing is None else torch.matmul(mixing.to(X_BTSD.dtype), X_BTSD)
        return kept + weights.to(X_BTSD.dtype).unsqueeze(-1) * y_BTD.to(X_BTSD.dtype).unsqueeze(2)


def normed_vector(X_BTSD: Tensor, eps: float) -> Tensor:
    """RMSNorm without gain over all streams and channels together: [B, T, S D] in the routing type. A gain would be
    absorbed by the matrix behind it."""
    vector = X_BTSD.flatten(2)
    return vector.to(routing_dtype(vector)) * inverse_rms(vector, eps).unsqueeze(-1)


def stream_spread(X_BTSD: Tensor) -> Tensor:
    """Largest rms distance of a stream from the first: [1, 1, B, T], zero while all are replicas."""
    return (X_BTSD - X_BTSD[:, :, :1]).detach().square().mean(-1).sqrt().amax(2)[None, None]


def record_streams(ctx: Context, site: int, X_BTSD: Tensor) -> None:
    """Telemetry of the streams that a site reads: their norms and how far they are apart."""
    if ctx.recorder is not None:
        norms_BTS = X_BTSD.detach().square().mean(-1).sqrt()
        ctx.recorder.record("source_norm", site, norms_BTS.permute(2, 0, 1).unsqueeze(1))
        ctx.recorder.record("stream_spread", site, stream_spread(X_BTSD))


def record_weights(ctx: Context, name: str, site: int, weights: Tensor) -> None:
    """Telemetry of weights [.., S] as [S, 1, ..], or mixing [.., S, S] as [from, to, ..]."""
    if ctx.recorder is not None:
        found = weights.detach()
        if name == "mix_weights":
            found = found.movedim(-1, 0).movedim(-1, 1)
        else:
            found = found.movedim(-1, 0).unsqueeze(1)
        ctx.recorder.record(name, site, found)
