"""Start an engine of the tests, print how it is used, and stop it at Ctrl-C.

    python tests/engines/engine.py NAME        or: make engine NAME=slurm

It keeps everything in a temporary folder, which is removed with it. `make engines` installs the programs.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the launcher, whatever folder this is started from

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLURM = """\
Slurm: a controller with accounting, and {nodes} nodes of this machine.
export SLURM_CONF={conf}
sinfo
recipes run recipes=training/tiny/tiny_lm_cpu cluster=slurm instance_type=m5.2xlarge \\
  recipes.trainer.num_nodes=2 recipes.elastic_policy.is_elastic=false recipes.training_config.mlflow.enabled=false
"""
KUBERNETES = """\
Kubernetes: an API server with the CRDs of training jobs and Kueue. It takes jobs; no operator or kubelet runs them.
export KUBECONFIG={config}
recipes run recipes=training/tiny/tiny_lm_cpu cluster=k8s instance_type=m5.2xlarge container=me/image:1 \\
  recipes.training_config.mlflow.enabled=false
"""
S3 = """\
S3: a server in memory, with the bucket {bucket}.
export AWS_ENDPOINT_URL={endpoint} AWS_DEFAULT_REGION={region} {keys}
python -c 'import boto3; print(boto3.client("s3").list_buckets()["Buckets"])'
"""
MLFLOW = """\
MLflow: a tracking server with a store of its own.
export MLFLOW_TRACKING_URI={url}
recipes run recipes=training/tiny/tiny_lm_cpu recipes.training_config.mlflow.tracking_uri={url}
"""
RAY = """\
Ray: a head, and {nodes} nodes that report {gpus} accelerators each.
export RAY_ADDRESS={address}
recipes run recipes=training/custom/script cluster=ray cluster.working_dir={examples} \\
  training_cfg.entry_script=train_ray.py training_cfg.run.nodes={nodes} \\
  "training_cfg.script_args=[{{--configs: bundle:configs}}]"
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[str]:
    """Run a Slurm of four nodes."""
    import slurm_cluster

    if missing := slurm_cluster.absent():
        sys.exit(f"no {', '.join(missing)}: run {slurm_cluster.INSTALL}")
    with slurm_cluster.running(folder, num_nodes=4, has_accounting=True) as cluster:
        yield SLURM.format(nodes=cluster.num_nodes, conf=cluster.conf)


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[str]:
    """Run an API server with its etcd."""
    import cluster_fixtures
    import kube_api

    if kube_api.binary() is None:
        sys.exit(f"no kube-apiserver: run {kube_api.INSTALL}")
    with cluster_fixtures.running(folder):
        yield KUBERNETES.format(config=folder / cluster_fixtures.ADMIN_CONFIG)


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[str]:
    """Run an S3 server in this process, with a bucket."""
    import boto3
    import s3_server

    os.environ |= s3_server.KEYS
    with s3_server.running() as endpoint:
        boto3.client("s3", endpoint_url=endpoint, region_name=s3_server.REGION).create_bucket(Bucket="mine")
        keys = " ".join(f"{name}={value}" for name, value in s3_server.KEYS.items())
        yield S3.format(bucket="mine", endpoint=endpoint, region=s3_server.REGION, keys=keys)


@contextlib.contextmanager
def mlflow(folder: Path) -> Iterator[str]:
    """Run an MLflow server."""
    import mlflow_server

    with mlflow_server.running(folder) as url:
        yield MLFLOW.format(url=url)


@contextlib.contextmanager
def ray(folder: Path) -> Iterator[str]:
    """Run a Ray cluster in a network of its own."""
    import ray_cluster

    if reason := ray_cluster.absent():
        sys.exit(reason)
    with ray_cluster.running(folder, num_nodes=2) as address:
        yield RAY.format(nodes=2, gpus=ray_cluster.GPUS, address=address, examples=EXAMPLES)


ENGINES: dict[str, Callable[[Path], contextlib.AbstractContextManager[str]]] = {
    "s3": s3,
    "mlflow": mlflow,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "ray": ray,
}


def main(words: list[str]) -> None:
    """Run the engine that is named until a signal."""
    if len(words) != 1 or words[0] not in ENGINES:
        sys.exit(f"name one engine: {', '.join(ENGINES)}")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background ignores the first
        signal.signal(number, _end)
    with (
        tempfile.TemporaryDirectory(prefix="recipes-engine-") as folder,
        contextlib.suppress(KeyboardInterrupt),
        ENGINES[words[0]](Path(folder)) as use,
    ):
        print(use, "Ctrl-C stops it.", sep="", flush=True)
        while True:
            signal.pause()


def _end(number: int, frame: object) -> None:
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)  # it is stopping
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(sys.argv[1:])
