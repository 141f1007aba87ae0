"""The processes of a service: started, reloaded, killed and stopped while clients ask."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest

from care_qdrant.model.care_model import CareModel
from care_qdrant.serve import worker as serving
from care_qdrant.serve.settings import READY
from tests.reliability.processes import free_port
from tests.serve.conftest import asked
from tests.tiny import TEXTS, care_folder, medical_texts

OPTIONS = ["serve", "--port", "0"]
COMMAND = [sys.executable, "-c", "from care_qdrant.cli import main; main()", *OPTIONS]
WAIT_SECONDS = 120
pytestmark = pytest.mark.timeout(400)
"""Each test starts processes that import all that a service needs, and may wait for other work on the machine."""


def wait_until(is_so: Callable[[], bool], pause: float = 0.05) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < until
        time.sleep(pause)


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/ready").status_code == 200
    return False


class Running:
    """A service in processes of its own."""

    def __init__(self, *options: str, log: Path, command: Sequence[str] = COMMAND) -> None:
        self._log = log
        with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
            self.process = subprocess.Popen([*command, *options], stdout=output, stderr=errors)
        self.url = self.wait_for(r"serving on (http://[^\s\"]+)")

    def wait_for(self, pattern: str) -> str:
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            if found := re.search(pattern, self._log.read_text()):
                return found[1] if found.groups() else found[0]
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} did not come:\n{self._log.read_text()}")

    def lines(self) -> str:
        return self._log.read_text()

    def access_log(self) -> list[str]:
        return self._log.with_suffix(".out").read_text().splitlines()

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in children.read_text().split()}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    services: list[Running] = []

    def run(*options: str, command: Sequence[str] = COMMAND) -> Running:
        services.append(Running(*options, log=tmp_path / f"log-{len(services)}", command=command))
        return services[-1]

    yield run
    for service in services:
        if service.process.poll() is None:
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(WAIT_SECONDS)


class Clients:
    """Threads that ask all the time, each on a connection that it keeps; every answer is checked."""

    def __init__(self, url: str, expected: dict[str, list[np.ndarray]], threads: int = 4) -> None:
        self.answers, self.failures = 0, []  # type: ignore[var-annotated]
        self._url, self._expected, self._end = url, expected, threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._running = [self._pool.submit(self._ask, number) for number in range(threads)]

    def _ask(self, number: int) -> None:
        texts = list(self._expected)
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._end.is_set():
                text = texts[number % len(texts)]
                number += 1
                try:
                    answer = http.post("/inference", json=asked(text, model="tiny-pair"))
                    [vector] = np.float32(answer.json()["embeddings"])
                    assert any(np.allclose(vector, row, atol=1e-6) for row in self._expected[text]), "crossed"
                    self.answers += 1
                except Exception as error:
                    self.failures.append(repr(error))

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._running:
            thread.result()
        self._pool.shutdown()


def test_workers_share_memory_and_counters_and_one_that_dies_is_replaced(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder), "--workers", "2")
    expected = {text: [CareModel.load(pair_folder).encode_query([text])[0]] for text in TEXTS}
    before = service.workers()
    assert len(before) == 2
    with Clients(service.url, expected) as clients:
        time.sleep(0.5)
    assert not clients.failures
    for worker in before:
        pages = dict(re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{worker}/smaps_rollup").read_text(), re.MULTILINE))
        assert "libtorch" not in Path(f"/proc/{worker}/maps").read_text()
        assert int(pages["Private_Dirty"]) < int(pages["Shared_Dirty"]), "a worker has its own copy of what was loaded"
    counted = f'care_requests_total{{route="/inference",status="200"}} {float(clients.answers)}'
    # Counted after it is sent.
    wait_until(lambda: counted in httpx.get(f"{service.url}/metrics").text.splitlines())
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    service.wait_for(f"worker {victim} died")
    wait_until(lambda: len(service.workers() - {victim}) == 2)
    assert service.stop() == 0


def test_workers_that_die_leave_no_file_descriptor_behind(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder))
    open_files = Path(f"/proc/{service.process.pid}/fd")

    def kill() -> None:
        [worker] = service.workers()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: bool(service.workers() - {worker}) and len(service.workers()) == 1 and is_ready(service.url))

    kill()
    before = len(list(open_files.iterdir()))
    for _ in range(3):
        kill()
    wait_until(lambda: len(list(open_files.iterdir())) <= before)


FAULTY = """
import errno, os, sys
fork, calls, refused = os.fork, [0], {int(word) for word in sys.argv.pop(1).split(",")}
def faulty():
    calls[0] += 1
    if calls[0] in refused:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = faulty
