"""When a worker counts as stuck."""

from dataclasses import dataclass

from gpu_workers.contracts.watchdog import Watch


@dataclass
class World:
    waiting: int = 1
    received: int = 5
    at_work: int = 0
    now: float = 0.0
    away: bool = False

    def ask(self) -> int:
        if self.away:
            raise ConnectionError
        return self.waiting


def watch(world: World) -> Watch:
    return Watch(
        world.ask, lambda: world.received, lambda: world.at_work, lambda: world.now, patience_seconds=30.0
    )  # fmt: skip


def looks(world: World, times: int, **change: object) -> list[bool]:
    """A look every ten seconds, before each of which the world changes."""
    watched, found = watch(world), []
    for number in range(times):
        for name, value in change.items():
            setattr(world, name, value(number) if callable(value) else value)
        found.append(watched.is_stuck())
        world.now += 10.0
    return found


def test_idle_while_messages_wait():
    assert looks(World(), 5) == [False, False, False, True, True]


def test_it_takes_messages():
    assert not any(looks(World(), 10, received=lambda number: number // 2))


def test_nothing_waits():
    assert not any(looks(World(), 10, waiting=lambda number: number % 3))


def test_it_works_on_a_long_job():
    assert not any(looks(World(), 10, at_work=1))


def test_the_broker_is_away():
    assert not any(looks(World(), 10, away=True))


def test_the_patience_begins_anew_with_the_broker():
    assert looks(World(), 9, away=lambda number: number < 4) == [False] * 6 + [True] * 3
