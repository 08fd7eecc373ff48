"""Fit a line with one Ray actor on each node of the recipe: a driver for cluster=ray (docs/ray.md)."""

import sys

import ray
import yaml

with open(f"{sys.argv[sys.argv.index('--configs') + 1]}/config.yaml") as file:
    config = yaml.safe_load(file)
num_workers, accelerators = config["trainer"]["num_nodes"], config["trainer"]["devices"]


@ray.remote(num_gpus=accelerators)
class Worker:
    """Holds a share of the samples, and the accelerators of a node."""

    def __init__(self, samples):
        self.samples = samples

    def gradient(self, slope):
        """Return the gradient of the squared error over the samples."""
        return sum(2 * (slope * x - y) * x for x, y in self.samples) / len(self.samples)

    def accelerators(self):
        """Return the ids that Ray has given the worker."""
        return ray.get_gpu_ids()


ray.init()
samples = [(x / 8, 3 * x / 8) for x in range(8)]
workers = [Worker.remote(samples[rank::num_workers]) for rank in range(num_workers)]
slope = 0.0
for step in range(40):
    gradients = ray.get([worker.gradient.remote(slope) for worker in workers])
    slope -= 0.5 * sum(gradients) / num_workers
    print(f"step {step} slope {slope:.4f}", flush=True)
print("accelerators", sorted(sum(ray.get([worker.accelerators.remote() for worker in workers]), [])))
