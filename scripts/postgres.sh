#!/usr/bin/env bash
# Makes sure that a PostgreSQL server is installed for the tests, which start their own.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
source "$(dirname "$0")/debian.sh"

is_there() { compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

is_there && exit 0

need_apt PostgreSQL postgresql "its tests, which look for /usr/lib/postgresql/*/bin/postgres, are skipped"
# The tests make their own servers: the package need not start one.
settings=/etc/postgresql-common/createcluster.conf
if [ ! -e "$settings" ]; then
  $sudo mkdir -p "$(dirname "$settings")"
  echo 'create_main_cluster = false' | $sudo tee "$settings" >/dev/null
fi
apt_install postgresql
is_there || { say "apt-get installed postgresql, but there is no server in /usr/lib/postgresql."; exit 1; }
