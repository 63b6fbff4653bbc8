#!/usr/bin/env bash
# Makes sure that a Java is there which Spark runs on: 17 or newer. One that is installed is taken;
# else the newest of Debian's that Spark is tested with is installed.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
source "$(dirname "$0")/debian.sh"
OLDEST=17
TESTED="21 17" # of those that Spark is released for, the ones in Debian's releases; newest first

fits() {
  local java=java version
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ "${version:-0}" -ge "$OLDEST" ]
}

package_to_install() {
  local version default
  for version in $TESTED; do
    if can_be_had "openjdk-$version-jre-headless"; then
      echo "openjdk-$version-jre-headless"
      return
    fi
  done
  default=$(apt-cache depends default-jre-headless 2>/dev/null | sed -n 's/.*openjdk-\([0-9]*\)-jre-headless.*/\1/p' | head -n 1)
  [ "${default:-0}" -ge "$OLDEST" ] && echo default-jre-headless
}

fits && exit 0

need_apt "Java $OLDEST or newer" "openjdk-${TESTED%% *}-jre-headless" "Spark cannot run"
apt_refresh
package=$(package_to_install) || { say "Debian's packages here have no Java $OLDEST or newer; install one and set JAVA_HOME."; exit 1; }
apt_install "$package"
fits || { say "apt-get installed $package, but ${JAVA_HOME:+JAVA_HOME=$JAVA_HOME, or }java on the PATH, is not Java $OLDEST or newer."; exit 1; }
