"""Request bodies of the API."""

from collections.abc import Mapping
from typing import IO, Any, ClassVar

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from ratchet.strict_json import StrictJsonError, loads


class StrictJSONParser(JSONParser):
    """JSON whose text can be stored and whose size is bounded; anything else is a problem that says what is wrong."""

    max_bytes: ClassVar[int | None] = None  # None: as Django's DATA_UPLOAD_MAX_MEMORY_SIZE

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = self.max_bytes or settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        data = stream.read(limit + 1)
        if len(data) > limit:
            raise RequestDataTooBig
        if not data:
            return {}
        try:
            return loads(data)
        except StrictJsonError as error:
            raise ParseError(f"The body is {error}." if str(error).startswith("n") else f"The body {error}.") from error
