"""The locker: seeded, five tries."""

import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..models import LockerAction, LockerObservation


class Locker(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="", step_count=0)
        self.number = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = random.Random(seed).randrange(16)
        self._state = State(episode_id=episode_id or "", step_count=0)
        return LockerObservation(hint=f"locker {seed}: a number from 0 to 15", tries_left=5, reward=0.0, done=False)

    def step(self, action: LockerAction, timeout_s=None, **kwargs):
        self._state.step_count += 1
        left = 5 - self._state.step_count
        if action.number == self.number:
            return LockerObservation(hint="open", tries_left=left, reward=1.0, done=True)
        hint = "higher" if action.number < self.number else "lower"
        return LockerObservation(hint=hint, tries_left=left, reward=0.0, done=left == 0)

    @property
    def state(self):
        return self._state
