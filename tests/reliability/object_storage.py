"""An S3 server on this machine (moto) that throttles, resets connections, halves bodies and lets credentials expire."""

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.reliability.bulk import care_bulk, make_job, report_of, violations_of
from tests.reliability.trials import Trial

FAULTS = ("throttled", "reset", "half writes", "half reads", "expired")
RATE = 0.3
"""Fraction of the requests on parts and receipts that fail."""
BUCKET = "bulk"

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class FaultyStorage:
    """A WSGI application in front of moto's; `fault` chooses what goes wrong from now on."""

    def __init__(self, app: App, seed: int) -> None:
        self.fault: str | None = None
        self.faults = 0
        self._app, self._draw, self._lock = app, random.Random(seed), threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        fault = self._drawn(environ)
        if fault == "expired":
            return _refusal(start, "400 Bad Request", "ExpiredToken", "The provided token has expired.")
        if fault == "throttled":
            return _refusal(start, "503 Slow Down", "SlowDown", "Please reduce your request rate.")
        if fault == "reset":
            _break(environ)
        if fault == "half writes":
            # The server has read half of the body when the connection breaks: nothing is stored.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            _break(environ)
        body = self._app(environ, start)
        if fault == "half reads":
            content = b"".join(body)
            return [content[: len(content) // 2]]
        return body

    def _drawn(self, environ: dict[str, Any]) -> str | None:
        with self._lock:
            fault, is_write = self.fault, environ["REQUEST_METHOD"] in ("PUT", "POST")
            is_one = fault is not None and (fault == "expired" or self._draw.random() < RATE)
            if not is_one or (fault == "half writes" and not is_write):
                return None
            if fault == "half reads" and environ["REQUEST_METHOD"] != "GET":
                return None
            self.faults += 1
            return fault


def _break(environ: dict[str, Any]) -> NoReturn:
    """Close the connection without an answer."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("connection closed by the trial")


def _refusal(start: Callable[..., Any], status: str, code: str, message: str) -> list[bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


@contextmanager
def faulty_storage(seed: int) -> Iterator[tuple[FaultyStorage, dict[str, str]]]:
    """Serve a bucket; return the faults to set, and the environment of its clients."""
    import boto3
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    app = FaultyStorage(DomainDispatcherApplication(create_backend_app), seed)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        keys = {name.lower(): settings[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        boto3.client(
            "s3", endpoint_url=settings["AWS_ENDPOINT_URL"], region_name=settings["AWS_DEFAULT_REGION"], **keys
        ).create_bucket(Bucket=BUCKET)
        yield app, settings
    finally:
        server.shutdown()


def storage_trials(folder: Path, documents: int, trials: int, seed: int) -> Iterator[Trial]:
    """Encode into a bucket that misbehaves; at the end, after one more run without faults, the bytes are right."""
    import fsspec  # type: ignore[import-untyped]

    job, whole, _ = make_job(folder, documents)
    with faulty_storage(seed) as (storage, settings):
        os.environ.update(settings)
        files = fsspec.filesystem("s3")
        for number in range(trials):
            fault, place = FAULTS[number % len(FAULTS)], f"s3://{BUCKET}/job-{number}"
            files.put_file(str(job / "manifest.json"), f"{place}/manifest.json")
            storage.faults, storage.fault = 0, fault
            run = care_bulk("encode", place)
            output, _ = run.communicate(timeout=900)
            faults, storage.fault = storage.faults, None
            first = json.loads(output.splitlines()[-1]) if output.strip() else {"encoded": 0, "failed": {}}
            last = report_of(care_bulk("encode", place))
            files.invalidate_cache()
            files.get(f"{place}/parts", str(folder / f"job-{number}" / "parts"), recursive=True)
            violations = violations_of(folder / f"job-{number}", whole, last)
            yield Trial(
                f"S3: {fault}",
                0.0,
                faults > 0,
                {
                    "faults": faults,
                    "exit code": run.returncode,
                    "encoded": first["encoded"],
                    "failed": len(first["failed"]),
                    "encoded by the run after": last["encoded"],
                },
                {"success without parts": int(run.returncode == 0 and first["encoded"] != len(whole)), **violations},
            )
