"""`python -m model.describe --scheme mhar --d-model 1024 --layers 24 --set heads=8`: what a model costs, by term.

Parameters and forward FLOPs per token under the convention of `model.accounting`, then what the scheme adds to
vanilla: its overhead, residual traffic and the state it keeps in inference. `--schemes` prints the table of all
schemes instead, and `--write FILE` puts it between that file's markers. Nothing is built. A setting that does not fit
is one line and exit code 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from model.config import ModelConfig, words
from model.errors import InputError, run_app
from model.residual import check_name

if TYPE_CHECKING:
    from model.accounting import Cost
    from model.residual.base import ResidualScheme, SchemeConfig

HEAD_WIDTH = 64
MLP_MULTIPLE = 128
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
WIDEST = 1000  # columns of a terminal, only to measure the table
NO_MAPPING = ("float_type", "int_type", "string_type", "literal_error", "tuple_type")
SHOWN_RUNS = 12  # runs of equal numbers that one line shows


@app.command()
def main(
    scheme: Annotated[str, typer.Option(help="Residual scheme: a file name of model/residual.")] = "vanilla",
    d_model: Annotated[int, typer.Option(help="Width D.")] = 1024,
    layers: Annotated[int, typer.Option(help="Transformer blocks L.")] = 24,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the scheme, such as heads=8.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads; default: width 64 each.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads; default: as heads.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="MLP width F; default: 8D/3 rounded up to 128.")] = None,
    vocab: Annotated[int, typer.Option(help="Vocabulary V.")] = 32_768,
    seq_len: Annotated[int, typer.Option(help="Tokens a sequence T.")] = 2048,
    tied: Annotated[bool, typer.Option("--tied/--untied", help="Head shares the embedding.")] = False,
    qk_norm: Annotated[bool, typer.Option("--qk-norm/--no-qk-norm", help="Norm on queries and keys.")] = False,
    schemes: Annotated[bool, typer.Option("--schemes", help="Print the table of all schemes, in markdown.")] = False,
    write: Annotated[
        Path | None, typer.Option(help="With --schemes: replace the table in this file.", show_default=False)
    ] = None,
) -> None:
    """Parameters, FLOPs per token and bytes of one model, by term."""
    try:
        check_name(scheme)
        if heads is None and (d_model < 1 or d_model % HEAD_WIDTH):
            raise ValueError(
                f"d_model {d_model} is not a multiple of the head width {HEAD_WIDTH}: give --heads, a divisor"
            )
        model = ModelConfig(
            d_model=d_model,
            layers=layers,
            heads=heads or d_model // HEAD_WIDTH,
            kv_heads=kv_heads,
            d_ff=d_ff or -(-8 * d_model // (3 * MLP_MULTIPLE)) * MLP_MULTIPLE,
            vocab=vocab,
            seq_len=seq_len,
            tied=tied,
            qk_norm=qk_norm,
        )
        if schemes or write is not None:
            _all_schemes(model, schemes, write)
            return
        given = parse_settings(settings or [])
        from model import scheme_table

        assumed = scheme_table.required(scheme, given)
        parts = describe(model, scheme, assumed | given)
        if assumed:
            parts.append(
                Text(f"assumed: {', '.join(words(assumed))}; give --set {next(iter(assumed))}=... for another")
            )
    except ValueError as error:
        raise InputError(one_line(error)) from error
    console = Console()
    # numbers cut to fit a narrow terminal would be wrong numbers
    needed = max(Measurement.get(console, console.options.update(width=WIDEST), part).maximum for part in parts)
    for part in parts:
        Console(width=max(console.width, needed), highlight=False).print(part)


def _all_schemes(model: ModelConfig, wanted: bool, target: Path | None) -> None:
    """The table of all schemes to stdout, or into a file."""
    if not wanted:
        raise ValueError(f"--write {target}: only with --schemes")
    from model import scheme_table

    table = scheme_table.markdown(model)
    if target is None:
        print(table, end="")
    else:
        scheme_table.write(target, table)


def describe(model: ModelConfig, scheme: str, settings: Mapping[str, Any]) -> list[Table | Text]:
    """A table by term, one of what the scheme adds to vanilla, and what is known of the scheme."""
    # torch is imported only here, so that wrong options are answered at once
    from model import accounting

    scheme_class, config = accounting.resolve_scheme(model, scheme, settings)
    given = {key: getattr(config, key) for key in type(config).model_fields if key in settings}
    return [
        _by_term(model, " ".join([scheme, *words(given)]), scheme, settings),
        _beyond_vanilla(model, accounting.scheme_costs(model, scheme, settings)),
        Text("\n".join(_facts(scheme_class, config, model.layers))),
    ]


def _by_term(model: ModelConfig, arm: str, scheme: str, settings: Mapping[str, Any]) -> Table:
    from model import accounting

    parameters = accounting.parameter_terms(model, scheme, settings)
    flops = accounting.forward_flops_per_token(model, scheme, settings)
    total = sum(flops.values())
    terms = list(flops)
    terms.insert(terms.index("head"), "norms")  # the one term with parameters but no counted FLOPs
    table = Table(
        title=f"{arm}: D {model.d_model}, L {model.layers}, heads {model.heads}/{model.num_kv_heads}, "
        f"F {model.mlp_width}, V {model.vocab}, T {model.seq_len}, {'tied' if model.tied else 'untied'}",
        caption=f"FLOPs convention {accounting.FLOPS_CONVENTION}: a multiply-add is 2, causal attention at T/2, "
        "head counted, training 3x forward",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("term")
    for title in ("parameters", "forward FLOPs/token", "share %"):
        table.add_column(title, justify="right")
    for term in terms:
        table.add_row(
            term,
            f"{parameters.get(term, 0):,}",
            f"{flops.get(term, 0):,}",
            f"{100 * flops.get(term, 0) / total:.2f}",
        )
    table.add_section()
    table.add_row("total", f"{sum(parameters.values()):,}", f"{total:,}", "100.00")
    table.add_row("training", "", f"{3 * total:,}", "")
    return table


def _beyond_vanilla(model: ModelConfig, costs: Mapping[str, Cost]) -> Table:
    table = Table(
        title="What the scheme adds to vanilla",
        caption="Residual bytes: reads and writes of the stream, vanilla's 3D values a sublayer; state: inference, at "
        "its peak",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for title in ("vanilla", "extra", "total", "overhead %"):
        table.add_column(title, justify="right")
    for name, (vanilla, total) in costs.items():
        overhead = f"{100 * (total - vanilla) / vanilla:.3f}" if vanilla else ""
        table.add_row(name, f"{vanilla:,}", f"{total - vanilla:,}", f"{total:,}", overhead)
    return table


def _facts(scheme_class: type[ResidualScheme], config: SchemeConfig, layers: int) -> list[str]:
    """Sentences about the scheme: what its sites mix, where it is from, what it equals at the start."""
    sources = scheme_class.sources_per_site(layers, config)
    why = scheme_class.differs_from_vanilla(config)
    lines = [
        f"sources per site: {runs(sources)}; mean {sum(sources) / len(sources):.4g}, maximum {max(sources)}, "
        f"{len(sources)} sites",
    ]
    if scheme_class.changes:
        lines.append(f"changes: {scheme_class.changes}")
    if scheme_class.paper:
        lines.append(f"source: {scheme_class.paper}")
    if scheme_class.reconstruction:
        lines.append(f"reconstruction: {scheme_class.reconstruction}")
    return [*lines, f"equals vanilla at the start: {f'no, {why}' if why else 'yes'}"]


def runs(values: Sequence[int]) -> str:
    """Whole numbers in few words: `1, 2 x4, 3 x4` for repeats, `1 to 49` where each is one more than the last."""
    if len(values) > 2 and all(after == before + 1 for before, after in pairwise(values)):
        return f"{values[0]} to {values[-1]}, one more each"
    groups = [(value, len(list(group))) for value, group in groupby(values)]
    told = [str(value) if count == 1 else f"{value} x{count}" for value, count in groups]
    return ", ".join(told if len(told) <= SHOWN_RUNS else [*told[: SHOWN_RUNS - 2], "...", told[-1]])


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`key=value` pairs, values read as YAML: heads=8 is a number, blocks=null is None. Lists and mappings may also be
    written as arms are named: conv=4,8,12 and scale=matched_heads:8."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair!r}: write key=value, for example --set heads=8")
        try:
            settings[key] = yaml.safe_load(_as_yaml(value))
        except yaml.YAMLError:
            raise ValueError(f"--set {pair!r}: {value!r} is not a YAML value") from None
    return settings


def _as_yaml(value: str) -> str:
    """YAML of a value that may be written as in an arm's name."""
    if value == "none":
        return "[]"
    if re.fullmatch(r"[\w.+-]+(,[\w.+-]+)+", value):
        return f"[{value}]"
    if re.fullmatch(r"[A-Za-z_]\w*:[\w.+-]+", value):
        return "{" + value.replace(":", ": ") + "}"
    return value


def one_line(error: ValueError) -> str:
    """A pydantic error as one line: the key, the message and the value given, for each thing wrong."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    parts = []
    found = error.errors(include_url=False)
    # a mapping where one is allowed besides a number: its own faults, not also that it is no number
    inside = [item for item in found if not (isinstance(item["input"], dict) and item["type"] in NO_MAPPING)]
    for item in inside or found:
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        given = f" (got {item['input']!r:.80})" if key and item["type"] != "missing" else ""
        parts.append(f"{key}: {message}{given}" if key else message)
    return "; ".join(parts)


if __name__ == "__main__":
    run_app(app)
