"""The OpenAPI page: it is made without a complaint and describes this API alone."""

from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator


def test_schema_is_made_without_errors() -> None:
    GENERATOR_STATS.reset()
    with GENERATOR_STATS.silence():
        schema = SchemaGenerator().get_schema(request=None, public=True)
    assert schema["openapi"].startswith("3.1")
    assert schema["info"]["title"] == "Ratchet API"
    assert list(GENERATOR_STATS._error_cache) == []
    assert list(GENERATOR_STATS._warn_cache) == []
    assert "/api/v1/" in schema["paths"]
    assert all(path.startswith("/api/v1/") for path in schema["paths"])
