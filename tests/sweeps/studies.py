"""Small study files for tests."""

from pathlib import Path
from typing import Any

import yaml

SIZE = {"name": "s", "d_model": 32, "layers": 2, "heads": 2, "tokens": 100_000}
LARGER = {"name": "m", "d_model": 48, "layers": 3, "heads": 4, "tokens": 200_000}
MARKOV = {"source": "markov"}


def write_study(folder: Path, name: str = "try.yaml", **keys: Any) -> Path:
    """A study of one size and vanilla on the markov source; `keys` replace top-level keys."""
    content = {"sizes": [SIZE], "schemes": ["vanilla"], "data": MARKOV, "evaluation": {"tokens": 1280}, **keys}
    path = folder / name
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
