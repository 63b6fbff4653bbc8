"""Spark: starting a context that suits a run, and checking one that the user provides."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from pyspark import SparkConf, SparkContext

from everstream.engine.slot_sharing import Share, refuse_other_master
from everstream.engine.spark.launcher import active_context, is_configured, start_java
from everstream.engine.spark.lost import killed_while_starting
from everstream.errors import EnvironmentFault, SparkGone, UserError

OURS = "spark.everstream.made"
"""Set if Everstream made the context, and so may replace it."""
SETTLED_S = 2.0
"""A cluster has all its executors when no further one has registered for this long."""
TASK_RETRIES = 1_000_000
"""Spark counts failures over the whole life of a job; Everstream's limit counts over a window."""
AUTHENTICATE = "spark.authenticate"
ENCRYPTING = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
)
"""Either of these encrypts what Spark sends between its processes."""


MASTERS = (
    r"local(\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\])?",
    r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]",
    r"(spark|k8s|mesos)://.+",
    r"yarn(-client|-cluster)?",
)


_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]")
"""The number of executors, and of the cores of each."""


def make_context(master: str, app_name: str, others: tuple[Share, ...] = ()) -> SparkContext:
    """A quiet Spark that always retries a lost task; made once, then reused.

    others: the runs of this process that use the existing one.
    """
    wanted = with_retries(master)
    active = active_context()
    if active is not None:
        if active.master == wanted:
            return active
        if active.getConf().get(OURS) is None:
            raise UserError(
                f"Spark is already running in this process on master '{active.master}'. Pass that "
                f"session with spark=..., or stop it before running on '{master}'."
            )
        refuse_other_master(str(active.master), master, others)
        active.stop()
    check_master(master)
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log_settings = files("everstream.engine.spark") / "log4j2.properties"
    conf = SparkConf().setMaster(wanted).setAppName(app_name)
    for name, value in {
        OURS: "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(TASK_RETRIES),
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.daemon.module": "everstream.engine.tasks.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log_settings}",
    }.items():
        conf.set(name, value)
    try:
        with quiet_start():
            if is_local(master):
                _keep_others_out(conf, wanted)
            return SparkContext(conf=conf)
    except Exception as error:  # PySpark raises several unrelated classes here
        ended_by = killed_while_starting(error)
        if ended_by is not None:
            raise SparkGone(
                f"Spark's process was killed ({ended_by}) while it started on master '{master}'. If "
                "you did not do this on purpose, the machine may have too little memory."
            ) from error
        raise EnvironmentFault(
            f"Spark could not start on master '{master}': {error}. Check that it is running there."
        ) from error


def _keep_others_out(conf: SparkConf, master: str) -> None:
    """Require a secret on Spark's ports, because other users of the machine can reach them.

    Where driver and executor are one process, Spark generates the secret. Elsewhere Everstream
    generates it and sets it after Spark's process has started: a value set earlier would be on its
    command line, where every user can read it. The user's configuration (spark-defaults.conf) is
    left unchanged.
    """
    start_java(conf)
    if is_configured(AUTHENTICATE):
        return
    conf.set(AUTHENTICATE, "true")
    if master.startswith("local-cluster["):
        conf.set(f"{AUTHENTICATE}.secret", secrets.token_hex(32))


def check_master(master: str) -> None:
    """Raise a UserError if Spark does not support this kind of master."""
    if not any(re.fullmatch(known, master) for known in MASTERS):
        raise UserError(
            f"there is no Spark master '{master}': use local[2] (two cores of this machine; "
            "local[*] for all), spark://HOST:PORT, yarn, or k8s://HOST:PORT."
        )


def with_retries(master: str) -> str:
    """local[N] lets no task fail even once; local[N,F] does."""
    if master == "local":
        return f"local[1,{TASK_RETRIES}]"
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found[1]},{TASK_RETRIES}]" if found else master


