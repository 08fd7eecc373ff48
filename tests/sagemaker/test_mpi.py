"""Real OpenMPI over simulated hosts: every rank is where the table says, and its groups are those of the table."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import mpi_hosts
import pytest
from conftest import ROOT

from launcher.model.parallelism import ranks
from launcher.model.parallelism.mpi import MpiRun
from launcher.model.parallelism.ranks import Placement

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="needs OpenMPI: apt-get install --no-install-recommends openmpi-bin"
)

# Calls the MPI library itself, so that it needs neither a compiler nor mpi4py. One write a line: mpirun tags writes.
PROGRAM = """
import ctypes, json, os, socket, sys

lib = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
symbol = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(lib, name)))
world, integer = symbol("ompi_mpi_comm_world"), symbol("ompi_mpi_int")


def number(call, group):
    found = ctypes.c_int()
    assert call(group, ctypes.byref(found)) == 0
    return found.value


def group(colour):
    made = ctypes.c_void_p()
    assert lib.MPI_Comm_split(world, colour, rank, ctypes.byref(made)) == 0
    members = (ctypes.c_int * number(lib.MPI_Comm_size, made))()
    assert lib.MPI_Allgather(ctypes.byref(ctypes.c_int(rank)), 1, integer, members, 1, integer, made) == 0
    return number(lib.MPI_Comm_rank, made), list(members)


assert lib.MPI_Init(None, None) == 0
rank, size = number(lib.MPI_Comm_rank, world), number(lib.MPI_Comm_size, world)
mine = json.load(open(sys.argv[1]))[rank]
told = {"rank": rank, "size": size, "host": socket.gethostname(), "mine": os.environ.get("SM_MINE")}
told["local_rank"] = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
told["mp_rank"], told["mp_members"] = group(mine["mp_group"])
told["dp_rank"], told["dp_members"] = group(mine["dp_group"])
os.write(1, (json.dumps(told) + "\\n").encode())
lib.MPI_Finalize()
"""


@pytest.fixture
def mpirun(tmp_path):
    """Return a function that runs a Python program on every rank of simulated hosts."""

    def run(placement, program, *arguments, **options):
        path = tmp_path / "program with blank.py"
        path.write_text(program, encoding="utf-8")
        job = MpiRun(placement.hosts, placement.processes_per_host, exported=("SM_MINE",), **options)
        return subprocess.run(
            mpi_hosts.command(job, (sys.executable, str(path), *arguments)),
            env=os.environ | mpi_hosts.environment() | {"PYTHONPATH": str(ROOT), "SM_MINE": "a b'c"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(Placement(ranks.host_names(2), 8, 2, 1, "spread"), id="spread over two hosts of eight"),
        pytest.param(Placement(ranks.host_names(2), 4, 2, 2, "PTD"), id="tensor slices"),
        pytest.param(Placement(ranks.host_names(11), 1), id="eleven hosts of one process"),
    ],
)
def test_real_ranks_and_groups_are_those_of_the_table(placement, mpirun, tmp_path):
    table = tmp_path / "table.json"
    table.write_text(json.dumps([{"mp_group": r.mp_group, "dp_group": r.dp_group} for r in placement.ranks]))
    done = mpirun(placement, PROGRAM, str(table))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match(r"\[\d+,\d+\]<stdout>:\{", line)]
    told = {found["rank"]: found for line in lines if (found := json.loads(line.partition(">:")[2]))}
    assert sorted(told) == list(range(placement.world_size))
    for rank in placement.ranks:
        found = told[rank.rank]
        assert (found["host"], found["local_rank"]) == (rank.host, rank.local_rank)
        assert (found["size"], found["mine"]) == (placement.world_size, "a b'c")
        assert (found["mp_rank"], tuple(found["mp_members"])) == (rank.mp_rank, placement.mp_groups[rank.mp_group])
        assert (found["dp_rank"], tuple(found["dp_members"])) == (rank.dp_rank, placement.dp_groups[rank.dp_group])


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_others_and_the_job(mpirun):
    began_s = time.monotonic()
    program = "import os, sys, time; os.environ['OMPI_COMM_WORLD_RANK'] == '3' and sys.exit(7); time.sleep(400)"
    done = mpirun(Placement(ranks.host_names(2), 2), program)
    assert done.returncode == 7
    assert time.monotonic() - began_s < 200
