"""Embedded servers answer, and keep their data over a kill."""

import psycopg
import redis


def test_postgres_answers_over_its_socket(postgres_server: str) -> None:
    host = postgres_server.partition("host=")[2]
    with psycopg.connect(host=host, user="postgres", dbname="ratchet") as connection:
        assert connection.execute("SELECT 40 + 2").fetchone() == (42,)


def test_valkey_answers_over_its_socket(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("answer", 42)
        assert client.get("answer") == b"42"
