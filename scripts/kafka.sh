#!/usr/bin/env bash
# Apache Kafka for the tests and for trying things out.
#   scripts/kafka.sh                       makes sure that its jars are in .venv/kafka (once, from Maven Central)
#   scripts/kafka.sh start [--brokers 3] [--folder FOLDER]   starts it, waits until it is ready, prints its address
#   scripts/kafka.sh stop [--folder FOLDER]                  ends it and removes its data
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/scripts/debian.sh"
VERSION=4.3.1
jars="$here/.venv/kafka/$VERSION"
loss="its tests are skipped"

install() {
  [ -d "$jars" ] && return
  command -v mvn >/dev/null || { need_apt Maven maven "$loss"; apt_install maven; }
  say "fetching Apache Kafka $VERSION with Maven, once ..."
  mkdir -p "$(dirname "$jars")"
  work=$(mktemp -d "$jars.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>everstream</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$VERSION</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
  if ! mvn -B -q -f "$work/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$work/jars" >"$work/log" 2>&1; then
    if grep -qiE 'could not transfer|unknown host|connect(ion)? (timed out|refused)|network is unreachable|offline mode' "$work/log"; then
      say "Apache Kafka is not here and Maven cannot reach its repository; $loss."
      exit 3
    fi
    say "Maven could not fetch Apache Kafka:"
    tail -n 20 "$work/log" >&2
    exit 1
  fi
  mv -T "$work/jars" "$jars" 2>/dev/null || [ -d "$jars" ] # another process may have been faster
}

case "${1:-install}" in
  install) install ;;
  start | stop)
    install
    cd "$here"
    exec .venv/bin/python -m tests.kafka_server "$@"
    ;;
  *)
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
