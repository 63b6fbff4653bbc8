"""The sequential program. If nobody watches it is the application's own, as it stands.

To take times it is a loop over the same stages, which costs it some hundred nanoseconds an item.
"""

import time

from everstream.apps.interfaces.gathering import gather
from everstream.apps.interfaces.job import Done, Job, preloaded
from everstream.apps.interfaces.tasks import tasks
from everstream.apps.interfaces.work import Work


def sequential(job: Job) -> Done:
    items = job.application.items(job.folder)
    if not (job.clocked or job.monitor or job.load or job.in_memory):
        began_s = time.monotonic()
        job.application.sequential(job.folder, job.output)
        return Done(len(items), time.monotonic() - began_s)
    work = Work(preloaded(items, job.in_memory), job.application.stages, job.clocked)
    return gather(job, len(items), map(work, tasks(job, len(items))))
