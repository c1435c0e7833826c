"""Static files under ASGI: WhiteNoise finds them, the answer holds the bytes."""

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise answers with a blocking iterator, which Django's ASGI handler reads whole with a warning each time."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file as file:
                body = file.read()
        answer = HttpResponse(body, status=int(found.status))
        del answer["Content-Type"]  # WhiteNoise's own follows
        for name, value in found.headers:
            answer[name] = value
        return answer
