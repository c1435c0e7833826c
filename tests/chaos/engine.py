"""An engine that speaks SGLang's API and samples from a hash: what it says depends on the adapter's bytes, the prompt
and the seed alone, whatever else runs and however often it is asked."""

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description

LOWEST, HIGHEST = 5, 60  # ids of printable characters
END_SHARE = 0.15  # of tokens that end the answer


class DigestEngine:
    """Serves until closed. Never killed: it holds what any number of engines would answer."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.fingerprint = read_description(model).fingerprint
        self.adapters: dict[str, str] = {}  # name -> digest of its weights
        handler = type("Handler", (_Handler,), {"engine": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body["sampling_params"]
        weights = self.adapters[body["lora_path"]] if body.get("lora_path") else "base"
        seed = params.get("sampling_seed", 0) if params.get("temperature", 1.0) > 0 else "greedy"
        ids: list[int] = []
        logprobs: list[float] = []
        finish = "length"
        for position in range(params["max_new_tokens"]):
            key = f"{weights}|{body['input_ids']}|{seed}|{position}"
            digest = hashlib.sha256(key.encode()).digest()
            ends = digest[0] < END_SHARE * 256
            ids.append(tiny.EOS_ID if ends else LOWEST + digest[1] % (HIGHEST - LOWEST))
            logprobs.append(-4.2 - digest[2] / 256)
            if ends:
                finish = "stop"
                break
        rows = [[value, token, None] for value, token in zip(logprobs, ids, strict=True)]
        meta = {"output_token_logprobs": rows, "finish_reason": {"type": finish}}
        return {"output_ids": ids, "text": "", "meta_info": meta}

    def load(self, body: dict[str, Any]) -> dict[str, Any]:
        weights = Path(body["lora_path"]) / "adapter_model.safetensors"
        self.adapters[body["lora_name"]] = hashlib.sha256(weights.read_bytes()).hexdigest()
        return {"success": True}

    def unload(self, body: dict[str, Any]) -> dict[str, Any]:
        self.adapters.pop(body["lora_name"], None)
        return {"success": True}

    def info(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model_path": str(self.model), "weight_version": "default", "model_fingerprint": self.fingerprint}

    def models(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"data": [{"id": "tiny"}, *({"id": name, "parent": "tiny"} for name in list(self.adapters))]}


class _Handler(BaseHTTPRequestHandler):
    engine: DigestEngine
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        routes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/generate": self.engine.generate,
            "/load_lora_adapter": self.engine.load,
            "/unload_lora_adapter": self.engine.unload,
            "/model_info": self.engine.info,
            "/v1/models": self.engine.models,
        }
        route = routes.get(self.path)
        try:
            answer = route(body) if route else {}
            status = 200
        except KeyError as error:
            answer, status = {"error": {"message": f"adapter {error} is not loaded"}}, 400
        data = b"" if self.path == "/metrics" else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        return None
