"""The files of examples/deploy start what `care serve` is: its options, its paths, its times."""

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from care_qdrant.cli.serve import command
from care_qdrant.serve.gateway import OPEN_PATHS
from care_qdrant.serve.lines import SLICE_TEXTS
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.worker import DRAIN_SECONDS, GRACE_SECONDS

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
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
    published = [port for service in services.values() for port in service["ports"]]
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
