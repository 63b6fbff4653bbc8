#!/usr/bin/env bash
# Makes sure that a Redis server is installed for the tests, which start their own.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
source "$(dirname "$0")/debian.sh"

is_there() { command -v redis-server >/dev/null; }

is_there && exit 0

need_apt Redis redis-server "its tests, which look for redis-server, are skipped"
# The tests start their own servers: the package need not start one.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
  $sudo chmod +x "$policy"
  trap '$sudo rm -f "$policy"' EXIT
fi
apt_install redis-server
is_there || { say "apt-get installed redis-server, but there is no such program."; exit 1; }
