"""Where ranks lie: every example of the document, laws that any placement obeys, and the command that shows it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import main as cli
from launcher.model.parallelism.ranks import Placement, columns, host_names, spans
from launcher.model.parallelism.smp import ORDERS


def groups_of(placement, name):
    """Return the members of each group, found from the ranks alone."""
    found = {}
    for rank in placement.ranks:
        found.setdefault(getattr(rank, name), []).append(rank.rank)
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize(
    ("partitions", "strategy", "mp_groups", "dp_groups"),
    [
        pytest.param(4, "spread", [[0, 2, 4, 6], [1, 3, 5, 7]], None, id="4-way spread"),
        pytest.param(4, "cluster", [[0, 1, 2, 3], [4, 5, 6, 7]], None, id="4-way cluster"),
        pytest.param(
            2, "spread", [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]], id="ranking basics, spread"
        ),
        pytest.param(
            2,
            "cluster",
            [[0, 1], [2, 3], [4, 5], [6, 7]],
            [[0, 2, 4, 6], [1, 3, 5, 7]],
            id="newer ranking basics, cluster",
        ),
    ],
)
def test_groups_of_eight_gpus_are_the_documents(partitions, strategy, mp_groups, dp_groups):
    placement = Placement(host_names(1), 8, partitions, 1, strategy)
    assert groups_of(placement, "mp_group") == mp_groups == [list(group) for group in placement.mp_groups]
    if dp_groups:
        assert groups_of(placement, "dp_group") == dp_groups == [list(group) for group in placement.dp_groups]


def test_ranks_within_groups_are_the_documents():
    ranks = Placement(host_names(1), 8, 2, 1, "spread").ranks
    assert (ranks[1].mp_rank, ranks[6].mp_rank, ranks[6].dp_rank) == (0, 1, 2)
    assert [rank.mp_rank for rank in ranks] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_four_hosts_of_eight_gpus_have_the_documents_ranks():
    placement = Placement(host_names(4), 8)
    assert [rank.rank for rank in placement.ranks] == list(range(32))
    for host in placement.hosts:
        assert [rank.local_rank for rank in placement.ranks if rank.host == host] == list(range(8))


def test_two_replicas_of_four_parts_are_eight_processes():
    assert Placement(host_names(1), 8, 4).replicas == 2


def test_spread_over_hosts_leaves_the_links_within_one_to_data_parallelism():
    placement = Placement(host_names(4), 8, 4, 1, "spread")
    for group in placement.mp_groups:
        assert len({placement.host_of(rank) for rank in group}) == 4
    for group in placement.dp_groups:
        assert len({placement.host_of(rank) for rank in group}) == 1


@pytest.mark.parametrize(
    ("strategy", "table"),
    [
        ("DPT", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]),
        ("PTD", [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1), (0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1)]),
    ],
    ids=["DPT", "PTD"],
)
def test_tensor_parallel_ranks_are_the_newer_documents(strategy, table):
    ranks = Placement(host_names(1), 8, 2, 2, strategy).ranks
    assert [(rank.rdp_rank, rank.pp_rank, rank.tp_rank) for rank in ranks] == table


def test_hosts_are_sorted_as_texts():
    assert host_names(11) == ("algo-1", "algo-10", "algo-11", *(f"algo-{n}" for n in range(2, 10)))
    placement = Placement(host_names(11), 8)
    assert (placement.host_of(8), placement.host_of(24), placement.host_of(87)) == ("algo-10", "algo-2", "algo-9")


@st.composite
def placements(draw):
    partitions, tensor, replicas = (draw(st.integers(1, 5)) for _ in range(3))
    world = partitions * tensor * replicas
    processes = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    strategy = draw(st.sampled_from([*ORDERS, "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"]))
    return Placement(host_names(world // processes), processes, partitions, tensor, strategy)


@given(placements())
def test_groups_are_disjoint_of_one_size_and_cross_in_one_part(placement):
    everybody = list(range(placement.world_size))
    sizes = {"mp": placement.partitions * placement.tensor, "dp": placement.replicas * placement.tensor}
    for name, groups in (("mp", placement.mp_groups), ("dp", placement.dp_groups)):
        assert sorted(rank for group in groups for rank in group) == everybody
        assert {len(group) for group in groups} == {sizes[name]}
    for replica in placement.mp_groups:
        for partition in placement.dp_groups:
            assert len({*replica} & {*partition}) == placement.tensor


@given(placements())
def test_a_rank_is_told_where_it_is_in_each_group(placement):
    assert [rank.rank for rank in placement.ranks] == list(range(placement.world_size))
    for rank in placement.ranks:
        assert placement.mp_groups[rank.mp_group][rank.mp_rank] == rank.rank
        assert placement.dp_groups[rank.dp_group][rank.dp_rank] == rank.rank
        assert placement.hosts.index(rank.host) * placement.processes_per_host + rank.local_rank == rank.rank


@given(placements())
def test_without_tensor_slices_ranks_follow_the_closed_form(placement):
    if placement.tensor > 1 or placement.strategy not in ORDERS:
        return
    for rank in placement.ranks:
        if placement.strategy == "cluster":
            expected = (rank.rank % placement.partitions, rank.rank // placement.partitions)
        else:
            expected = (rank.rank // placement.replicas, rank.rank % placement.replicas)
        assert (rank.mp_rank, rank.dp_rank) == expected


@given(placements())
def test_the_last_letter_is_over_neighbours(placement):
    name = {"D": "rdp_rank", "P": "pp_rank", "T": "tp_rank"}[placement.order[-1]]
    size = {"D": placement.replicas, "P": placement.partitions, "T": placement.tensor}[placement.order[-1]]
    assert [getattr(rank, name) for rank in placement.ranks[:size]] == list(range(size))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "3"),
        ((0, 4), "0, 4"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 2, 4, 6), "0, 2, 4, 6"),
        ((0, 4, 8, 12, 16), "0, 4, … 16"),
        ((0, 1, 4, 5, 8), "0, 1, 4, 5, 8"),
    ],
)
def test_members_in_words(ranks, words):
    assert spans(ranks) == words


# the command


@pytest.fixture
def recipes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = cli.run(("ranks", *words))
        return code, *capsys.readouterr()

    return run


EXAMPLE = ("--processes", "8", "--partitions", "2", "--strategy", "spread")
SCRIPT = (
    "training/custom/script",
    "training_cfg.entry_script=train.py",
    "training_cfg.run.ntasks_per_node=8",
    "training_cfg.run.nodes=2",
    "cluster=sm_jobs",
    "instance_type=p3.16xlarge",
    "++recipes.distribution={mpi: {enabled: true}, smdistributed: {modelparallel: {enabled: true,"
    " parameters: {partitions: 2, placement_strategy: spread, ddp: true}}}}",
)


def test_a_table_has_every_rank_and_the_groups(recipes):
    code, out, _ = recipes(*EXAMPLE)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:3] == ["8", "ranks", "on"]
    assert tuple(lines[1]) == columns(Placement(host_names(1), 8, 2))
    assert lines[8] == ["6", "algo-1", "6", "2", "1", "1", "2"]
    assert " 2  2, 6" in out.splitlines() and " 1  4-7" in out.splitlines()


def test_json_has_groups_and_ranks(recipes):
    _, out, _ = recipes(*EXAMPLE, "--hosts", "2", "--json")
    shown = json.loads(out)
    assert shown["mp_groups"] == [[r, r + 8] for r in range(8)]
    assert shown["ranks"][9]["host"] == "algo-2" and shown["world_size"] == 16


def test_a_recipe_says_where_its_ranks_lie(recipes):
    code, out, err = recipes(*SCRIPT, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert (shown["world_size"], shown["placement_strategy"], shown["replicas"]) == (16, "spread", 8)
    assert shown["hosts"] == ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), "E801", "give a recipe"),
        (("--processes", "8", "--partitions", "3"), "E243", "not a multiple of 3"),
        (("--processes", "8", "--strategy", "DDT"), "E801", "is not a placement strategy"),
        (("--processes", "0"), "E801", "0"),
        ((*SCRIPT, "--hosts", "3"), "E801", "a recipe determines"),
        ((*SCRIPT[:-1],), "E801", "distribution.mpi is not enabled"),
        (
            (f"{SCRIPT[0]}@5", *SCRIPT[1:]),
            "E803",
            "no such size\n     allowed: 2\n     remedy: recipes.trainer.num_nodes=5",
        ),
        ((*SCRIPT, "++recipes.distribution.smdistributed.modelparallel.parameters.partitions=3"), "E243", "16 ranks"),
        ((*EXAMPLE, "--picture", "ranks.gif"), "E709", "not a supported picture"),
    ],
    ids=["nothing", "undivided", "strategy", "zero", "both", "no-mpi", "size", "recipe-fault", "picture"],
)
def test_a_mistake_is_a_problem(words, code, text, recipes):
    ended, out, err = recipes(*words)
    assert (ended, out) == (2, "")
    assert err.startswith(code) and text in err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_shows_every_host_and_is_the_same_each_time(suffix, recipes, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--hosts", "11", "--processes", "2", "--partitions", "2", "--picture")
    for name in ("a", "b"):
        code, out, err = recipes(*words, f"{name}{suffix}")
        assert code == 0 and f"picture {name}{suffix}" in out, err
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
    assert first == second and len(first) > 5000
    recipes("--hosts", "11", "--processes", "2", "--partitions", "1", "--picture", f"c{suffix}")
    assert (tmp_path / f"c{suffix}").read_bytes() != first
