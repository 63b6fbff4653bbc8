#!/usr/bin/env bash
# Makes sure that a PostgreSQL server is installed for the tests, which start one of their own.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail

say() { printf 'everstream tests: %s\n' "$*" >&2; }

is_there() { compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

is_there && exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
  sudo="sudo -n"
  if ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
    say "PostgreSQL is not installed and this user may not install it; its tests are skipped. Run 'apt-get install postgresql' as root to have them."
    exit 3
  fi
fi
if ! command -v apt-get >/dev/null; then
  say "PostgreSQL is not installed and there is no apt-get; its tests are skipped. They look for /usr/lib/postgresql/*/bin/postgres."
  exit 3
fi

say "installing PostgreSQL from Debian's packages, once ..."
# The tests make servers of their own: the package need not start one.
settings=/etc/postgresql-common/createcluster.conf
if [ ! -e "$settings" ]; then
  $sudo mkdir -p "$(dirname "$settings")"
  echo 'create_main_cluster = false' | $sudo tee "$settings" >/dev/null
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -o DPkg::Lock::Timeout=240 -qq update
$sudo apt-get -o DPkg::Lock::Timeout=240 -qq install -y --no-install-recommends postgresql >/dev/null
is_there || { say "apt-get installed postgresql, but there is no server in /usr/lib/postgresql."; exit 1; }
