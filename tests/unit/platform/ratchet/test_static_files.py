"""Static files: ours and Plotly's, whole or a part, without a warning under ASGI."""

from django.test import AsyncClient, Client


def test_files_are_served_with_their_type() -> None:
    client = Client()
    assert client.get("/static/css/ratchet.css")["Content-Type"].startswith("text/css")
    plotly = client.get("/static/vendor/plotly.min.js")
    assert plotly.status_code == 200 and len(plotly.content) > 1_000_000
    assert plotly["Content-Type"].startswith("text/javascript")
    assert len(plotly.content) == int(plotly["Content-Length"])


def test_part_of_a_file_and_unchanged_file() -> None:
    client = Client()
    whole = client.get("/static/css/ratchet.css")
    part = client.get("/static/css/ratchet.css", headers={"Range": "bytes=2-5"})
    assert part.status_code == 206 and part.content == whole.content[2:6]
    again = client.get("/static/css/ratchet.css", headers={"If-Modified-Since": whole["Last-Modified"]})
    assert again.status_code == 304 and again.content == b""


async def test_no_warning_under_asgi() -> None:
    answer = await AsyncClient().get("/static/css/ratchet.css")
    assert answer.status_code == 200 and not answer.streaming
