"""The table of all schemes for the README: `python -m model.describe --schemes [--write README.md]`.

A scheme is a row with its default settings, or with those of `SETTINGS`. All costs are what it adds to vanilla.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.accounting import resolve_scheme, scheme_costs
from model.config import ModelConfig, words
from model.residual import load_scheme, scheme_names

SETTINGS: dict[str, tuple[Mapping[str, Any], ...]] = {
    "vanilla": ({}, {"conv": (4, 8, 12)}),
    "attnres": ({}, {"blocks": 8}, {"blocks": 8, "conv": (4, 8, 12)}),
    "msar": ({"blocks": 8}, {"blocks": 8, "conv_owner": "source"}),
    "mhar": ({"heads": 8}, {"heads": 8, "blocks": 8}),
}
"""Rows of the schemes whose settings matter for the costs; any other scheme is one row with its defaults."""

BEGIN = "<!-- table of schemes: made by `python -m model.describe --schemes --write README.md` -->"
END = "<!-- end of the table of schemes -->"
HEADINGS = (
    *("scheme", "source", "what it changes", "extra parameters", "extra forward FLOPs/token"),
    *("extra residual bytes/token", "equals vanilla at the start", "specified by its source"),
)
NUMBERS = range(3, 6)  # columns set to the right


def rows(model: ModelConfig) -> Iterator[tuple[str, ...]]:
    """The cells of every scheme, vanilla first; the first one names the scheme and its settings."""
    for name in sorted(scheme_names(), key=lambda name: (name != "vanilla", name)):
        for settings in SETTINGS.get(name) or (_default(name),):
            yield _row(model, name, settings)


def markdown(model: ModelConfig) -> str:
    """The table in markdown, one line a row."""
    rule = ["---:" if place in NUMBERS else "---" for place in range(len(HEADINGS))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (HEADINGS, rule, *rows(model)))


def listed(text: str) -> list[tuple[str, ...]]:
    """The cells of the rows that stand between the markers in `text`."""
    lines = _split(text)[1].strip().splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip().strip("|").split(" | ")) for line in lines]


def write(target: Path, table: str) -> None:
    """Put `table` between the markers in `target`. ValueError where there are none."""
    try:
        before, _, after = _split(target.read_text(encoding="utf-8"))
        target.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--write {target}: cannot be written ({error.strerror}): give a file that exists") from error
    except ValueError as error:
        raise ValueError(f"--write {target}: {error}") from error


def _split(text: str) -> tuple[str, str, str]:
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no line {BEGIN!r} with {END!r} below it: add both where the table shall stand")
    return before, inside, after


def required(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a scheme requires and that are not given, as in its first row here."""
    fields = load_scheme(name).Config.model_fields
    row = SETTINGS.get(name, (_default(name),))[0]
    return {key: row[key] for key, field in fields.items() if field.is_required() and key not in given and key in row}


def _default(name: str) -> Mapping[str, Any]:
    """No settings, or a scheme's first example where it requires some."""
    scheme_class = load_scheme(name)
    required = any(field.is_required() for field in scheme_class.Config.model_fields.values())
    return scheme_class.examples[0] if required else {}


def _row(model: ModelConfig, name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    scheme_class, config = resolve_scheme(model, name, settings)
    costs = scheme_costs(model, name, settings)
    flops, traffic = costs["forward FLOPs/token"], costs["residual bytes/token, forward"]
    why, chosen = scheme_class.differs_from_vanilla(config), scheme_class.reconstruction
    cells = (
        " ".join([f"`{name}`", *words(settings)]),
        scheme_class.paper,
        scheme_class.changes,
        _extra(costs["parameters"].total - costs["parameters"].vanilla),
        f"{_extra(flops.total - flops.vanilla)} ({100 * (flops.total / flops.vanilla - 1):.2f}%)",
        _extra(traffic.total - traffic.vanilla),
        f"no: {why}" if why else "yes",
        f"reconstruction: {chosen}" if chosen else "yes",
    )
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _extra(number: int) -> str:
    return f"{number:,}"
