"""Runs probes for the tests, as the user in question: one JSON line in, one JSON line out.

The process plays the worker: it plants what probes look for, starts real sandboxes, and runs the same programs outside
for the controls. `python -m tests.escape.driver`.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from gpu_workers.contracts.environment import EnvironmentContract, Limits
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.channel import Identity
from tests.escape.world import PROGRAMS, World, condition, target

FINISH = """
import json, sys
if __name__ == "__main__":
    try:
        reached = globals()[sys.argv[1]](json.loads(sys.argv[2]))
        print(("ESCAPED: " + reached) if reached else "held: nothing reached", flush=True)
    except Exception as error:
        print("held:", type(error).__name__, error, flush=True)
"""
PYTHON = "/usr/bin/python3"


class Driver:
    def __init__(self) -> None:
        self.world = World()
        self.backend = BubblewrapBackend()

    def source(self, topic: str) -> str:
        return (PROGRAMS / f"{topic}.py").read_text() + FINISH

    async def do_probe(self) -> dict:
        try:
            return {"isolation": await self.backend.probe(), "facts": self.world.facts}
        except WorkerError as error:
            return {"unavailable": str(error)}

    async def do_inside(self, topic: str, name: str, limits: dict, timeout: float | None = None) -> dict:
        """One program in a fresh sandbox, and how it left sandbox and host."""
        victim, reached = self.world.victim(), len(self.world.reached)
        facts = self.world.facts | target(victim.pid) | {"limits": limits, "outside": False}
        before = condition(victim.pid)
        sandbox = self.backend.create(EnvironmentContract(limits=msgspec.convert(limits, Limits)))
        await sandbox.start()
        try:
            argv = [PYTHON, "-c", self.source(topic), name, json.dumps(facts)]
            started = time.monotonic()
            done = await sandbox.exec(argv, timeout_seconds=timeout)
            seconds = time.monotonic() - started
            after = await sandbox.exec(["echo", "alive"])
        finally:
            await sandbox.close()
        after_it = condition(victim.pid)
        answer = {
            "exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr[-1000:], "seconds": seconds,
            "timed_out": done.timed_out, "limit_hit": done.limit_hit, "truncated": done.truncated,
            "limits_hit": sandbox.record.limits_hit, "alive": after.stdout == "alive\n",
            "victim_before": before, "victim_after": after_it, "reached": self.world.reached[reached:],
        }  # fmt: skip
        victim.kill()
        victim.wait()
        return answer

    async def do_weakened(self, topic: str, name: str, limits: dict) -> dict:
        """The program in a sandbox of root's own user, over whose /proc/sys nothing is mounted: a control."""
        real = command.command_line

        def weaker(*arguments, **named) -> list[str]:
            line = real(*arguments, **named)
            at = line.index("/proc/sys") - 1
            return line[:at] + line[at + 4 :]

        command.command_line, identity = weaker, self.backend.identity
        self.backend.identity = Identity()
        try:
            return await self.do_inside(topic, name, limits)
        finally:
            command.command_line, self.backend.identity = real, identity

    async def do_outside(self, topic: str, name: str, limits: dict) -> dict:
        """The same program as a plain process of this user: the control."""
        victim = self.world.victim()
        facts = self.world.facts | target(victim.pid) | {"limits": limits, "outside": True}
        folder = Path(tempfile.mkdtemp(dir=self.world.folder))
        with Path(self.world.facts["secret_path"]).open() as inherited:
            done = await asyncio.to_thread(
                subprocess.run, [PYTHON, "-c", self.source(topic), name, json.dumps(facts)],
                capture_output=True, cwd=folder, pass_fds=[inherited.fileno()], timeout=120,
            )  # fmt: skip
        victim.kill()
        victim.wait()
        return {
            "exit_code": done.returncode, "stdout": done.stdout.decode(errors="replace"),
            "stderr": done.stderr.decode(errors="replace")[-1000:],
        }  # fmt: skip

    async def do_shell(self, command: str, limits: dict, timeout: float, then: str = "") -> dict:
        """A shell command in a sandbox; then, in the same one, another. Processes of either must bear the marker."""
        sandbox = self.backend.create(EnvironmentContract(limits=msgspec.convert(limits, Limits)))
        await sandbox.start()
        try:
            started = time.monotonic()
            done = await sandbox.exec(["sh", "-c", command], timeout_seconds=timeout)
            seconds = time.monotonic() - started
            living = self.living()
            second = await sandbox.exec(["sh", "-c", then]) if then else None
            files = await asyncio.wait_for(sandbox.files(), 10)
        finally:
            await sandbox.close()
        return {
            "exit_code": done.exit_code, "stdout": done.stdout, "timed_out": done.timed_out, "seconds": seconds,
            "limit_hit": done.limit_hit, "living": living, "then": second.stdout if second else "",
            "files": {path: data.decode(errors="replace") for path, data in files.items()},
            "refused": sandbox.record.refused_files, "living_at_the_end": self.living(),
        }  # fmt: skip

    async def do_process(self, command: str, timeout: float) -> dict:
        """The same shell command as a plain process whose group is killed at the time-out: the control."""
        folder = Path(tempfile.mkdtemp(dir=self.world.folder))
        process = subprocess.Popen(["sh", "-c", command], cwd=folder, start_new_session=True)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        await asyncio.sleep(0.2)
        living = self.living()
        for pid in living:
            os.kill(pid, 9)
        return {"living": living}

    async def do_two(self, attack: str, limits: dict) -> dict:
        """One sandbox attacks while another, of the same user, works."""
        contract = EnvironmentContract(limits=msgspec.convert(limits, Limits))
        one, two = self.backend.create(contract), self.backend.create(contract)
        await asyncio.gather(one.start(), two.start())
        try:
            work = f"for p in /tmp/mine /dev/shm/mine mine; do echo {self.world.marker} > $p; done; sleep 2; "
            work += "cat /tmp/mine /dev/shm/mine mine"
            working = asyncio.create_task(two.exec(["sh", "-c", work]))
            await asyncio.sleep(0.3)
            attacked = await one.exec(["sh", "-c", attack])
            worked = await working
        finally:
            await asyncio.gather(one.close(), two.close())
        return {"attack": attacked.stdout, "worked": worked.stdout, "exit_code": worked.exit_code}

    def living(self) -> list[int]:
        """Processes with the marker among their arguments, or in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if any(word == b"987.125" for word in words):
                    found.append(int(entry.name))
        return found

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            try:
                answer = await getattr(self, "do_" + request.pop("do"))(**request)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
        self.world.close()


if __name__ == "__main__":
    asyncio.run(Driver().run())
