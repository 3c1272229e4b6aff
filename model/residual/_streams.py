"""Several residual streams at once, X [B, T, S, D]: how they are read, mixed, written, and watched.

    read u = sum_j r_j X_j;   mix X'_j = sum_i m_ij X_i (from i, to j);   write X'_j += w_j y

Coefficients are [B, T, S] and [B, T, S, S], B and T of size 1 where they are not of a token. They and the sums
are float32 (float64 for float64 streams) whatever autocast says; results have the type of the streams.
"""

from __future__ import annotations

from torch import Tensor

from kernels.precision import no_autocast
from model.residual.base import Recorder


def copy_streams(x_BTD: Tensor, streams: int) -> Tensor:
    """Every stream starts as x: [B, T, S, D], a view."""
    return x_BTD.unsqueeze(-2).expand(-1, -1, streams, -1)


def read(x_BTSD: Tensor, weights_BTS: Tensor) -> Tensor:
    """One weighted sum of the streams, [B, T, D]."""
    with no_autocast(x_BTSD):
        summed = (weights_BTS.unsqueeze(-2) @ x_BTSD.to(weights_BTS.dtype)).squeeze(-2)
    return summed.to(x_BTSD.dtype)


def mix(x_BTSD: Tensor, weights_BTSS: Tensor) -> Tensor:
    """A weighted sum of the streams for each stream; weights are [..., from, to]."""
    with no_autocast(x_BTSD):
        mixed = weights_BTSS.mT @ x_BTSD.to(weights_BTSS.dtype)
    return mixed.to(x_BTSD.dtype)


def write(x_BTSD: Tensor, weights_BTS: Tensor, y_BTD: Tensor) -> Tensor:
    """Each stream with its share of y added."""
    share = weights_BTS.unsqueeze(-1) * y_BTD.to(weights_BTS.dtype).unsqueeze(-2)
    return x_BTSD + share.to(x_BTSD.dtype)


def record_coefficients(
    recorder: Recorder, site: int, read_BTS: Tensor, write_BTS: Tensor, mix_BTSS: Tensor | None
) -> None:
    """Telemetry of one sublayer; streams stand where sources do."""
    recorder.record("read_weights", site, read_BTS.detach().movedim(-1, 0).unsqueeze(1))
    recorder.record("write_weights", site, write_BTS.detach().movedim(-1, 0).unsqueeze(1))
    if mix_BTSS is not None:
        recorder.record("mix_weights", site, mix_BTSS.detach().permute(2, 3, 0, 1))


def record_spread(recorder: Recorder, site: int, x_BTSD: Tensor) -> None:
    """How far the stream furthest from stream 0 is from it: zero while all are copies of one."""
    apart = x_BTSD.detach() - x_BTSD.detach()[..., :1, :]
    recorder.record("stream_spread", site, apart.square().mean(-1).sqrt().amax(-1)[None, None])
