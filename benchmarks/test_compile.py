"""What a user waits for before a bundle is there."""

from conftest import ELASTIC, ROOT, paired

FLOOR = """
import sys, hydra
from omegaconf import OmegaConf
with hydra.initialize_config_dir(config_dir=sys.argv[1], version_base="1.3"):
    OmegaConf.to_container(hydra.compose("config", sys.argv[2:]))
"""


def test_cold_dry_run_against_bare_hydra(tmp_path, report):
    """Target: at most 0.8 times the bare import and compose of the same recipe; 80 MiB."""
    ours = [str(ROOT / "main.py"), *ELASTIC, "dry_run=true"]
    floor = ["-c", FLOOR, str(ROOT / "recipes_collection"), *ELASTIC]
    paired(ours, floor, tmp_path, rounds=2)  # fills the bytecode caches
    found = paired(ours, floor, tmp_path)
    report(
        "cold dry run {ours_s:.3f} s, bare {floor_s:.3f} s, ratio {ratio:.2f}, peak {peak_mib:.0f} MiB".format(
            **found
        )
    )


def test_warm_compile(benchmark, tmp_path):
    """Target: at most 20 ms for compose, check, plan and render of all 7 sizes, again in one process."""
    from launcher import pipeline
    from launcher.config.composed_files import CompositionCache
    from launcher.model.context import LaunchContext

    context, cache = LaunchContext.read(), CompositionCache()

    def compile_again():
        return pipeline.render(pipeline.prepare(ELASTIC, context, cache), context)

    assert len(compile_again().files) == 14
    benchmark(compile_again)
