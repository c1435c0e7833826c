"""What every noun has: the connection."""

from ratchet_client.http import Http


class Resource:
    def __init__(self, http: Http) -> None:
        self._http = http
