"""What tests of metrics share: a scrape as Prometheus reads it, ports, Prometheus itself."""

import json
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fedwright.protocol.link.memory import MemoryBroker, MemoryLink

Series = dict[tuple[str, ...], float]
# Words of PromQL that look like names.
NAMES = re.compile(r"\b(?:fedwright|process)_[a-z0-9_]+")
# What Prometheus makes of a histogram.
PARTS = re.compile(r"_(?:sum|count|bucket)$")


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetch(url: str) -> tuple[int, str]:
    """Code and text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read().decode()


def samples(text: str) -> dict[str, Series]:
    """A scrape: for each name the values by the values of the labels."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def names_in(expression: str) -> set[str]:
    """The figures that an expression of PromQL is made of; a histogram by its own name."""
    return {PARTS.sub("", name) for name in NAMES.findall(expression)}


def ask(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """What a Prometheus answers now; an expression that it cannot read is an error."""
    code, text = fetch(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    assert code == 200, f"{expression}: {text}"
    return list(json.loads(text)["data"]["result"])


def scrape_config(targets: Mapping[str, str]) -> str:
    """A Prometheus that asks each target, by the name of its job, once a second."""
    jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
    return json.dumps({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs})


def memory_link(*, connected: bool = True) -> MemoryLink:
    """A link whose broker is there, or gone."""
    broker = MemoryBroker()
    link = broker.link("watched")
    if not connected:
        broker.stop()
    return link
