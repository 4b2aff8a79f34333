"""What `deploy/` holds: configs that Fedwright reads, YAML with the parts that belong together, units and stages.

Nothing of it is started here. The chart's templates are read with their actions filled in as Helm would for the values
that stand in the file; `helm` itself is not asked.
"""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.edge.config import load_edge

DEPLOY = Path(__file__).parents[1] / "deploy"
PARTS = {"server", "edge", "database", "objects", "broker", "prometheus"}


def filled(template: str, values: dict[str, Any]) -> str:
    """A template with the actions that this chart uses: values, quote, if, and range over a number."""

    def value(found: re.Match[str]) -> str:
        name, quoted = found[1], found[2]
        return yaml.safe_dump(str(values[name]), default_style='"').strip() if quoted else str(values[name])

    text = re.sub(r"\{\{- (if|range|end).*?\}\}\n?", "", template).replace("{{ $number }}", "0")
    text = re.sub(r"\{\{ \$?\.Values\.(\w+)( \| quote)? \}\}", value, text)
    assert "{{" not in text
    return text


def chart() -> list[dict[str, Any]]:
    values = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text())
    texts = [filled(path.read_text(), values) for path in sorted((DEPLOY / "helm/templates").glob("*.yaml"))]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def test_the_configs_are_read_and_name_the_services() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    run = config_from_text((DEPLOY / "compose/run.toml").read_text(), where="run.toml")
    edge = load_edge(DEPLOY / "compose/edge.toml")

    assert PARTS | {"standby", "bucket"} == compose["services"].keys()
    assert (run.fleet.broker, edge.host.broker) == ("mqtt://broker:1883", "mqtt://broker:1883")
    assert run.store.rounds == "postgresql://fedwright@database:5432/fedwright"
    assert run.store.blobs == "s3://fedwright/blobs"


def test_compose_names_only_what_it_has() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    services = compose["services"]

    for name, service in services.items():
        assert service.get("depends_on", {}).keys() <= services.keys(), name
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], mount
    assert services["server"] == services["standby"]


def test_the_chart_has_every_part_and_reads_its_run() -> None:
    found = chart()
    names = {item["metadata"]["name"] for item in found if item["kind"] in ("Deployment", "StatefulSet")}
    values = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text())

    assert names == {f"fedwright-{part}" for part in PARTS - {"edge"}} | {"fedwright-edge-0"}
    run = config_from_text(values["run"], where="values.yaml")
    services = {item["metadata"]["name"] for item in found if item["kind"] == "Service"}
    assert {"fedwright-broker", "fedwright-database", "fedwright-objects"} == services
    assert all(name in f"{run.fleet.broker} {run.store.rounds} {values['s3Endpoint']}" for name in services)
    [run_map] = [item for item in found if item["metadata"]["name"] == "fedwright-run"]
    assert run_map["data"]["run.toml"] == values["run"]


def test_the_charts_edge_is_read(tmp_path: Path) -> None:
    [edge] = [i for i in chart() if i["kind"] == "ConfigMap" and i["metadata"]["name"] == "fedwright-edge-0"]

    (tmp_path / "edge.toml").write_text(edge["data"]["edge.toml"])
    assert load_edge(tmp_path / "edge.toml").host.broker == "mqtt://fedwright-broker:1883"


def test_pods_select_themselves_and_mount_what_they_have() -> None:
    for item in chart():
        if item["kind"] not in ("Deployment", "StatefulSet"):
            continue
        template = item["spec"]["template"]
        assert template["metadata"]["labels"] == item["spec"]["selector"]["matchLabels"]
        volumes = [v["name"] for v in template["spec"].get("volumes", [])]
        volumes += [claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])]
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


@pytest.mark.parametrize("name", ["fedwright-server", "fedwright-edge"])
def test_units_start_a_command_that_there_is(name: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / f"systemd/{name}.service")

    assert unit["Service"]["ExecStart"].split()[1:3] in (["server", "run"], ["server", "edge"])
    assert (unit["Service"]["Restart"], unit["Service"]["NoNewPrivileges"]) == ("on-failure", "yes")


def test_the_dockerfile_has_a_stage_for_each_kind_of_machine() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, flags=re.MULTILINE)
    extras = set(re.findall(r"\[([a-z0-9,]+)\]\"", text))

    assert [stage for _, stage in stages] == ["wheel", "base", "server", "server-cuda", "device"]
    assert extras == {"server,postgres,s3,metrics", "device,metrics"}
