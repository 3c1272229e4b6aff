"""Tables on disk and the published numbers that the fits are held against."""

from pathlib import Path

import pytest

from fitting.sources import load_tables

T7_FLOPS = [1e17, 3e17, 1e18, 3e18, 1e19, 3e19, 1e20]
"""Toy ladder of the public reports: L = 1000 * C^-0.16 + 1.7."""

# Attention Residuals, arXiv 2603.15031, table 2; compute is 6 x activated parameters x tokens
KIMI_FLOPS = [
    6 * n * d for n, d in ((194e6, 38.7e9), (241e6, 45.4e9), (296e6, 62.1e9), (436e6, 87.9e9), (528e6, 119e9))
]
KIMI = {
    "baseline": [1.931, 1.895, 1.829, 1.766, 1.719],
    "attnres_block": [1.909, 1.875, 1.809, 1.746, 1.693],
    "attnres_full": [1.899, 1.874, 1.804, 1.737, 1.692],
    "mhc_lite": [1.906, 1.869, 1.807, 1.747, 1.694],
}


def law(flops, A=1000.0, beta=0.16, E=1.7):
    return A * flops**-beta + E


def write_csv(path: Path, rows, header=("scheme", "size", "flops", "loss")) -> Path:
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def table(tmp_path):
    """A function that turns {arm: [(flops, loss), ...]} into a study."""

    def make(arms, name="study"):
        rows = [(arm, f"s{i}", flops, loss) for arm, points in arms.items() for i, (flops, loss) in enumerate(points)]
        return load_tables([write_csv(tmp_path / f"{name}.csv", rows)])[0]

    return make


@pytest.fixture
def kimi(table):
    return table({arm: list(zip(KIMI_FLOPS, losses, strict=True)) for arm, losses in KIMI.items()}, "kimi")
