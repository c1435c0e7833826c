"""Settings of one machine: embedded services, plain HTTP, static files served as they are."""

from ratchet.settings.base import *  # noqa: F403

WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
