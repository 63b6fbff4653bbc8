#!/usr/bin/env bash
# Makes sure that Prometheus is installed for the tests, which start their own.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
source "$(dirname "$0")/debian.sh"

is_there() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

is_there && exit 0

need_apt Prometheus prometheus "the tests that have one scrape a run are skipped"
# The tests start their own servers: the package need not start one.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
  $sudo chmod +x "$policy"
  trap '$sudo rm -f "$policy"' EXIT
fi
apt_install prometheus
is_there || { say "apt-get installed prometheus, but there is no prometheus or promtool."; exit 1; }
