"""`python -m sweeps`: plan, submit and watch studies, look into runs. Commands import what they need when they are
called, so that a wrong study is answered before torch is loaded."""

from __future__ import annotations

import typer

from model.errors import run_app
from sweeps.commands.cancel import cancel, retry
from sweeps.commands.doctor import doctor
from sweeps.commands.logs import logs
from sweeps.commands.plan import plan
from sweeps.commands.probe import probe
from sweeps.commands.reproduce import reproduce
from sweeps.commands.status import status
from sweeps.commands.submit import run, submit
from sweeps.commands.verify import verify

app = typer.Typer(
    help="Scaling-law studies of residual schemes.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _commands() -> None:
    """Scaling-law studies of residual schemes."""


for command in (plan, submit, run, status, logs, cancel, retry, verify, reproduce, doctor, probe):
    app.command()(command)

if __name__ == "__main__":
    run_app(app)
