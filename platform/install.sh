#!/bin/sh
# Installs Ratchet's pinned packages into ./.venv: `platform/install.sh run` or `platform/install.sh dev`.
# A second call with the same requirement files does nothing.
set -eu
cd "$(dirname "$0")/.."
kind="${1:-run}"
venv=.venv

say() { printf 'ratchet: %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3 /usr/bin/python3.11 /usr/bin/python3 /usr/local/bin/python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 was not found. Install it (Debian 12: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11 …"
}

make_venv() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    python=$(find_python) || exit 1
    say "Making $venv with $python …"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module: apt-get install python3-venv (Debian) or python3.11-venv (Ubuntu)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "$venv could not be made: is this folder writable, and is there disk space?"
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" ||
        fail "pip could not install: $*. Check the network and the disk (3 GB are needed), then run the same command again."
}

# Packages of the system that wheels do not carry.
apt_install() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Installing $1 with apt-get …"
        (apt-get install -y -qq "$1" || { apt-get update -qq && apt-get install -y -qq "$1"; }) >/dev/null 2>&1 || return 1
    else
        return 1
    fi
}

need_libseccomp() {
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libseccomp.so.2")' 2>/dev/null || apt_install libseccomp2 ||
        fail "libseccomp2 is missing, which filters the sandbox's system calls: apt-get install libseccomp2"
}

want_chromium() {
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
        command -v google-chrome >/dev/null 2>&1 || apt_install chromium ||
        say "Chromium is missing: the browser tests will be skipped (apt-get install chromium)."
}

stamp() { cat platform/install.sh requirements.txt requirements-no-deps.txt requirements-demo.txt frontend/client/pyproject.toml "$@" | cksum | tr ' ' '-'; }

install_run() {
    want="run-$(stamp)"
    if [ "$(cat "$venv/installed-run" 2>/dev/null)" != "$want" ]; then
        say "Installing pinned packages (about 3 minutes and 2.2 GB the first time) …"
        say "  1/5 torch"
        # On PyPI, torch for Linux brings CUDA along: TORCH_INDEX, the address of PyTorch's CPU wheels, avoids that.
        pip_install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)"
        say "  2/5 requirements.txt"
        pip_install -r requirements.txt
        say "  3/5 requirements-no-deps.txt"
        pip_install --no-deps -r requirements-no-deps.txt
        say "  4/5 requirements-demo.txt"
        pip_install --no-deps -r requirements-demo.txt
        say "  5/5 the ratchet command"
        pip_install -e frontend/client
        printf '%s' "$want" >"$venv/installed-run"
    fi
    need_libseccomp
}

install_dev() {
    want="dev-$(stamp requirements-dev.txt)"
    if [ "$(cat "$venv/installed-dev" 2>/dev/null)" != "$want" ]; then
        say "Installing requirements-dev.txt …"
        pip_install -r requirements-dev.txt
        want_chromium
        printf '%s' "$want" >"$venv/installed-dev"
    fi
}

case "$kind" in
run)
    make_venv
    install_run
    ;;
dev)
    make_venv
    install_run
    install_dev
    ;;
*) fail "unknown kind '$kind': run or dev" ;;
esac
