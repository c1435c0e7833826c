"""The app that openenv.yaml names."""

from openenv.core.env_server import create_app

from ..models import LockerAction, LockerObservation
from .locker import Locker

app = create_app(Locker, LockerAction, LockerObservation, env_name="locker_env", max_concurrent_envs=4)
