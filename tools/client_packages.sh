#!/bin/sh
# Install the clients of others that the tests drive a mesh with, from npm and PyPI, into
# .tools/clients (1.1 GB). Safe to run again: it does nothing while their lists are unchanged.
set -eu
cd "$(dirname "$0")/.."
lists=tests/e2e/clients
place=.tools/clients
want=$(cat "$lists"/requirements*.txt "$lists/package-lock.json" tools/client_packages.sh | sha256sum)
[ "$(cat "$place/installed" 2>/dev/null || true)" != "$want" ] || exit 0
echo "setup: installing packages from npm and PyPI into $place (1.1 GB, some minutes)"
rm -rf "$place"
mkdir -p "$place/node"
# The agents' package and the others need different releases of OpenAI's.
for name in python agents; do
    list=$lists/requirements.txt
    [ "$name" = python ] || list=$lists/requirements-$name.txt
    .venv/bin/python -m venv "$place/$name"
    "$place/$name/bin/pip" install --quiet --no-compile --disable-pip-version-check --requirement "$list"
done
cp "$lists/package.json" "$lists/package-lock.json" "$place/node"
# npm comes from PyPI, with a Node.js of its own.
bin=$PWD/$place/python/bin
(cd "$place/node" && PATH=$bin:$PATH npm ci --silent --no-audit --no-fund)
printf '%s\n' "$want" >"$place/installed"
