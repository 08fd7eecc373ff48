"""Scripts that MPI starts, on a real Slurm: every rank in one communicator."""

import shutil

import pytest
import slurm_cluster
from conftest import written
from log_texts import log_texts
from test_slurm_jobs import SCRIPT, SlurmBackend, finished
from test_slurm_rendering import SCRIPTS, files, problem

from launcher import pipeline
from launcher.model.job_spec import LogSelection

NODES, RANKS_PER_NODE = 2, 2
MPI = (
    *SCRIPT[:-1],
    f"training_cfg.run.ntasks_per_node={RANKS_PER_NODE}",
    f"training_cfg.run.nodes={NODES}",
    "++recipes.distribution.mpi.enabled=true",
)
OPTIONS = "++recipes.distribution.mpi.custom_mpi_options='{}'"
PROGRAM = """
import ctypes, os
lib = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
symbol = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(lib, name)))
lib.MPI_Init(None, None)
world, integer = symbol("ompi_mpi_comm_world"), symbol("ompi_mpi_int")
rank, size = ctypes.c_int(), ctypes.c_int()
lib.MPI_Comm_rank(world, ctypes.byref(rank))
lib.MPI_Comm_size(world, ctypes.byref(size))
every = (ctypes.c_int * size.value)()
lib.MPI_Allgather(ctypes.byref(rank), 1, integer, every, 1, integer, world)
same = os.environ["RANK"] == str(rank.value) and os.environ["WORLD_SIZE"] == str(size.value)
place = os.environ["LOCAL_RANK"], os.environ["SLURMD_NODENAME"]
print(rank.value, size.value, sum(every), *place, same, flush=True)
lib.MPI_Finalize()
"""
"""Gathers the numbers of all ranks. Source: Open MPI 4.1, mpi.h: handles are addresses of these symbols."""


@pytest.mark.whole_job
@pytest.mark.parametrize("mpi", ["mpirun", "pmi2"])
def test_a_script_starts_once_per_rank(tmp_path_factory, tmp_path, mpi):
    """OpenMPI of the distribution cannot join through PMI-2, so that case has no communicator.

    Simulated nodes are one machine, where the shared memory of two nodes' processes has the same name.
    """
    is_real = mpi == "mpirun"
    print_place = (
        "import os; print(os.environ['RANK'], 4, 6, os.environ['LOCAL_RANK'], os.environ['SLURMD_NODENAME'], True)"
    )
    (tmp_path / "ranks.py").write_text(PROGRAM if is_real else print_place)
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), NODES):
        assert shutil.which("mpirun"), slurm_cluster.INSTALL
        words = (
            *MPI,
            f"training_cfg.entry_script={tmp_path}/ranks.py",
            f"cluster.mpi={mpi}",
            OPTIONS.format("--mca btl tcp,self"),
        )
        record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
        finished(record)
        lines = list(log_texts(SlurmBackend(), record.handle, LogSelection(ranks=None), follow=False))
    shown = [f"rank {rank} | {rank} 4 6 {rank % 2} n{1 + rank // 2} True" for rank in range(NODES * RANKS_PER_NODE)]
    assert lines == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("cluster.mpi=pmix",),
        ("container=/fsx/i.sqsh", "cluster.mpi=pmix"),
        ("container=/fsx/i.sif", "cluster.container_runtime=apptainer"),
    ],
    ids=["mpirun", "pmix", "pyxis", "apptainer"],
)
def test_scripts_with_mpi_are_sound(tmp_path, words, shellcheck):
    options = OPTIONS.format("--NCCL_DEBUG WARN --mca btl ^openib")
    made = files(tmp_path, *MPI, "training_cfg.entry_script=a.py", options, *words)
    assert ("mpirun " in made[SCRIPTS[0]]) == (not any("pmix" in word for word in words))
    assert ("--mpi=pmix" in made[SCRIPTS[0]]) == any("pmix" in word for word in words)
    assert "export NCCL_DEBUG=WARN" in made[SCRIPTS[2]] and "torch.distributed.run" not in made[SCRIPTS[1]]
    shellcheck(*(made[name] for name in SCRIPTS))


def test_the_model_parallel_library_gets_its_parameters(tmp_path):
    parameters = (
        "++recipes.distribution.smdistributed.modelparallel={enabled: true, parameters: {partitions: 2, ddp: true}}"
    )
    words = ("training_cfg.entry_script=a.py", "instance_type=p3.16xlarge", "recipes.instance_types=[]")
    size = "training_cfg.run.ntasks_per_node=8"
    text = files(tmp_path, *MPI, *words, size, parameters)[SCRIPTS[2]]
    assert 'export SM_HP_MP_PARAMETERS=\'{"partitions": 2, "ddp": true}\'' in text


@pytest.mark.parametrize(
    ("words", "key"),
    [(("container=me/image:1",), "cluster.container_runtime"), (("container=/fsx/i.sqsh",), "cluster.mpi")],
    ids=["docker", "pyxis"],
)
def test_a_container_that_mpi_cannot_start_is_refused(tmp_path, words, key):
    found = problem(tmp_path, *MPI, "training_cfg.entry_script=a.py", *words)
    assert (found.code, found.path) == ("E465", key)
