"""Which rule for stragglers could lift the schedule's share of its limit? A model of the scheduler, without a claim.

Places, batches, admission, holding and the bound are those of `scheduling.py`, where the production code runs; here
they are a hundred lines, so that a rule can be tried before it is built. `abort` is the default and must agree with
what `scheduling.py` measures; `wait` holds every batch for its stragglers. `foresight` knows every duration and starts
groups with a long episode (over 100 s) within 3 s of a new version, the most that predictions could do. `trim` lets a
group that a batch would leave behind join it with the episodes it has, at least half of them. Engine time of what is
never trained on counts as wasted.
Prints one JSON line a rule: means over the seeds. Run: `python benchmarks/straggler_rules.py` (half a minute).
"""

import argparse
import heapq
import json
import random
import statistics
from dataclasses import dataclass, field
from typing import Any

GROUP_SIZE, MEAN_SECONDS = 8, 20.0
LONG_SECONDS, FRESH_SECONDS = 100.0, 3.0


@dataclass
class Group:
    seconds: list[float]  # of each episode
    version: int = 0  # that it was dispatched with
    state: str = "pending"  # running | ready | batched | stale
    running: dict[int, float] = field(default_factory=dict)  # episode -> when it began
    used: float = 0.0  # engine seconds of finished episodes
    num_finished: int = 0


class Schedule:
    """One run in virtual time."""

    def __init__(
        self, rule: str, distribution: str, ratio: float, *, places: int, bound: int, steps: int, seed: int
    ) -> None:
        self.rule, self.distribution, self.bound, self.steps = rule, distribution, bound, steps
        self.places, self.batch_size, self.train_seconds = places, places // GROUP_SIZE, MEAN_SECONDS / ratio
        self.chance = random.Random(seed)
        self.now, self.version, self.num_batches, self.bumped = 0.0, 0, 0, 0.0
        self.groups: list[Group] = []
        self.queue: list[tuple[Group, int]] = []  # episodes before the engines
        self.events: list[tuple[float, int, Group | None, int]] = []
        self.free, self.num_sent, self.training = places, 0, False
        self.busy = self.used = self.wasted = 0.0
        self.num_trimmed = 0
        self.step_ends: list[tuple[float, float]] = []

    def play(self) -> dict[str, float]:
        self._supply()
        while self.version < self.steps:
            at, _, group, episode = heapq.heappop(self.events)
            self.busy += (self.places - self.free) * (at - self.now)
            self.now = at
            if group is None:
                self.version, self.bumped, self.training = self.version + 1, at, False
                self.step_ends.append((at, self.busy))
            elif episode in group.running:
                group.used += at - group.running.pop(episode)
                group.num_finished += 1
                self.free += 1
                if group.num_finished == GROUP_SIZE:
                    group.state = "ready"
            else:
                continue  # it was cancelled
            self._batch()
            self._supply()
        first, last = self.step_ends[self.bound + 1], self.step_ends[self.steps - self.bound - 2]
        seconds, num_steps = last[0] - first[0], self.steps - 2 * self.bound - 3
        engines = (last[1] - first[1]) / (seconds * self.places)
        wasted = self.wasted / (self.wasted + self.used)
        trainer = num_steps * self.train_seconds / seconds
        return {
            "groups_stale": sum(group.state == "stale" for group in self.groups) / len(self.groups),
            "episodes_trimmed": self.num_trimmed / (self.steps * self.batch_size * GROUP_SIZE),
            "wasted": wasted,
            "share_of_limit": max(engines * (1.0 - wasted), trainer),
        }

    def _in(self, state: str) -> list[Group]:
        return [group for group in self.groups if group.state == state]

    def _supply(self) -> None:
        """Admit by AReaL's rule, send while the engines' queue is short, start what has a place."""
        open_groups = len(self._in("pending")) + len(self._in("running")) + len(self._in("ready"))
        horizon = min(self.bound + self.version + 1, self.steps)
        for _ in range(horizon * self.batch_size - self.num_batches * self.batch_size - open_groups):
            self.groups.append(Group([self._draw() for _ in range(GROUP_SIZE)]))
        pending = self._in("pending")
        while pending and len(self.queue) < self.places // 2:
            group = self._choose(pending)
            pending.remove(group)
            group.state, group.version = "running", self.version
            self.queue += [(group, episode) for episode in range(GROUP_SIZE)]
            self._start()
        self._start()

    def _start(self) -> None:
        while self.free and self.queue:
            group, episode = self.queue.pop(0)
            if group.state == "running":
                self.free -= 1
                group.running[episode] = self.now
                self._at(self.now + group.seconds[episode], group, episode)

    def _choose(self, pending: list[Group]) -> Group:
        if self.rule != "foresight":
            return pending[0]
        fresh = self.now - self.bumped < FRESH_SECONDS
        fitting = [group for group in pending if (max(group.seconds) > LONG_SECONDS) == fresh]
        return (fitting or pending)[0]

    def _batch(self) -> None:
        """Form batches, oldest groups first; what the next one would leave behind is decided on."""
        while True:
            for group in self._in("running") + self._in("ready"):
                if self.num_batches - group.version > self.bound:
                    self._leave(group)
            ready = self._in("ready")
            if len(ready) < self.batch_size or self.num_batches >= self.steps:
                break
            late = [g for g in self._in("running") if self.num_batches + 1 - g.version > self.bound]
            supplied = self.num_batches - self.version >= 2 or bool(self.queue) or bool(self._in("pending"))
            if late and (supplied or self.rule == "wait"):
                break  # held while that is free
            for group in late:
                if self.rule == "trim" and group.num_finished >= GROUP_SIZE // 2:
                    self.num_trimmed += GROUP_SIZE - group.num_finished
                    self._cancel(group)
                    group.state = "ready"
                else:
                    self._leave(group)
            ready = sorted(self._in("ready"), key=lambda group: group.version)
            for group in ready[: self.batch_size]:
                group.state = "batched"
                self.used += group.used
            self.num_batches += 1
        if not self.training and self.num_batches > self.version:
            self.training = True
            self._at(self.now + self.train_seconds, None, 0)

    def _cancel(self, group: Group) -> None:
        self.wasted += sum(self.now - began for began in group.running.values())
        self.free += len(group.running)
        group.running = {}

    def _leave(self, group: Group) -> None:
        self._cancel(group)
        self.wasted += group.used
        group.state = "stale"

    def _at(self, when: float, group: Group | None, episode: int) -> None:
        self.num_sent += 1
        heapq.heappush(self.events, (when, self.num_sent, group, episode))

    def _draw(self) -> float:
        if self.distribution == "lognormal":
            return MEAN_SECONDS * self.chance.lognormvariate(-0.5, 1.0)
        return MEAN_SECONDS / 3.0 * self.chance.paretovariate(1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--bound", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    for distribution in ("lognormal", "pareto"):
        for ratio in (2.0, 4.0):
            for rule in ("abort", "wait", "foresight", "trim"):
                setting = {"places": options.places, "bound": options.bound, "steps": options.steps}
                runs = [
                    Schedule(rule, distribution, ratio, **setting, seed=seed).play() for seed in range(options.seeds)
                ]
                row: dict[str, Any] = {"distribution": distribution, "ratio": ratio, "rule": rule}
                row |= {name: round(statistics.mean(run[name] for run in runs), 3) for name in runs[0]}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
