"""A small OpenID Connect provider for tests: discovery, authorisation with PKCE, token, userinfo, keys. Real HTTP."""

import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa


@dataclass
class Provider:
    """Who signs in next (`claims`), and the codes handed out. `spoil` changes the id token's claims before signing."""

    claims: dict[str, Any]
    client_id: str = "ratchet"
    client_secret: str = "s3cret"
    spoil: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        provider = self

        class Handler(_Handler):
            owner = provider

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def authorise(self, url: str) -> str:
        """What a browser does at the authorisation endpoint: the address that it is sent back to."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["client_id"] == self.client_id and query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorise",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def token(self, form: dict[str, str]) -> dict[str, Any] | None:
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        right = (
            asked is not None
            and form["client_secret"] == self.client_secret
            and form["redirect_uri"] == asked["redirect_uri"]
            and challenge.rstrip(b"=").decode() == asked["code_challenge"]
        )
        if not right:
            return None
        access = secrets.token_urlsafe(16)
        self.tokens[access] = dict(self.claims)
        now = int(time.time())
        claims = {"iss": self.url, "aud": self.client_id, "iat": now, "exp": now + 300, **self.claims, **self.spoil}
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": 300,
            "id_token": jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "1"}),
        }


class _Handler(BaseHTTPRequestHandler):
    owner: Provider

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.owner.requests.append(path)
        if path == "/.well-known/openid-configuration":
            self._answer(self.owner.discovery())
        elif path == "/userinfo":
            known = self.owner.tokens.get(self.headers["Authorization"].removeprefix("Bearer "))
            self._answer(known or {}, 200 if known else 401)
        else:
            self._answer({}, 404)

    def do_POST(self) -> None:
        self.owner.requests.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answer = self.owner.token({name: values[0] for name, values in parse_qs(body).items()})
        self._answer(answer or {"error": "invalid_grant"}, 200 if answer else 400)

    def _answer(self, body: dict[str, Any] | bytes, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return None
