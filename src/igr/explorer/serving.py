"""The explorer on a port of this machine."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from pathlib import Path
from urllib.parse import urlsplit

from flask import Flask, abort, request
from werkzeug.serving import make_server

from igr.explorer import relaxations
from igr.explorer.app import create
from igr.explorer.fitting import Fits
from igr.paper.threads import one_thread

__all__ = ["guard", "is_loopback", "listen", "serve"]

TRIES = 20  # ports, from the one that is asked for


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the port, or where that is taken on the next that is not.

    Raises:
        OSError: the address is not one of this machine, the port is not allowed, or many in a row are taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + TRIES, 65_536)):
        try:
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {candidate} are all taken")


def guard(page: Flask, host: str) -> None:
    """On loopback, no other site may get at the page under a name of its own that leads here."""
    known = {"127.0.0.1", "localhost", "::1", host.lower()}

    def refuse_others() -> None:
        try:
            asked = urlsplit(f"//{request.host}").hostname
        except ValueError:  # no host at all
            asked = None
        if asked not in known:
            abort(400, "this page is only for the machine that it runs on")

    if is_loopback(host):
        page.before_request(refuse_others)


def serve(listening: socket.socket, host: str, results: Path) -> None:
    """Answers browsers until it is interrupted; fits that still run are ended then."""
    fits = Fits()
    app = create(results, fits)
    guard(app.server, host)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    relaxations.look([0, [], *relaxations.START])  # so that the first page does not wait for what is done once
    port = listening.getsockname()[1]
    server = make_server(host, port, app.server, threaded=True, fd=listening.fileno())
    try:
        with one_thread():
            server.serve_forever()
    finally:
        fits.close()
