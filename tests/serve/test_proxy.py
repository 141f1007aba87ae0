"""examples/deploy/nginx.conf in front of a service: TLS, and nothing that a client would miss."""

import shutil
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.reliability.processes import free_port
from tests.serve.conftest import KEY, asked, pair

CONFIGURATION = Path(__file__).parents[2] / "examples" / "deploy" / "nginx.conf"
pytestmark = pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("openssl")), reason="nginx is not installed"
)


def test_nginx_gives_tls_to_a_service(make_service, listen, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    service = make_service(pair(), keys_file=tmp_path / "keys")
    address, port = listen(service), free_port()
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    name = ["-subj", "/CN=care.example.org", "-addext", "subjectAltName=DNS:care.example.org,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *name, *files],
        check=True,
        capture_output=True,
    )
    text = CONFIGURATION.read_text(encoding="utf-8")
    for before, after in (
        ("127.0.0.1:8080", address.removeprefix("http://")),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/care/tls.pem", str(certificate)),
        ("/etc/care/tls.key", str(key)),
    ):
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "nginx.conf").write_text(text)
    own = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;"
    nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-g", own])
    try:
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trust, timeout=20) as http:
            until = time.monotonic() + 20
            while True:
                try:
                    health = http.get("/health")
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < until and nginx.poll() is None
                    time.sleep(0.05)
            assert (health.status_code, health.json()["models"]) == (200, [])
            assert http.get("/metrics", headers={"x-api-key": KEY}).status_code == 404
            assert http.post("/inference", json=asked("发烧")).status_code == 401
            headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine"}
            answer = http.post("/inference", json=asked("发烧"), headers=headers)
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
    finally:
        nginx.terminate()
        nginx.wait(20)
