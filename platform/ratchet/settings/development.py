"""Settings of one machine: embedded services, plain HTTP, static files served as they are."""

from ratchet.settings.base import *  # noqa: F403

STATIC_ROOT = None  # nothing is collected: files are served from where they lie
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True  # a checkout may change under a running server: a remembered length would cut files off
