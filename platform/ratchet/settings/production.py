"""Settings behind a TLS proxy: secure cookies, HSTS, hashed static files."""

from ratchet.settings.base import *  # noqa: F403

DEBUG = False
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^metrics$", r"^internal/"]  # probes and gateways come without the proxy
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
SESSION_COOKIE_NAME = "__Host-session"  # browsers take it only over TLS, for this host and the whole of it
CSRF_COOKIE_NAME = "__Host-csrftoken"
CSRF_TRUSTED_ORIGINS = [ENV.public_url]
STORAGES["staticfiles"] = {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"}
