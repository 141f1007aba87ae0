"""The files of examples/deploy start what `care serve` is: its options, its paths, its times."""

import json
import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import pytest
import yaml
from prometheus_client import Counter
from prometheus_client.metrics import MetricWrapperBase

from care_qdrant import serve
from care_qdrant.cli.serve import command
from care_qdrant.serve.admission import SLICE_TEXTS
from care_qdrant.serve.gateway import OPEN_PATHS
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.worker import DRAIN_SECONDS, GRACE_SECONDS
from tests.reliability.processes import free_port
from tests.serve.conftest import KEY
from tests.serve.test_workers import Running
from tests.standin import StandIn

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
CARE = [sys.executable, "-c", "from care_qdrant.cli import main; main()"]
[ENTRYPOINT] = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)


def compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]


def kubernetes() -> Any:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",), strict=False)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(FOLDER / "care-serve.service", encoding="utf-8")
    return parser


def started(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command line, which the command itself parses."""
    program, name, *options = arguments
    assert (Path(program).name, name) == ("care", "serve")
    with click.Context(command) as context:
        command.parse_args(context, options)
    return context.params


def pod() -> Any:
    return kubernetes()[0]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "arguments",
    [
        json.loads(ENTRYPOINT) + compose()["care"]["command"],
        json.loads(ENTRYPOINT) + pod()["containers"][0]["args"],
        shlex.split(unit()["Service"]["ExecStart"]),
    ],
    ids=["compose", "kubernetes", "systemd"],
)
def test_the_command_line_is_one_and_asks_for_keys(arguments: list[str]) -> None:
    options = started(arguments)
    assert options["keys"] is not None
    assert options["workers"] == 2
    if options["host"] == "127.0.0.1":
        assert options["port"] == 8080


def test_qdrant_asks_the_service_of_the_compose_file() -> None:
    services = compose()
    settings = services["qdrant"]["environment"]
    address = urlsplit(settings["QDRANT__INFERENCE__ADDRESS"])
    options = started(json.loads(ENTRYPOINT) + services["care"]["command"])
    assert (address.hostname, address.port, address.path) == ("care", options["port"], "/inference")
    assert f"EXPOSE {options['port']}" in DOCKERFILE
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    [asked] = re.findall(r"127\.0\.0\.1:8080(/\w+)", " ".join(services["care"]["healthcheck"]["test"]))
    assert asked in OPEN_PATHS


def test_the_pod_is_asked_where_no_key_is_needed_and_runs_without_rights() -> None:
    [container] = pod()["containers"]
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} <= set(OPEN_PATHS)
    ports = {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    assert ports == {container["ports"][0]["containerPort"]} == {kubernetes()[1]["spec"]["ports"][0]["targetPort"]}
    assert f"--uid {pod()['securityContext']['runAsUser']} " in DOCKERFILE
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(started(json.loads(ENTRYPOINT) + container["args"])["keys"].parent) in mounted


def test_every_platform_waits_for_what_was_accepted() -> None:
    waits = int(pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] >= GRACE_SECONDS + DRAIN_SECONDS + waits
    assert int(unit()["Service"]["TimeoutStopSec"]) > GRACE_SECONDS
    assert int(compose()["care"]["stop_grace_period"].removesuffix("s")) > GRACE_SECONDS
    assert unit()["Service"]["ExecReload"].endswith("-HUP $MAINPID")


def test_the_compose_file_serves_the_collection_that_it_creates(tmp_path: Path) -> None:
    """Its two commands run as they are, with a stand-in for Qdrant and addresses of this machine."""
    services = compose()
    assert services["ingest"]["depends_on"]["qdrant"]["condition"] == "service_healthy"
    assert services["care"]["depends_on"]["ingest"]["condition"] == "service_completed_successfully"
    (tmp_path / "keys").write_text(f"{KEY}\n")
    with StandIn() as qdrant:
        here = {
            "http://qdrant:6333": qdrant.url,
            "/corpus/corpus.jsonl": str(FOLDER.parent / "sample" / "corpus.jsonl"),
            "/run/secrets/keys": str(tmp_path / "keys"),
            "9090": str(free_port()),
        }
        entry = services["ingest"]["entrypoint"]
        words = [here.get(word, word) for word in entry[1:] + services["ingest"]["command"]]
        done = subprocess.run([*CARE, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        words = [here.get(word, word) for word in ["serve", *services["care"]["command"], "--port", "0"]]
        service = Running(log=tmp_path / "log", command=[*CARE, *words])
        try:
            found = httpx.post(
                f"{service.url}/search", json={"query": "心肌梗死"}, headers={"x-api-key": KEY}, timeout=60
            ).json()
            assert (found["collection"], found["mode"], len(found["hits"])) == ("sample", "hybrid", 10)
            counters = httpx.get(f"http://127.0.0.1:{here['9090']}/metrics", timeout=60).text
            assert 'care_searches_total{collection="sample"' in counters
        finally:
            assert service.stop() == 0


def test_no_key_gets_into_git_or_into_a_layer_of_the_image() -> None:
    root = FOLDER.parents[1]
    keys = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["secrets"]["keys"]["file"]
    folder = str((FOLDER / keys).resolve().parent.relative_to(root))
    assert folder in (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert f"/{folder}/" in (root / ".gitignore").read_text(encoding="utf-8").splitlines()


def expressions() -> dict[str, str]:
    """Return what the alert rules and the dashboard ask Prometheus for, by where it stands."""
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    panels = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    asked = {rule["alert"]: rule["expr"] for rule in rules}
    return asked | {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]
    }


@pytest.mark.parametrize("expression", expressions().values(), ids=expressions())
def test_rules_and_dashboard_ask_for_counters_that_there_are(expression: str) -> None:
    metrics = Metrics()
    labels: dict[str, set[str]] = {"up": {"job", "instance"}}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            names = ["_total"] if isinstance(metric, Counter) else ["_bucket", "_count", "_sum", ""]
            labels |= {metric._name + name: {*metric._labelnames, "le", "instance"} for name in names}
    asked = re.findall(r"\b(up|care_\w+)(?:\{([^}]*)\})?", expression)
    assert asked
    for name, selectors in asked:
        wanted = set(re.findall(r"(\w+)=", selectors))
        wanted |= {word.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for word in by.split(",")}
        assert wanted <= labels[name], name
    sources = "".join(path.read_text("utf-8") for path in Path(serve.__file__).parent.glob("*.py"))
    codes = [code for words in re.findall(r'code=~?"([^"]+)"', expression) for code in words.split("|")]
    assert [code for code in codes if f'"{code}"' not in sources] == []


def test_pods_are_scaled_by_a_counter_that_there_is() -> None:
    scaled = yaml.safe_load((FOLDER / "autoscaling.yaml").read_text(encoding="utf-8"))["spec"]
    deployment = kubernetes()[0]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["minReplicaCount"] == deployment["spec"]["replicas"] < scaled["maxReplicaCount"]
    [trigger] = scaled["triggers"]
    metrics = Metrics()
    metrics.waiting.labels("query").set(3)
    [selector] = re.findall(r"care_\w+\{[^}]*\}", trigger["metadata"]["query"])
    assert f"{selector} 3.0" in metrics.render().decode()
    assert int(trigger["metadata"]["threshold"]) > SLICE_TEXTS, "one full batch is no load"


def test_prometheus_is_sent_to_the_port_that_asks_for_no_key() -> None:
    [container] = pod()["containers"]
    port = started(json.loads(ENTRYPOINT) + container["args"])["metrics_port"]
    annotations = kubernetes()[0]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    assert {"name": "metrics", "containerPort": port} in container["ports"]
