"""Settings common to every mode; values come from `ratchet.env` alone."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
import plotly

from ratchet.env import ROOT, Mode, load_env

ENV = load_env()

SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
ALLOWED_HOSTS = list(ENV.allowed_hosts)
RATCHET_HOME = ENV.home.root
PUBLIC_URL = ENV.public_url
OBJECT_STORE_URL = ENV.object_store_url
REDIS_URL = ENV.redis_url
ROLLOUT_ENGINE_URLS = list(ENV.engine_urls)
ROLLOUT_FULL_ENGINE_URLS = list(ENV.full_engine_urls)
RATCHET_GATEWAY_URL = ENV.gateway_url
RATCHET_WORKER_SECRET = ENV.worker_secret
RETENTION_DELETE = ENV.retention_delete  # False: sweeps report, and delete nothing
RATCHET_ENVIRONMENTS_DIR = ENV.environments_dir  # virtual environments of third-party environments, one each
CHECK_REPEATS = ENV.check_repeats  # verdicts of a task's reference that must agree at import
CHECK_BAD_REPEATS = ENV.check_bad_repeats  # of answers that must fail, where a verifier needs a sandbox
CHECKS_IN_FLIGHT = ENV.checks_in_flight  # messages of one suite's checks under way at once

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "channels",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "axes",
    "apps.accounts",
    "apps.audit",
    "apps.webhooks",
    "apps.tasks",
    "apps.policies",
    "apps.runs",
    "apps.metrics",
    "apps.evaluations",
    "apps.reviews",
    "apps.promotions",
    "apps.retention",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "ratchet.static_files.StaticFilesMiddleware",
    "ratchet.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "ratchet.refusals.RefuseNulMiddleware",
    "ratchet.refusals.RequireLengthMiddleware",
    "apps.audit.origin.OriginMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "ratchet.pages.ProblemPageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "axes.middleware.AxesMiddleware",
    "apps.accounts.oidc.ProviderErrorsMiddleware",
]
CSRF_FAILURE_VIEW = "ratchet.pages.expired_form"

ROOT_URLCONF = "ratchet.urls"
ASGI_APPLICATION = "ratchet.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/accounts/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = LOGIN_URL

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.jinja2.Jinja2",
        "DIRS": [ROOT / "frontend" / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "environment": "ratchet.templating.environment",
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "ratchet.navigation.navigation",
            ],
        },
    },
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    },
]


def _database(url: str) -> dict[str, Any]:
    """Connection with a pool per process; health-checked, so that a restarted server is noticed."""
    config: dict[str, Any] = environ.Env.db_url_config(url)
    options = config.setdefault("OPTIONS", {})
    if "host" in options:  # postgres://user@/name?host=/folder: a Unix socket
        config["HOST"] = options.pop("host")
    options["pool"] = {"min_size": 0, "max_size": ENV.database_pool_size, "timeout": 30}
    config["CONN_HEALTH_CHECKS"] = True
    return config


# Migrations, and tests, connect as the owner of the tables; everything else as a role that cannot undo what it audits.
_AS_OWNER = ENV.mode is Mode.TEST or sys.argv[1:2] == ["migrate"]
DATABASES = {"default": _database(ENV.database_owner_url if _AS_OWNER else ENV.database_url)}
DATABASE_APP = _database(ENV.database_url) if ENV.database_owner_url != ENV.database_url else None  # given its rights

CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [ENV.redis_url]}}
}

# For what processes share and may lose: counts of requests. Everything else that is cached is kept by each process.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "shared": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": ENV.redis_url},
}
RATCHET_RATES = {"read": 6000, "write": 600, "sign_in": 30, "token": 20}  # requests a minute of one caller

_VALIDATION = "django.contrib.auth.password_validation"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"{_VALIDATION}.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": f"{_VALIDATION}.UserAttributeSimilarityValidator"},
    {"NAME": f"{_VALIDATION}.CommonPasswordValidator"},
    {"NAME": f"{_VALIDATION}.NumericPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]

# A user name is locked from one address after so many wrong passwords; nobody can lock somebody else out from afar.
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_CLIENT_IP_CALLABLE = "apps.accounts.throttles.address_of"  # never a header that anybody may send
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_LOCKOUT_CALLABLE = "apps.accounts.lockout.locked_out"
AXES_RESET_ON_SUCCESS = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
AXES_DISABLE_ACCESS_LOG = True  # sign-ins are in the audit trail, without the addresses of pages, which may be secret

OIDC_NAME = ENV.oidc_name
OIDC_ORIGIN = "/".join(ENV.oidc_server_url.split("/")[:3])
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": ENV.oidc_name,
                "client_id": ENV.oidc_client_id,
                "secret": ENV.oidc_client_secret,
                "settings": {"server_url": ENV.oidc_server_url},
            }
        ]
        if ENV.oidc_server_url
        else [],
    }
}
ACCOUNT_ADAPTER = "apps.accounts.oidc.AccountAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"  # the provider's word counts; see apps/accounts/oidc.py
SOCIALACCOUNT_ADAPTER = "apps.accounts.oidc.SsoAdapter"
SOCIALACCOUNT_STORE_TOKENS = False

TRUSTED_PROXIES = list(ENV.trusted_proxies)
WEBHOOK_NETWORKS = list(ENV.webhook_networks)

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT: Path | None = ROOT / "staticfiles"
STATICFILES_DIRS: list[Any] = [
    ROOT / "frontend" / "static",
    ("vendor", Path(plotly.__file__).parent / "package_data"),
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 7 * 24 * 3600
CSRF_COOKIE_SAMESITE = "Lax"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.accounts.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["apps.accounts.throttles.RequestThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["ratchet.parsers.StrictJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "ratchet.pagination.CursorPagination",
    "DEFAULT_SCHEMA_CLASS": "ratchet.schema.ApiSchema",
    "EXCEPTION_HANDLER": "ratchet.problems.problem_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Ratchet API",
    "VERSION": "v1",
    "DESCRIPTION": "Suites, runs, episodes, evaluations, reviews and promotions. Errors are RFC 9457 problems.",
    "OAS_VERSION": "3.1.0",
    "DEFAULT_GENERATOR_CLASS": "ratchet.schema.Generator",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "ratchet.schema.complete"],
    "ENUM_NAME_OVERRIDES": {
        "AttemptStateEnum": "apps.runs.models.AttemptState",
        "ChannelMoveKindEnum": "apps.policies.models.MoveKind",
        "DecisionKindEnum": "apps.promotions.models.DecisionKind",
        "DeliveryStateEnum": "apps.webhooks.models.DeliveryState",
        "EvaluationStateEnum": "apps.evaluations.models.EvaluationState",
        "GateStateEnum": "apps.promotions.models.GateState",
        "GateVerdictEnum": "apps.promotions.models.GateVerdict",
        "GroupOutcomeEnum": "apps.runs.models.Outcome",
        "GroupStateEnum": "apps.runs.models.GroupState",
        "InstallStateEnum": "apps.runs.models.InstallState",
        "LabelVerdictEnum": "apps.reviews.models.LabelVerdict",
        "PolicyKindEnum": "apps.policies.models.PolicyKind",
        "ReproductionOutcomeEnum": "apps.runs.reproductions.models.ReproductionOutcome",
        "ReproductionStateEnum": "apps.runs.reproductions.models.ReproductionState",
        "ReviewItemStateEnum": "apps.reviews.models.ItemState",
        "RunStateEnum": "apps.runs.models.RunState",
        "SuiteStateEnum": "apps.tasks.models.SuiteState",
        "TaskStateEnum": "apps.tasks.models.TaskState",
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": ENV.log_level},
    "loggers": {
        "django.request": {"level": "ERROR"},
        # One line per tick would fill the disk of a machine that stays up.
        "axes": {"level": "WARNING"},  # else the address of an invitation, which is its secret
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
