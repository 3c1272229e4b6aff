"""`python -m sweeps`: plan, run and status of studies, and the probe of a trained run. Commands import what they need
when they are called, so that a wrong study is answered before torch is loaded."""

from __future__ import annotations

import typer

from model.errors import run_app
from sweeps.commands.plan import plan
from sweeps.commands.probe import probe
from sweeps.commands.run import run
from sweeps.commands.status import status

app = typer.Typer(
    help="Scaling-law studies of residual schemes.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _commands() -> None:
    """Scaling-law studies of residual schemes."""


app.command()(plan)
app.command()(run)
app.command()(status)
app.command()(probe)

if __name__ == "__main__":
    run_app(app)