def is_local(master: str) -> bool:
    """Everything runs on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def slots(context: SparkContext) -> int:
    """How many tasks can run at once, after the executors of a cluster have started."""
    master = str(context.master)
    if promised := _CLUSTER.fullmatch(master):
        return int(promised[1]) * int(promised[2])
    if not is_local(master):
        context.parallelize([0], 1).count()  # returns when the first executor has started
        known, since_s = context.defaultParallelism, time.monotonic()
        while time.monotonic() - since_s < SETTLED_S:
            time.sleep(0.1)
            if context.defaultParallelism != known:
                known, since_s = context.defaultParallelism, time.monotonic()
    return max(1, context.defaultParallelism)


def slots_of_an_executor(context: SparkContext) -> int:
    """How many tasks one executor runs at once, if known."""
    master = str(context.master)
    if promised := _CLUSTER.fullmatch(master):
        return int(promised[2])
    said = None if is_local(master) else context.getConf().get("spark.executor.cores")
    return max(1, int(said or context.defaultParallelism))


def check_context(context: SparkContext) -> list[str]:
    """Problems with a Spark that the user provides; each line has the fix."""
    conf = context.getConf()
    warnings = []
    master = str(context.master)
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if found:
        raise UserError(
            f"this Spark session (master '{master}') lets no task fail even "
            f"once, so nothing could recover. Use master 'local[{found[1] or 1},1000000]', or let "
            "Everstream make the session."
        )
    if int(conf.get("spark.task.maxFailures", "4") or 4) < 100:
        warnings.append(
            "this Spark session gives up on a task after "
            f"{conf.get('spark.task.maxFailures', '4')} failures; set spark.task.maxFailures to "
            "1000000 to leave this decision to Everstream's limit"
        )
    for setting in ("spark.speculation", "spark.dynamicAllocation.enabled"):
        if conf.get(setting, "false") == "true":
            warnings.append(
                f"{setting} is on in this Spark session and may start workers twice or remove "
                "them; turn it off for streaming jobs"
            )
    return warnings


def exposure(context: SparkContext) -> str | None:
    """How others could attack a run because Spark does not protect it; None if it does.

    On one machine, only other users of that machine can reach Spark.
    """
    conf = context.getConf()

    def on(*settings: str) -> bool:
        return any(str(conf.get(setting, "false")).lower() == "true" for setting in settings)

    if is_local(str(context.master)):
        return (
            None
            if on(AUTHENTICATE)
            else "spark.authenticate is off in this Spark session: other users of this machine can "
            "kill its tasks and run code in it. Set it to true where the session is made, or let Everstream "
            "make the session (see SECURITY.md)"
        )
    if not on(AUTHENTICATE):
        return (
            "spark.authenticate is off: anyone who reaches Spark's ports can run code in this cluster. "
            "Turn on spark.authenticate and spark.network.crypto.enabled (see SECURITY.md)"
        )
    if not on(*ENCRYPTING):
        return (
            "Spark's traffic is not encrypted: anyone who reads it sees your program and its results, "
            "and could impersonate a worker that is just starting. Turn spark.network.crypto.enabled on "
            "(see SECURITY.md)"
        )
    return None


def require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        raise EnvironmentFault(
            "Spark needs Java 17 or newer and none was found: install it, for example with "
            "'apt-get install default-jre-headless', or set JAVA_HOME."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version and int(version[1]) < 17:
        raise EnvironmentFault(
            f"Spark needs Java 17 or newer, but {java} is version {version[1]}: install a newer "
            "one, or set JAVA_HOME."
        )


_NOISE = (
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
    "Using Spark's default log4j profile",
)


@contextmanager
def quiet_start() -> Iterator[None]:
    """The standard error of a process started in this block is filtered."""
    read_end, write_end = os.pipe()
    screen = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    threading.Thread(target=_pass_on, args=(read_end,), daemon=True, name="spark-stderr").start()
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def _pass_on(read_end: int) -> None:
    with os.fdopen(read_end, errors="replace") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                sys.stderr.write(line)
