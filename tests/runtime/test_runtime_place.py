"""The accelerator of a rank."""

import pytest
import torch

from launcher.runtime.process_group import affordable, place_from_env


@pytest.fixture
def rank(monkeypatch):
    """Return a function that gives the place of a rank on a machine with GPUs."""

    def place(gpus, rank, world_size, local_rank, local_world_size, address="127.0.0.1"):
        values = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": local_world_size,
        }
        for name, value in (values | {"MASTER_ADDR": address}).items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        return place_from_env()

    return place


@pytest.mark.parametrize("node", [0, 1])
def test_simulated_nodes_on_one_machine_do_not_share_gpus(rank, node):
    ranks = [rank(4, node * 2 + local, 4, local, 2) for local in range(2)]
    assert [each.device for each in ranks] == [torch.device("cuda", node * 2 + local) for local in range(2)]


def test_a_rank_of_a_real_node_has_the_gpu_of_its_local_rank(rank):
    assert rank(8, 11, 16, 3, 8, address="10.0.0.1").device == torch.device("cuda", 3)


def test_agents_that_divide_the_gpus_themselves_are_left_alone(rank):
    """Each of two agents on this machine shows its ranks one GPU."""
    assert rank(1, 1, 2, 0, 1).device == torch.device("cuda", 0)


def test_without_gpus_a_rank_is_on_the_cpu(rank):
    place = rank(0, 1, 2, 1, 2)
    assert place.device == torch.device("cpu") and affordable(place) == place


def test_a_small_model_goes_to_the_cpu_if_ranks_outnumber_the_gpus(rank, capsys):
    assert affordable(rank(1, 0, 8, 0, 8)).device == torch.device("cpu")
    assert capsys.readouterr().out == "8 ranks, and GPUs for 1: training on the CPU\n"
    assert affordable(rank(1, 7, 8, 7, 8)).device == torch.device("cpu")
    assert affordable(rank(1, 1, 2, 0, 1)).device == torch.device("cpu"), "two simulated nodes"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1"])
def test_a_small_model_stays_on_the_gpus_if_they_suffice(rank, address):
    assert affordable(rank(8, 3, 8, 3, 8, address)).device == torch.device("cuda", 3)
    assert affordable(rank(8, 11, 16, 3, 8, "10.0.0.1")).device == torch.device("cuda", 3)
