"""A host of a test's own: a counter that the policy may raise, and a reward for reaching the task's number."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from protocol import TaskProblem, serve_sessions

ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"by": {"type": "integer"}, "do": {"type": "string"}}, "required": ["by"],
    "additionalProperties": False,
}}}  # fmt: skip
PRESENT = Path.home() / "left_behind"


class Host:
    def __init__(self) -> None:
        self.count = 0
        self.goal = 0
        self.found_rubbish = PRESENT.exists()

    async def describe(self, request: dict) -> dict:
        rows = [{"index": n, "key": str(n), **self.turn(f"Reach {n}.")} for n in range(request["limit"])]
        return {"event": "tasks", "tasks": rows, "framework": "counting==1", "digest": "d"}

    async def start(self, request: dict) -> dict:
        if request["id"] != "counter":
            raise TaskProblem(f"{request['id']} is not installed")
        if request["digest"] not in ("", "d"):
            raise TaskProblem("other code")
        self.goal = request["index"]
        return self.turn(f"Reach {self.goal}.", role="user")

    async def reply(self, request: dict) -> dict:
        if not request["calls"]:
            return self.ending()
        arguments = request["calls"][0]["arguments"]
        what = arguments.get("do", "")
        if what in DEEDS:
            return self.turn(str(DEEDS[what]()))
        self.count += arguments["by"]
        return self.ending() if self.count > 100 else self.turn(str(self.count))

    def turn(self, text: str, role: str = "tool") -> dict:
        return {"event": "turn", "messages": [{"role": role, "content": text}], "tools": [ADD]}

    def ending(self) -> dict:
        reward = {7: float("nan"), 8: 3.0, 9: "much", 10: None}.get(self.goal, float(self.count == self.goal))
        return {"event": "end", "ok": self.goal != 11, "reward": reward, "rewards": {}, "stop": "", "errors": ["odd"]}


def look() -> str:
    found = [name for name in ("/etc/shadow", "/root", "/work", "/home") if os.access(name, os.R_OK)]
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
        found.append("network")
    except OSError:
        pass
    return json.dumps([found, os.environ.get("SECRET_KEY"), os.getuid()])


def litter() -> str:
    PRESENT.write_text("x")
    subprocess.Popen([sys.executable, "-c", "import os,time; os.setsid(); time.sleep(600)"])
    return "done"


DEEDS = {
    "die": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "hang": lambda: time.sleep(600),
    "raise": lambda: 1 / 0,
    "print": lambda: print("x" * 100_000) or "printed",
    "long": lambda: "y" * (9 << 20),
    "look": look,
    "litter": litter,
    "rubbish": lambda: [PRESENT.exists(), len(list(Path("/proc").glob("[0-9]*")))],
}

if __name__ == "__main__":
    serve_sessions(lambda: (host := Host()) and {"describe": host.describe, "start": host.start, "reply": host.reply})
