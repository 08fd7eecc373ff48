"""Elastic training for any PyTorch script.

    from launcher.runtime import elastic  # before torch

    elastic.join()
    sampler = elastic.StepSampler(len(dataset), samples_per_step=32, epochs=3)
    loader = DataLoader(dataset, batch_sampler=sampler)
    job = elastic.Job(model, optimizer, scheduler, sampler=sampler)
    for inputs, labels in job.steps(loader):
        job.weigh(cross_entropy(model(inputs), labels)).backward()
        ...
    elastic.leave()

`weigh` takes a mean over samples. A language model, whose samples differ in length, uses `weigh_sum`. `Hooks` are
evaluation, the end of an epoch and the final export.

Import this before torch, and at the top level of the script: until the handler of the agent's stop signal
is installed, the signal kills the process, and importing torch takes seconds.

A script ends with `leave` or, if it fails, `leave(exit_code)`: after DistributedDataParallel on gloo a plain return
may hang, and so may `sys.exit`. An uncaught exception needs no special handling.
"""

from launcher.runtime import agent

with agent.stop_signal_held():
    agent.install_event_handler()

    from launcher.runtime.hooks import Hooks
    from launcher.runtime.job import Job
    from launcher.runtime.process_group import join, leave
    from launcher.runtime.sampler import StepSampler

__all__ = ["Hooks", "Job", "StepSampler", "join", "leave"]
