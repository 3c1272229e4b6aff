"""`python -m model.describe --scheme mhar --d-model 1024 --layers 24 --set heads=8`: what a model costs, by term.

Parameters, forward FLOPs per token under the convention of `model.accounting`, the scheme's overhead over
vanilla and its residual traffic. Nothing is built. A setting that does not fit is one line and exit code 2.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from model.config import ModelConfig
from model.errors import InputError, run_app
from model.residual import check_name

HEAD_WIDTH = 64
MLP_MULTIPLE = 128
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
WIDEST = 1000  # columns of a terminal, only to measure the table


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
        table = describe(model, scheme, parse_settings(settings or []))
    except ValueError as error:
        raise InputError(one_line(error)) from error
    console = Console()
    # numbers cut to fit a narrow terminal would be wrong numbers
    needed = Measurement.get(console, console.options.update(width=WIDEST), table).maximum
    Console(width=max(console.width, needed)).print(table)


def describe(model: ModelConfig, scheme: str, settings: dict[str, Any]) -> Table:
    """The table: a row a term, then the forward total and training."""
    # torch is imported only here, so that wrong options are answered at once
    from model import accounting

    parameters = accounting.parameter_terms(model, scheme, settings)
    flops = accounting.forward_flops_per_token(model, scheme, settings)
    total = sum(flops.values())
    vanilla = total - flops["scheme"]
    extra_bytes = accounting.scheme_bytes_per_token(model, scheme, settings)
    terms = list(flops)
    terms.insert(terms.index("head"), "norms")  # the one term with parameters but no counted FLOPs
    arm = " ".join([scheme, *(f"{key}={value}" for key, value in settings.items())])
    table = Table(
        title=f"{arm}: D {model.d_model}, L {model.layers}, heads {model.heads}/{model.num_kv_heads}, "
        f"F {model.mlp_width}, V {model.vocab}, T {model.seq_len}, {'tied' if model.tied else 'untied'}",
        caption=f"FLOPs convention {accounting.FLOPS_CONVENTION}: a multiply-add is 2, causal attention at T/2, "
        "head counted, training 3x forward; overhead and bytes are beyond vanilla",
    )
    table.add_column("term")
    for title in ("parameters", "forward FLOPs/token", "share %", "overhead %", "bytes/token"):
        table.add_column(title, justify="right")
    for term in terms:
        is_scheme = term == "scheme"
        table.add_row(
            term,
            f"{parameters.get(term, 0):,}",
            f"{flops.get(term, 0):,}",
            f"{100 * flops.get(term, 0) / total:.2f}",
            f"{100 * flops[term] / vanilla:.3f}" if is_scheme else "",
            f"{extra_bytes:,}" if is_scheme else "",
        )
    table.add_section()
    table.add_row("total", f"{sum(parameters.values()):,}", f"{total:,}", "100.00", "", "")
    table.add_row("training", "", f"{3 * total:,}", "", "", "")
    return table


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`key=value` pairs, values read as YAML: heads=8 is a number, blocks=null is None."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair!r}: write key=value, for example --set heads=8")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"--set {pair!r}: {value!r} is not a YAML value") from None
    return settings


def one_line(error: ValueError) -> str:
    """A pydantic error as one line: the key, the message and the value given, for each thing wrong."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    parts = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        given = f" (got {item['input']!r})" if key and item["type"] != "missing" else ""
        parts.append(f"{key}: {message}{given}" if key else message)
    return "; ".join(parts)


if __name__ == "__main__":
    run_app(app)
