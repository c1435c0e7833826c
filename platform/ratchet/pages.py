"""What every page needs: rendering with the section it belongs to, and errors in the look of the pages."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from apps.accounts.models import User
from ratchet.problems import CONTENT_TYPE, Problem, problem_body

_TITLES = {
    400: "This request cannot be used",
    403: "This is not open to you",
    404: "There is nothing here that you may see",
    409: "This has changed meanwhile",
    500: "Something broke on our side",
    502: "Something that this depends on does not answer as it should",
}
_ADVICE = {
    403: "Ask an admin of the project for the right, or go back.",
    404: "The address may be mistyped, or the object belongs to a project in which you have no role.",
    500: "Nothing you had saved is lost. The server's log says what happened; trying again may help.",
    502: "Check that it is there and set up as it should be; then load the page again.",
}
_API = ("/api/", "/internal/")


def page(request: HttpRequest, template: str, *, here: str = "", charts: bool = False, **context: Any) -> HttpResponse:
    """Render a page. `here` marks its section in the bar; `charts` loads Plotly, which writes inline styles."""
    response = render(request, template, {"here": here, "charts": charts, **context})
    response.csp_inline_style = charts  # type: ignore[attr-defined]
    return response


def reader(request: HttpRequest) -> User:
    """Who reads the page; views are behind login_required."""
    assert isinstance(request.user, User)
    return request.user


def filters(request: HttpRequest, *names: str) -> dict[str, str]:
    """The filters of a list as they are in the URL; absent ones are empty."""
    return {name: request.GET.get(name, "").strip() for name in names}


def query_of(chosen: dict[str, str]) -> str:
    """The filters as the beginning of a query string, for links to other pages of the list."""
    text = urlencode({name: value for name, value in chosen.items() if value})
    return f"{text}&" if text else ""


def error_page(request: HttpRequest, status: int, detail: str = "") -> HttpResponse:
    """An error in the look of the pages."""
    title = _TITLES.get(status, "This did not work")
    context = {"here": "", "charts": False, "status": status, "title": title, "detail": detail}
    return render(request, "error.html", {**context, "advice": _ADVICE.get(status, "")}, status=status)


class ProblemPageMiddleware:
    """Turns a refusal raised by a page into a page; REST has a handler of its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, Problem) or request.path.startswith(_API):
            return None
        return error_page(request, error.status, error.detail)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 404)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 403)


def broken(request: HttpRequest) -> HttpResponse:
    """No context of its own: what broke may be the database."""
    if request.path.startswith(_API):
        body = problem_body(Problem("internal_error", 500, _ADVICE[500]))
        return JsonResponse(body, status=500, content_type=CONTENT_TYPE)
    return HttpResponse(render_to_string("broken.html", {"title": _TITLES[500], "advice": _ADVICE[500]}), status=500)


def expired_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The form's token does not fit, as after a login in another tab."""
    return error_page(request, 403, "The form is from another session: go back, load the page again and send it anew.")
