"""Spark sessions: making one that suits us, and checking one a user brings along."""

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files

from pyspark.sql import SparkSession

from everstream.errors import EnvironmentFault, UserError
from everstream.spark.noise import quiet_start

TASK_RETRIES = 1_000_000
"""Spark counts failures over the whole life of a job; our own budget counts over a window."""


def make_session(master: str, app_name: str) -> SparkSession:
    """A quiet session on this master in which a lost task is always started again."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if is_local(master) else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    log_settings = files("everstream.spark") / "log4j2.properties"
    builder = (
        SparkSession.builder.master(with_retries(master))
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.task.maxFailures", str(TASK_RETRIES))
        .config("spark.speculation", "false")
        .config("spark.dynamicAllocation.enabled", "false")
        .config("spark.python.daemon.module", "everstream.spark.daemon")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{log_settings}")
    )
    try:
        with quiet_start():
            session: SparkSession = builder.getOrCreate()
    except Exception as error:  # PySpark raises several unrelated classes here
        raise EnvironmentFault(
            f"Spark could not start on master '{master}': {error}. "
            "Check the master's address, and that Java 17 or newer is installed."
        ) from error
    return session


def with_retries(master: str) -> str:
    """local[N] allows no task to fail even once; local[N,F] does."""
    if master == "local":
        return f"local[1,{TASK_RETRIES}]"
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found[1]},{TASK_RETRIES}]" if found else master


def is_local(master: str) -> bool:
    """Everything runs on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def check_session(session: SparkSession) -> list[str]:
    """What stands in our way in a session a user brought along; each line says the fix."""
    conf = session.sparkContext.getConf()
    warnings = []
    master = str(session.sparkContext.master)
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if found:
        raise UserError(
            f"this Spark session (master '{master}') lets no task fail even "
            f"once, so nothing could recover. Use master 'local[{found[1] or 1},1000000]', or let "
            "Everstream make the session."
        )
    if int(conf.get("spark.task.maxFailures", "4") or 4) < 100:
        warnings.append(
            "this Spark session gives a task up after "
            f"{conf.get('spark.task.maxFailures', '4')} failures; set spark.task.maxFailures to "
            "1000000 to leave that to Everstream's own limit"
        )
    for setting in ("spark.speculation", "spark.dynamicAllocation.enabled"):
        if conf.get(setting, "false") == "true":
            warnings.append(
                f"{setting} is on in this Spark session and may start hosts twice or take them "
                "away; turn it off for streaming jobs"
            )
    return warnings


def require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        raise EnvironmentFault(
            "Spark needs Java 17 or newer and none was found: install it, for example with "
            "'apt-get install openjdk-17-jre-headless', or set JAVA_HOME."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version and int(version[1]) < 17:
        raise EnvironmentFault(
            f"Spark needs Java 17 or newer, but {java} is version {version[1]}: install a newer "
            "one, or set JAVA_HOME."
        )
