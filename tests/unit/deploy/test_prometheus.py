"""Prometheus is told of every process."""

import yaml

from ratchet.env import ROOT
from ratchet.services.processes import PROCESSES

OWN_PORTS = {"web": 8000, "engine": 8010}


def test_every_process_is_scraped_where_it_answers():
    jobs = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    for spec in PROCESSES:
        port = OWN_PORTS.get(spec.name, 9100)
        assert f"{spec.name}:{port}" in targets, f"{spec.name} is scraped nowhere: add it to deploy/prometheus.yml"
        if spec.name not in OWN_PORTS:
            assert services[spec.name]["environment"]["RATCHET_EXPORTER"] == f"0.0.0.0:{port}"
    assert {target.split(":")[0] for target in targets} == {spec.name for spec in PROCESSES}
