"""Ranks fail in every phase of a step and of a change of size, and the job trains what one process trains.

They are killed, alone or two at once, hang, or find their disk full; nodes are lost with what is on them.
"""

import json
import os
import random
import subprocess
import sys
from itertools import count

import pytest
from conftest import ROOT
from whole_jobs import bundle_of, left_behind, losses_in_the_model, program_of, records, run

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

EXAMPLE = (ROOT / "examples" / "train_elastic.py").read_text()
SEEDS = int(os.environ.get("RECIPES_FAULT_SEEDS", "1"))
"""How many random courses are run, of ten faults in ranks each, beside lost nodes and changes of size."""

IN_STEP = ("forward", "backward", "collective", "optimizer", "stepped", "end", "save")
IN_CHANGE = ("barrier", "take over", "move", "taken")
LIMITS = "+cluster.hang={expectedStartCutOffInSeconds:30,expectedRecurringFrequencyInSeconds:10}"

FAULTS = """
import json, os, resource, signal, time
from pathlib import Path

PLAN, RUN_DIR, STEP = %s, Path(os.environ["RECIPES_RUN_DIR"]), [0]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def fault(phase):
    \"\"\"Let this rank fail if that is planned: from a step on, in a phase, each once.\"\"\"
    if phase == "end":  # there is room again
        disk(resource.RLIM_INFINITY)
    for number, (step, where, rank, kind) in enumerate(PLAN):
        if (where, rank) == (phase, int(os.environ.get("RANK", "0"))) and STEP[0] >= step:
            try:
                (RUN_DIR / f"fault-{number}-{kind}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "full":
                disk(0)
            while kind == "hang":
                time.sleep(1)


def before(owner, name, phase):
    work = getattr(owner, name)

    def planned(*arguments, **named):
        fault(phase)
        return work(*arguments, **named)

    setattr(owner, name, planned)


import torch.distributed
from launcher.runtime import checkpoint, in_place, peers, rows

before(torch.distributed, "init_process_group", "join")
before(checkpoint, "_write", "save")
before(in_place._Link, "await_stop", "barrier")
before(peers, "take_over", "take over")
before(rows, "exchange", "move")
before(peers, "_compare_replicas", "taken")
"""


