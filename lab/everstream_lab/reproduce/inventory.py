"""Every table and figure of the five papers: those with numbers, and those that are drawings."""

from everstream_lab.reproduce import ferdis, morphstream, queueing, resipipe, spbench
from everstream_lab.reproduce.experiments import Inventory

INVENTORY = Inventory(
    {
        "resipipe": "ResiPipe: fault tolerance for parallel and distributed stream processing",
        "ferdis": "FERDiS: checkpoint-based fault tolerance in stateful stream processing",
        "spbench": "SPBench: micro-batches and data frequency on multi-cores",
        "queueing": "CCRR: coordinated checkpoints in a queueing model",
        "morphstream": "MorphStreamR: parallel recovery for transactional streams",
    },
    (
        *resipipe.EXPERIMENTS,
        *ferdis.EXPERIMENTS,
        *spbench.EXPERIMENTS,
        *queueing.EXPERIMENTS,
        *morphstream.EXPERIMENTS,
    ),
    (
        *resipipe.EXHIBITS,
        *ferdis.EXHIBITS,
        *spbench.EXHIBITS,
        *queueing.EXHIBITS,
        *morphstream.EXHIBITS,
    ),
    {
        "resipipe": "tables 2.1, 3.1 to 3.3, 3.4, 4.1 and 4.2; figures 1.1, 2.1 to 2.12, 4.1 to 4.4, "
        "5.1, 5.12, 5.14, 5.16, 5.18, 5.20 and 6.1 to 6.4 are definitions, related work, code and "
        "drawings of pipelines",
        "ferdis": "tables 1 and 2 and figures 1 to 21 are definitions, parameters, message patterns "
        "and drawings of the system",
        "spbench": "table 1 and figures 1 to 5 are related work, code and drawings of the framework",
        "queueing": "table 1 and figures 1 to 5 are related work and drawings of the model",
        "morphstream": "figures 1, 3 to 8 and 10 are drawings of the system and its workflow",
    },
)
