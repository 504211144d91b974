"""``igr explore``: relaxations, fits and the reproduction on a local web page."""

import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated

from igr._commands.common import USUAL, needs, progress, usual_records

if TYPE_CHECKING:
    import typer


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command()
    def explore(
        host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[
            int, typer.Option(help="The port, or where that is taken the next free one.", min=1, max=65_535)
        ] = 8050,
        results: Annotated[
            Path | None,
            typer.Option(
                help="Folder with records, for the tab of the reproduction.",
                exists=True,
                file_okay=False,
                show_default=USUAL,
            ),
        ] = None,
        no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    ) -> None:
        """Look at relaxations on a local web page: move τ, δ, μ and σ, watch a fit, browse the reproduction.

        Works offline. Only this machine can reach the page unless --host says otherwise. Ctrl-C ends it.
        """
        with suppress(KeyboardInterrupt):
            with progress() as report:
                report("importing torch", 0)
                try:
                    import dash  # noqa: F401 (so that it is named, and not what comes with it)

                    from igr.explorer.serving import is_loopback, listen, serve
                except ModuleNotFoundError as error:
                    needs("igr explore", error, "explorer")
            with _listening(listen, host, port) as listening:
                found = listening.getsockname()[1]
                if found != port:
                    print(f"igr: port {port} is taken, so this is port {found}", file=sys.stderr)
                if not is_loopback(host):
                    print(f"igr: --host {host} lets anyone on the network reach this page", file=sys.stderr)
                url = f"http://{f'[{host}]' if ':' in host else host}:{found}"
                typer.echo(f"The explorer is at {url}; Ctrl-C ends it")
                if not no_browser:
                    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
                serve(listening, host, results or usual_records())


def _listening(listen: Callable[[str, int], socket], host: str, port: int) -> socket:
    """A socket, or the fault of the options."""
    import typer

    try:
        return listen(host, port)
    except OSError as error:
        words = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise typer.BadParameter(words, param_hint="--host, --port") from error
