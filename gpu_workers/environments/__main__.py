"""`python -m gpu_workers.environments list KIND ID`: the tasks of a third-party environment, as JSON lines."""

import argparse
import asyncio
import json
import sys
from typing import Any

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.environments.isolation import PROGRAMS
from gpu_workers.environments.process import HostGone, Hosts
from gpu_workers.settings import settings

LIST_SECONDS = 900.0


async def list_tasks(hosts: Hosts, kind: str, name: str, config: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """Rows {index, key, name, messages, tools, data, framework, digest}. Raises WorkerError, HostGone, ValueError."""
    host = await hosts.take(kind)
    try:
        request = {"op": "describe", "id": name, "config": config, "limit": limit}
        found = await host.request(request, LIST_SECONDS)
    finally:
        await hosts.give_back(host)
    if found["event"] != "tasks":
        raise ValueError(str(found.get("message", found)))
    about = {key: found[key] for key in ("framework", "digest")}
    return [{**row, **about} for row in found["tasks"]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.environments", description=__doc__)
    parser.add_argument("command", choices=["list"])
    parser.add_argument("kind", choices=sorted(PROGRAMS))
    parser.add_argument("id", help="name of the environment's package")
    parser.add_argument("--config", type=json.loads, default={}, help="configuration of the environment, as JSON")
    parser.add_argument("--limit", type=int, default=100, help="tasks at most")
    chosen = parser.parse_args()
    hosts = Hosts(settings().environments_dir)
    try:
        rows = asyncio.run(list_tasks(hosts, chosen.kind, chosen.id, chosen.config, chosen.limit))
    except (WorkerError, HostGone, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        hosts.close()
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
