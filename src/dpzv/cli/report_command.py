"""`dpzv report` and `dpzv watch`: runs side by side on a page, written to a file or served while they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpzv.errors import ConfigError

__all__ = ["report", "watch"]

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders with runs in them.")]


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write runs side by side as one HTML file: curves, privacy, devices and what differs in their settings.

    Example: dpzv report runs/first runs/half --out report.html
    """
    from dpzv.report.page import write_page

    found = write_page(folders, out)
    if not found:
        named = ", ".join(map(str, folders))
        raise ConfigError(f"expected a run in {named}, got none; name a folder that holds a config.toml.")
    typer.echo(f"Report page of {found} run{'' if found == 1 else 's'}: {out}")


def watch(
    folders: Folders,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: any that is free.")] = 0,
) -> None:
    """Serve the report page on this machine while runs go on, and renew it by itself; Ctrl-C ends it.

    Example: dpzv watch runs/first
    """
    import threading

    from dpzv.report.page_server import PageServer
    from dpzv.runtime.progress import stop_asked

    with PageServer(folders, port) as server, stop_asked() as stopped:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        typer.echo(f"Open {server.address} in a browser on this machine; Ctrl-C ends it.")
        nothing = threading.Event()
        while not stopped():
            nothing.wait(0.2)
        server.shutdown()
