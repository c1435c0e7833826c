"""The supervisor: its data outlives kill -9, nothing else does; refusals say what to do."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import redis

from ratchet.services.marks import marked_processes, server_processes
from tests.integration.services.machine import Machine, free_port, wait_for

SERVERS = "postgres,valkey"


def write_row(machine: Machine) -> None:
    with machine.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    with redis.Redis(unix_socket_path=str(machine.home.valkey_socket)) as client:
        client.incr("kept")


def count_rows(machine: Machine) -> tuple[object, object]:
    with machine.connect() as connection, redis.Redis(unix_socket_path=str(machine.home.valkey_socket)) as client:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
        assert row is not None
        return row[0], client.get("kept")


def test_kill_leaves_no_process_and_keeps_the_data(machine: Machine) -> None:
    machine.up("--only", SERVERS)
    write_row(machine)
    assert machine.living() == ["postgres", "valkey"]

    machine.signal(signal.SIGKILL)
    assert wait_for(lambda: machine.living() == []), machine.living()

    machine.up("--only", SERVERS)
    assert count_rows(machine) == (1, b"1")


def test_start_right_after_a_kill_takes_over(machine: Machine) -> None:
    machine.up("--only", SERVERS)
    write_row(machine)
    machine.signal(signal.SIGKILL)  # the servers may still be shutting down
    machine.up("--only", SERVERS)
    assert count_rows(machine) == (1, b"1")


def test_stale_locks_of_killed_servers_do_not_hinder(machine: Machine) -> None:
    machine.up("--only", SERVERS)
    write_row(machine)
    servers = [process.pid for process in server_processes(machine.home)]
    assert machine.process is not None
    os.kill(machine.process.pid, signal.SIGSTOP)  # so that it restarts nothing
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    machine.signal(signal.SIGKILL)
    assert (machine.home.postgres / "postmaster.pid").exists()
    assert machine.home.valkey_socket.exists()

    machine.up("--only", SERVERS)
    assert count_rows(machine) == (1, b"1")


def test_dead_server_is_started_again(machine: Machine) -> None:
    machine.up("--only", SERVERS)
    write_row(machine)
    for process in list(server_processes(machine.home)):
        os.kill(process.pid, signal.SIGKILL)

    def answers() -> bool:
        try:
            return count_rows(machine) == (1, b"1")
        except Exception:
            return False

    assert wait_for(answers)


def test_grandchildren_in_their_own_session_end_with_a_killed_supervisor(machine: Machine) -> None:
    pid_file = machine.root.parent / "grandchild"
    child = f"import subprocess, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True); \
open('{pid_file}', 'w').write(str(p.pid)); time.sleep(300)"
    machine.up("--only", "valkey", "--then", f'{sys.executable} -c "{child}"')
    assert wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    grandchild = int(pid_file.read_text())
    assert "command" in machine.living()

    machine.signal(signal.SIGKILL)
    assert wait_for(lambda: not is_alive(grandchild))
    assert wait_for(lambda: machine.living() == [])


def test_killed_worker_is_started_again(machine: Machine) -> None:
    machine.variables["RATCHET_ENGINE_PORT"] = str(free_port())
    machine.up("--only", "valkey,fleet")
    first = pid_of(machine, "fleet")
    os.kill(first, signal.SIGKILL)
    assert wait_for(lambda: pid_of(machine, "fleet") not in (0, first))


def pid_of(machine: Machine, name: str) -> int:
    """Process id of the oldest process of that name; 0 when there is none."""
    found = [process.pid for process in marked_processes(f"{machine.root}:") if process.name == name]
    return min(found, default=0)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_everything(machine: Machine, number: int) -> None:
    machine.up("--only", SERVERS)
    assert machine.signal(number) == 0
    assert machine.living() == []
    assert not (machine.home.postgres / "postmaster.pid").exists()  # a clean shutdown removes it


@pytest.mark.parametrize("status", [0, 7])
def test_exit_gives_the_status_of_the_command(machine: Machine, status: int) -> None:
    code = f"import os, sys; assert os.environ['DATABASE_URL'] and os.environ['REDIS_URL']; sys.exit({status})"
    done = machine.run("up", "--only", SERVERS, "--exit", "--then", f'{sys.executable} -c "{code}"')
    assert done.returncode == status, done.stdout + done.stderr
    assert machine.living() == []


def test_interrupting_the_command_is_no_success(machine: Machine) -> None:
    machine.up("--only", "valkey", "--exit", "--then", "sleep 300")
    assert machine.signal(signal.SIGINT) == 130
    assert machine.living() == []


def test_second_supervisor_is_refused(machine: Machine) -> None:
    machine.up("--only", "valkey")
    assert machine.process is not None
    done = machine.run("up", "--only", "valkey")
    assert done.returncode == 1
    assert f"process {machine.process.pid}" in done.stderr
    assert "RATCHET_HOME" in done.stderr
    assert machine.living() == ["valkey"]


def test_down_stops_it_and_is_content_when_nothing_runs(machine: Machine) -> None:
    machine.up("--only", "valkey")
    assert machine.run("down").returncode == 0
    assert machine.process is not None and machine.process.wait(10) == 0
    assert "Nothing runs" in machine.run("down").stdout


def test_status_counts_memory(machine: Machine) -> None:
    machine.up("--only", SERVERS)
    done = machine.run("status")
    assert done.returncode == 0
    sizes = {line.split()[0]: float(line.split()[3]) for line in done.stdout.splitlines()[1:]}
    assert set(sizes) == {"postgres", "valkey", "total"}
    assert sizes["total"] == pytest.approx(sizes["postgres"] + sizes["valkey"], abs=0.2)
    assert 5 < sizes["total"] < 200


def test_port_in_use_names_port_and_variable(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        machine.variables["RATCHET_PORT"] = str(port)
        done = machine.run("up", "--only", "valkey,web")
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr and "RATCHET_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_parts_with_a_url_are_not_started(machine: Machine) -> None:
    machine.variables |= {
        "DATABASE_URL": "postgres://somebody@127.0.0.1:1/x",
        "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    machine.up("--only", SERVERS)
    assert machine.living() == []


def test_servers_of_ones_own_that_do_not_answer_are_named(machine: Machine) -> None:
    machine.variables["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    done = machine.run("up", "--only", "control")
    assert done.returncode == 1 and "REDIS_URL" in done.stderr and "Traceback" not in done.stderr
    del machine.variables["REDIS_URL"]
    machine.variables["DATABASE_URL"] = "postgres://somebody@127.0.0.1:1/x"
    done = machine.run("up", "--only", "valkey,control")
    assert done.returncode == 1 and "DATABASE_URL" in done.stderr and "Traceback" not in done.stderr


def test_unknown_process_and_bad_variable_are_named(machine: Machine) -> None:
    done = machine.run("up", "--only", "postgress")
    assert done.returncode == 1 and "postgress" in done.stderr and "valkey" in done.stderr
    machine.variables["RATCHET_ENGINE_PORT"] = "many"
    done = machine.run("up", "--only", "valkey")
    assert done.returncode == 1 and "RATCHET_ENGINE_PORT='many'" in done.stderr and "Traceback" not in done.stderr


def test_data_of_another_postgres_is_refused(machine: Machine) -> None:
    machine.home.postgres.mkdir(parents=True)
    (machine.home.postgres / "PG_VERSION").write_text("9\n")
    done = machine.run("up", "--only", "postgres")
    assert done.returncode == 1 and "PostgreSQL 9" in done.stderr and "Traceback" not in done.stderr
