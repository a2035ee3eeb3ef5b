#!/bin/sh
# Make .venv and install Outrider into it: `tools/setup.sh runtime` or `tools/setup.sh dev`; `torch`
# adds PyTorch to the latter. With `dist` it gets what builds the wheel, and nothing else.
# Safe to run again: it does nothing while pyproject.toml and constraints.txt are unchanged.
set -eu
cd "$(dirname "$0")/.."
extra=${1:-dev}

fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

find_python() {
    for candidate in ${PYTHON:-} python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null
        then
            command -v "$candidate"
            return
        fi
    done
    fail 'Python 3.11 or 3.12 is needed (Debian: apt-get install python3 python3-venv)'
}

make_venv() {
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    python=$(find_python)
    rm -rf .venv
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian ships venv apart from Python.
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 ||
            fail 'the venv module is missing: run `sudo apt-get install python3-venv` and try again'
        echo 'setup: installing python3-venv'
        apt-get update -q >/dev/null && apt-get install -q -y python3-venv >/dev/null
    fi
    "$python" -m venv .venv
}

# The tests put Debian's nginx in front of an edge. Unpacked, not installed: nothing of the machine
# changes, and who is not root has it too.
get_nginx() {
    [ ! -x /usr/sbin/nginx ] && [ ! -x .tools/nginx/usr/sbin/nginx ] || return 0
    command -v nginx >/dev/null 2>&1 && return
    mkdir -p .tools/nginx
    if ! command -v apt-get >/dev/null 2>&1 || ! unpack_nginx; then
        echo 'setup: no nginx was fetched: its tests fail until it is there (sudo apt-get install nginx)'
    fi
}

unpack_nginx() {
    echo 'setup: fetching nginx into .tools'
    (
        cd .tools/nginx
        download nginx && dpkg-deb --extract nginx_*.deb . && rm nginx_*.deb
    )
}

# A Debian package into this folder. Where the machine has no lists of packages, or old ones, they
# are fetched beside it: nobody has to be root.
download() {
    apt-get download -q "$1" >/dev/null 2>&1 && return
    mkdir -p apt/lists/partial apt/cache
    status=0
    for step in update "download $1"; do
        # Two words, where there are two.
        apt-get -q -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache" $step \
            >/dev/null 2>apt/errors || { status=1; cat apt/errors; break; }
    done
    rm -rf apt
    return $status
}

# The tests have what every service says at /metrics judged by Prometheus's own promtool, and scraped
# by a real Prometheus: 19 MB to fetch, of which two programs of 48 MB each are kept.
get_prometheus() {
    command -v promtool >/dev/null 2>&1 && command -v prometheus >/dev/null 2>&1 && return
    [ ! -x .tools/prometheus/usr/bin/prometheus ] || return 0
    mkdir -p .tools/prometheus
    if ! command -v apt-get >/dev/null 2>&1 || ! unpack_prometheus; then
        echo 'setup: no Prometheus was fetched: its tests fail until it is there (sudo apt-get install prometheus)'
    fi
}

unpack_prometheus() {
    echo 'setup: fetching Prometheus into .tools'
    (
        cd .tools/prometheus
        download prometheus &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool ./usr/bin/prometheus && rm prometheus_*.deb
    )
}

# The tests look at pictures of the documents as Chromium and librsvg draw them, and at the edge's pages
# in Chromium and Firefox: 200 MB to fetch, with the libraries that the machine lacks, 690 MB on the disk.
get_renderers() {
    command -v chromium >/dev/null 2>&1 && command -v firefox-esr >/dev/null 2>&1 &&
        command -v rsvg-convert >/dev/null 2>&1 && return
    [ ! -e .tools/renderers/complete ] || return 0
    rm -rf .tools/renderers
    mkdir -p .tools/renderers
    if ! command -v apt-get >/dev/null 2>&1 || ! unpack_renderers; then
        echo 'setup: no browsers were fetched: their tests fail until they are there (sudo apt-get install chromium firefox-esr librsvg2-bin)'
    fi
}

unpack_renderers() {
    echo 'setup: fetching Chromium, Firefox and rsvg-convert into .tools'
    (
        cd .tools/renderers
        wanted='chromium firefox-esr librsvg2-bin fonts-dejavu-core fonts-roboto-unhinted'
        mkdir -p apt/lists/partial apt/cache
        beside="-o Dir::State::lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt/cache"
        # What is installed already is in no list of what would be.
        # shellcheck disable=SC2086
        apt-get -q $beside update >/dev/null 2>&1 &&
            lacking=$(apt-get -q $beside install --simulate --no-install-recommends $wanted |
                awk '/^Inst/ {print $2}') &&
            apt-get -q $beside download $lacking >/dev/null 2>&1 || exit 1
        rm -rf apt
        for package in *.deb; do dpkg-deb --extract "$package" . || exit 1; done
        rm -- *.deb
        : >complete
    )
}

install() {
    # At a terminal pip says what it fetches.
    [ -t 1 ] && quiet= || quiet=--quiet
    # shellcheck disable=SC2086
    .venv/bin/python -m pip install $quiet --disable-pip-version-check "$@" ||
        fail 'pip could not install it. Does it reach a package index? (PIP_INDEX_URL names one, HTTPS_PROXY a proxy.) Then run it again'
}

install_outrider() {
    echo "setup: installing outrider$(printf %s "$1" | tr -d .) into .venv (0.5 to 1 GB, some minutes)"
    install --constraint constraints.txt --editable "$1"
}

make_venv
stamp=".venv/.outrider-$extra"
want=$(cat pyproject.toml constraints.txt tools/setup.sh | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
    case $extra in
    dist) install --require-hashes --requirement deploy/docker/requirements/build.txt ;;
    runtime) install_outrider '.[edge,router,tokenizer,inference,draft]' ;;
    dev)
        install_outrider '.[dev]'
        .venv/bin/python -m tools.check_deploy --fetch
        get_nginx
        get_prometheus
        get_renderers
        ;;
    torch) install --constraint constraints.txt --editable '.[torch-dev]' ;;
    *) fail "there is runtime, dev, torch and dist, not $extra" ;;
    esac
    printf '%s\n' "$want" >"$stamp"
fi