def program(plan, *, is_sharded):
    """Return the example with the planned faults in it."""
    head, body = EXAMPLE.split("# isort: split")
    text = head + FAULTS % json.dumps(plan) + body
    model = "    model = DistributedDataParallel(model)\n"
    sharded = "    from torch.distributed.fsdp import fully_shard\n    fully_shard(model)\n"
    hooks = (
        "    parameter = next(model.parameters())\n"
        '    parameter.register_post_accumulate_grad_hook(lambda _: fault("collective"))\n'
    )
    stepped = '    optimizer.register_step_post_hook(lambda *_: fault("stepped"))\n'
    changes = {
        model: (sharded if is_sharded else model) + hooks,
        "    scheduler = torch": f"{stepped}    scheduler = torch",
        "scheduler, sampler=sampler)\n": "scheduler, sampler=sampler, save_every=12)\n",
        "        loss = job": '        STEP[0] = job.step\n        fault("forward")\n        loss = job',
        "        loss.backward()": '        fault("backward")\n        loss.backward()',
        "        optimizer.step()": '        fault("optimizer")\n        optimizer.step()',
        "        mean = mean": '        fault("end")\n        __import__("time").sleep(0.05)\n        mean = mean',
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the losses of the plain script in one process."""
    plain = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", str(ROOT / "examples" / "train_ddp.py")],
        cwd=tmp_path_factory.mktemp("plain"),
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,  # it may abort when it returns: test_examples
    )
    return [float(line.rpartition(" ")[2]) for line in plain.stdout.splitlines() if line.startswith("step ")]


def train(folder, plan, *words, is_sharded=False, text=None):
    """Run the program of a plan on three nodes of one rank; return its output, and the records of its starts."""
    size = ("recipes.trainer.num_nodes=3", "recipes.trainer.devices=1", "++recipes.scale_config=auto")
    own = program_of(text or program(plan, is_sharded=is_sharded), folder)
    words = (*words, "recipes.elastic_policy.resize=in_place", "recipes.elastic_policy.faulty_timeout=0")
    code, out, err = run(own, *size, *words, cwd=folder)
    assert code == 0, (plan, out, err)
    done = sorted(path.name.removeprefix("fault-") for path in (bundle_of(folder) / "run").glob("fault-*"))
    return out, records(bundle_of(folder) / "run" / "starts.jsonl"), done


def assert_trained(folder, expected, plan):
    losses = losses_in_the_model(bundle_of(folder) / "run")
    assert len(losses) == 96 and losses == pytest.approx(expected, abs=1e-5), plan
    assert left_behind(folder) == []


@pytest.mark.parametrize("is_sharded", [False, pytest.param(True, marks=pytest.mark.long)], ids=["ddp", "fsdp2"])
def test_a_rank_may_die_in_every_phase_of_a_step(tmp_path, expected, is_sharded):
    """Under DistributedDataParallel no step is done twice; of a sharded model, those since the last copy are."""
    plan = [(8 + 12 * number, phase, number % 3, "kill") for number, phase in enumerate(IN_STEP)]
    out, starts, done = train(tmp_path, plan, "++recipes.checkpointing.copy_every=2", is_sharded=is_sharded)
    assert len(done) == len(plan), out
    assert_trained(tmp_path, expected, plan)
    assert all(start["kept_by"] for start in starts[1:]), out
    steps = [line["step"] for line in records(bundle_of(tmp_path) / "run" / "metrics.jsonl")]
    assert len(steps) - len(set(steps)) <= (2 * len(plan) if is_sharded else 0)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)], ids=["joins", "has the store"])
def test_a_rank_that_dies_before_all_have_joined_costs_no_step(tmp_path, expected, rank):
    """The other one has the only state: it must not wait for a rank that never comes, nor end."""
    plan = [(20, "join", rank, "kill")]
    out, starts, done = train(tmp_path, plan, "+cluster.events=[{at:{step:30},capacity:2}]")
    assert len(done) == 1 and [start["kept_by"] for start in starts] == [None, 1], out
    assert_trained(tmp_path, expected, plan)
    steps = [line["step"] for line in records(bundle_of(tmp_path) / "run" / "metrics.jsonl")]
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize("phase", ["forward", "barrier", "move"])
def test_a_rank_that_hangs_during_a_change_is_replaced(tmp_path, expected, phase):
    """In the step that all finish before they stop, and in each phase of the change."""
    plan = [(20, phase, 1, "hang")]
    text = program(plan, is_sharded=False)
    if phase == "forward":  # only once the stop has been announced
        text = text.replace('fault("forward")', 'in_place.is_resize() and fault("forward")')
    out, starts, done = train(tmp_path, plan, LIMITS, "+cluster.events=[{at:{step:30},capacity:2}]", text=text)
    assert len(done) == 1 and all(start["kept_by"] for start in starts[1:]), out
    assert_trained(tmp_path, expected, plan)


@pytest.mark.parametrize("is_sharded", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults_in_steps_and_changes_are_healed(tmp_path, expected, seed, is_sharded):
    chance = random.Random(seed)
    steps = (step for step in count(6, 2) if chance.random() < 0.3)
    plan = []
    for number in range(10):
        kind = "hang" if number == 4 else chance.choice(["kill", "kill", "kill", "full"])
        fault = (next(steps), chance.choice(IN_STEP + 2 * IN_CHANGE))
        first = chance.randrange(3)
        plan += [(*fault, rank, kind) for rank in {first, chance.choice([first, (first + 1) % 3])}]
    places = sorted(chance.sample(range(5, 85), 5))
    course = [f"{{at:{{step:{step}}},capacity:{chance.randrange(1, 4)}}}" for step in (*places, places[0] + 1)]
    course += [
        f"{{at:{{step:{chance.randrange(5, 85)}}},node_loss:{{node:{node},replacement_after:1}}}}" for node in (0, 1)
    ]
    words = (f"+cluster.events=[{','.join(course)}]", "++recipes.checkpointing.copy_every=3", LIMITS)
    out, _, done = train(tmp_path, plan, *words, is_sharded=is_sharded)
    kinds = ", ".join(f"{sum(each.endswith(kind) for each in done)} {kind}" for kind in ("kill", "hang", "full"))
    print(f"{kinds}; {out.count('ranks kept it')} healed, {out.count('newest checkpoint')} anew")
    assert_trained(tmp_path, expected, plan)
