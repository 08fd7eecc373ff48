"""Elastic training for any PyTorch script.

    from launcher.runtime import elastic  # before torch

    elastic.join()  # all of it in a function `main`
    sampler = elastic.StepSampler(len(dataset), samples_per_step=32, epochs=3)
    loader = DataLoader(dataset, batch_sampler=sampler)
    job = elastic.Job(model, optimizer, scheduler, sampler=sampler)
    for inputs, labels in job.steps(loader):
        job.weigh(cross_entropy(model(inputs), labels)).backward()
        ...

    elastic.run(main)

`weigh` takes a mean over samples. A language model, whose samples differ in length, uses `weigh_sum`. `Hooks` are
evaluation, the end of an epoch and the final export.

Import this before torch, and at the top level of the script: until the handler of the agent's stop signal
is installed, the signal kills the process, and importing torch takes seconds.

`run` calls the function and ends the process. In a job that is resized in place it calls the function again after
each change of size, and `Job` continues with the state of the call before. What is made outside of the function, or
in one that is cached (`functools.cache`), stays: a model that is built so is not built again.

A script without `run` ends with `leave` or, if it fails, `leave(exit_code)`: after DistributedDataParallel on gloo a
plain return may hang, and so may `sys.exit`. An uncaught exception needs no special handling.
"""

from collections.abc import Callable
from typing import NoReturn

from launcher.runtime import agent

with agent.stop_signal_held():
    agent.install_event_handler()

    from launcher.runtime import in_place
    from launcher.runtime.hooks import Hooks
    from launcher.runtime.job import Job
    from launcher.runtime.process_group import join, leave
    from launcher.runtime.sampler import StepSampler

__all__ = ["Hooks", "Job", "StepSampler", "join", "leave", "run"]


def run(train: Callable[[], object]) -> NoReturn:
    """Call `train`, again after each resize in place, until training is finished; then end the process."""
    in_place.run(train)
    leave()
