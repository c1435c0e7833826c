"""What may be done to the locker and what is seen of it."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class LockerAction(Action):
    """Try a number."""

    number: int = Field(..., ge=0, le=15, description="The number to try")


class LockerObservation(Observation):
    hint: str = Field("", description="Where the right number lies")
    tries_left: int = Field(0, description="Tries that are left")
