"""Addresses that keys of the environment may go to: those that the user gave, and not those of a folder's file.

A ``care.toml`` or ``pyproject.toml`` is read in whatever folder one stands in, a stranger's included. An address that
it sets gets a key only where the user has confirmed the host once, on a terminal; the confirmed hosts are kept in a
file of the user's configuration folder.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from care_qdrant.errors import InputError, redact, remember_secret

logger = logging.getLogger(__name__)

CONFIRMED_FILE = "confirmed-hosts"


def came_from_file(option: str) -> bool:
    """Return whether a file of the current folder gave the value of an option, and not the user."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is click.core.ParameterSource.DEFAULT_MAP


def environment_key(variable: str, urls: Sequence[str], option: str) -> str | None:
    """Return the key of an environment variable for the servers of an option; None where it may not go to all of them.

    Args:
        variable: As ``QDRANT_API_KEY``.
        urls: Where the key would go.
        option: Name of the parameter that has the URLs.
    """
    key = os.environ.get(variable)
    remember_secret(key)
    if not key or not urls or not came_from_file(option):
        return key
    confirmed = _confirmed()
    unknown = sorted({host for host in map(_host, urls) if host not in confirmed})
    if unknown and not _confirm(variable, unknown):
        logger.warning(
            "%s is not sent to %s: a file of this folder names that server. Give the URL on the command line or in the "
            "environment, or run this on a terminal and confirm it once",
            variable,
            ", ".join(unknown),
        )
        return None
    return key


def warn_of_plain_http(variable: str, urls: Sequence[str]) -> None:
    """Log once for each server of another machine that a key would reach in clear text."""
    from care_qdrant.qdrant.connection import is_loopback

    for url in urls:
        if urlsplit(url).scheme == "http" and not is_loopback(urlsplit(url).hostname):
            logger.warning("%s: %s is sent without encryption; give an https URL", redact(url), variable)


def warn_of_foreign_folder(path: Path) -> None:
    """Log where an embedded database belongs to another user of the machine: it is unpickled, which can run code."""
    try:
        owner = path.stat().st_uid
    except OSError:  # it is not there yet
        return
    if hasattr(os, "geteuid") and owner != os.geteuid():
        logger.warning(
            "%s: this folder belongs to another user (uid %d), and was not named on the command line. The files of an "
            "embedded database are unpickled, and can run code: open it only if you trust that user",
            path,
            owner,
        )


def _host(url: str) -> str:
    """Return scheme, host and port of a URL; other paths of a server are the same server."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InputError(f"{url}: is no URL ({error})") from error
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _file() -> Path:
    return Path(click.get_app_dir("care"), CONFIRMED_FILE)


def _confirmed() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def _confirm(variable: str, hosts: Sequence[str]) -> bool:
    """Ask on a terminal whether the key may go to these hosts, and remember a yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"A file of this folder sends {variable} to {', '.join(hosts)}. Do you trust that server?"
    if not click.confirm(question, default=False, err=True):
        return False
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write("".join(f"{host}\n" for host in hosts))
    except OSError as error:
        logger.warning("%s: cannot be written (%s); the question comes again", file, error)
    return True