from care_qdrant.cli import main
main()
"""
"""A service whose machine refuses some of its processes, by their number."""


def test_a_reload_that_lacks_a_process_leaves_the_old_generation_alone(start, pair_folder: Path) -> None:
    service = start(
        "--model", str(pair_folder), "--workers", "2", command=[sys.executable, "-c", FAULTY, "4", *OPTIONS]
    )
    first = service.workers()
    assert len(first) == 2
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("not reloaded.* 1 of 2 workers")
    wait_until(lambda: service.workers() == first)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("reloaded: ")
    wait_until(lambda: len(service.workers()) == 2 and not service.workers() & first)
    assert httpx.get(f"{service.url}/ready").status_code == 200


def test_a_worker_is_replaced_when_the_machine_has_a_process_again(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder), command=[sys.executable, "-c", FAULTY, "2,3", *OPTIONS])
    [worker] = service.workers()
    os.kill(worker, signal.SIGKILL)
    service.wait_for("no successor yet")
    wait_until(lambda: bool(service.workers() - {worker}))
    assert service.stop() == 0


def test_a_successor_that_cannot_start_says_why(start, pair_folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{'k' * 20}\n")
    service = start("--model", str(pair_folder), "--keys", str(keys))
    [worker] = service.workers()
    keys.write_text("short\n")
    os.kill(worker, signal.SIGKILL)
    assert service.wait_for("could not start: .*the key has fewer than")
    keys.write_text(f"{'k' * 20}\n")
    wait_until(lambda: is_ready(service.url))


def test_counters_of_all_workers_have_a_port_and_the_start_says_what_is_served(
    start, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "keys").write_text("a-key-of-some-length-1 search\n")
    port = free_port()
    options = ("--workers", "2", "--keys", str(tmp_path / "keys"), "--metrics-port", str(port))
    service = start("--model", str(pair_folder), *options)
    for line in ("version: care-qdrant ", "models: tiny-pair@", "Qdrant: ", "API keys: 1 key of "):
        assert service.wait_for(f"(?m)^{line}")
    status = []
    for _ in range(10):  # each on a connection of its own, so that both workers are asked
        headers = {"x-api-key": "a-key-of-some-length-1"}
        status.append(httpx.post(f"{service.url}/inference", json=asked("发烧"), headers=headers).status_code)
    assert status == [403] * 10
    counters = f"http://127.0.0.1:{port}"
    assert 'care_refusals_total{code="forbidden"} 10.0' in httpx.get(f"{counters}/metrics").text
    assert httpx.get(f"{counters}/ready").json()["models"]
    assert httpx.post(f"{counters}/inference", json=asked("发烧")).status_code == 404
    assert httpx.get(f"{service.url}/metrics", headers=headers).status_code == 404
    assert os.access("/dev/shm", os.W_OK) != any(tmp_path.glob("care-serve-*")), "a full disk would kill workers"


def test_every_line_of_the_log_has_one_form(
    start, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARE_LOG_FORMAT", "json")
    service = start("--model", str(pair_folder), "--path", str(tmp_path / "none"))
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port or 0), timeout=20) as connection:
        connection.sendall(b"this is not HTTP\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"{service.url}/health").status_code == 200
    assert service.stop() == 0
    messages = [json.loads(line)["message"] for line in service.lines().splitlines()]
    assert "Invalid HTTP request received." in messages
    assert all(json.loads(line)["status"] == 200 for line in service.access_log())


def test_a_reload_serves_the_new_pair_and_loses_nothing(start, pair_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(pair_folder, folder)
    old = CareModel.load(pair_folder)
    other = care_folder(tmp_path / "other" / "tiny-pair", seed=7, onnx=True)
    new = CareModel.load(other)
    service = start("--model", str(folder))
    expected = {text: [model.encode_query([text])[0] for model in (old, new)] for text in TEXTS}
    first = service.workers()
    with Clients(service.url, expected) as clients:
        time.sleep(0.3)
        shutil.rmtree(folder)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("not reloaded")
        assert service.workers() == first, "what cannot be loaded changes nothing"
        shutil.copytree(other, folder)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("reloaded: ")
        time.sleep(0.3)
    assert not clients.failures
    assert clients.answers > 20
    assert service.lines().count("reloaded: ") == 1, "each message is logged once"
    [model] = httpx.get(f"{service.url}/health").json()["models"]
    assert model["fingerprint"] == new.fingerprint
    assert not service.workers() & first
    said = httpx.get(f"{service.url}/metrics").text
    assert [f'care_reloads_total{{outcome="{each}"}} 1.0' in said for each in ("done", "failed")] == [True, True]
    assert f'care_build_info{{fingerprint="{new.fingerprint}"' in said
    wait_until(lambda: old.fingerprint not in httpx.get(f"{service.url}/metrics").text)


def test_a_service_that_is_stopped_answers_what_it_accepted(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder))
    texts = medical_texts(1000)
    with ThreadPoolExecutor(4) as pool:
        answers = [
            pool.submit(httpx.post, f"{service.url}/inference", json=asked(*texts, model="tiny-pair"), timeout=60)
            for _ in range(4)
        ]
        wait_until(lambda: _waiting(service) > 3000, pause=0.005)  # three requests have no more than 3,000 texts
        code = service.stop()
        found = [answer.result() for answer in answers]
    assert code == 0
    assert [(answer.status_code, len(answer.json()["embeddings"])) for answer in found] == [(200, 1000)] * 4


def test_a_service_that_is_stopped_while_a_worker_starts_leaves_no_traceback() -> None:
    """The supervisor has closed its end of the pipe by then."""
    verdict, report = os.pipe()
    os.close(verdict)
    serving._say(report, READY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(report)


def test_what_cannot_be_served_is_one_line_and_an_exit_code(pair_folder: Path, tmp_path: Path) -> None:
    def run(*options: str) -> tuple[int, str]:
        done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=WAIT_SECONDS)
        return done.returncode, done.stderr.strip().splitlines()[-1]

    assert run("--model", str(tmp_path))[0] == 3
    (tmp_path / "keys").write_text("short\n")
    assert run("--model", str(pair_folder), "--keys", str(tmp_path / "keys"))[0] == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = run("--model", str(pair_folder), "--port", str(taken.getsockname()[1]))
    assert (code, "cannot listen" in said) == (2, True)


def test_a_service_listens_on_loopback_and_warns_elsewhere(start, pair_folder: Path) -> None:
    assert start("--model", str(pair_folder)).url.startswith("http://127.0.0.1:")
    everywhere = start("--model", str(pair_folder), "--host", "0.0.0.0")
    assert everywhere.wait_for("warning: everyone who can reach 0.0.0.0 .* give --keys FILE")


def test_a_reload_that_is_asked_for_too_early_ends_nothing(pair_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as qdrant, log.open("wb") as errors:
        qdrant.settimeout(WAIT_SECONDS)
        url = f"http://127.0.0.1:{qdrant.getsockname()[1]}"
        process = subprocess.Popen([*COMMAND, "--model", str(pair_folder), "--url", url], stderr=errors)
        connection, _ = qdrant.accept()  # the service looks for its collections
        process.send_signal(signal.SIGHUP)
        connection.close()
    wait_until(lambda: "API keys: " in log.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0
    assert "collections: all that the models can search (not served yet)" in log.read_text()


def test_workers_end_with_the_process_that_started_them(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder))
    [worker] = service.workers()
    service.process.kill()
    service.process.wait()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


def test_the_access_log_is_json_on_stdout(start, pair_folder: Path) -> None:
    service = start("--model", str(pair_folder))
    httpx.get(f"{service.url}/health", headers={"x-request-id": "mine"})
    assert service.stop() == 0
    [line] = service.access_log()
    said = json.loads(line)
    assert (said["request_id"], said["client"]) == ("mine", "127.0.0.1")
    assert abs(datetime.fromisoformat(said["time"]) - datetime.now(UTC)) < timedelta(minutes=5)


def _waiting(service: Running) -> float:
    said = httpx.get(f"{service.url}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(r"care_waiting_texts\{.*\} (\S+)", said))
