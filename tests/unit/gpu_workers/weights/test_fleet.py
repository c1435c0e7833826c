"""A fleet job's transfer, by what this host is told of the engines."""

from pathlib import Path

from gpu_workers.contracts.messages import FleetJob
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.transfers import Topology, Transfer
from gpu_workers.weights.fleet import install_on_fleet, topology_of

HERE, THERE = "http://127.0.0.1:1", "http://10.0.0.7:1"


def test_the_topology_is_read_from_the_settings(tmp_path: Path) -> None:
    folder, remote = ObjectStore(f"file://{tmp_path}"), ObjectStore("memory://x")
    assert topology_of([HERE], {}, folder, collective=False) == Topology(
        on_other_hosts=False, has_agents=False, shared_store=True, collective=False
    )
    agents = {THERE: "http://10.0.0.7:9"}
    assert topology_of([THERE], agents, remote, collective=True) == Topology(
        on_other_hosts=True, has_agents=True, shared_store=False, collective=True
    )
    assert not topology_of([HERE, THERE], agents, remote, collective=False).has_agents, "every engine needs one"
    assert topology_of([HERE, THERE], agents, remote, collective=False).on_other_hosts


async def test_engines_that_nothing_reaches_are_reported_with_what_to_set(tmp_path: Path) -> None:
    job = FleetJob(job_id="j", base_model="m", transfer=Transfer.AUTO)
    report = await install_on_fleet(job, ObjectStore("memory://x"), tmp_path, tmp_path, [THERE])
    assert (report.ok, report.job_id, report.engines) == (False, "j", [THERE])
    assert "ROLLOUT_ENGINE_AGENTS" in report.message
