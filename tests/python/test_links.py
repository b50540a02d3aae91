"""`[link]` of `distca train`: links and clocks change times, never results."""

import pathlib

import pytest

from train_runs import Runs

MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2")
SLOW = ("link.latency=0.01", "link.bandwidth=1e8")


@pytest.fixture
def runs(request, tmp_path):
    return Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path)


def lines_of(runs, *settings):
    runs.metrics.unlink(missing_ok=True)
    runs.must_run("train.steps=3", "checkpoint.dir=", "checkpoint.every=0", *settings)
    return runs.lines()


def test_results_are_the_same_bits_on_every_clock_and_link(runs):
    results = [[(line["loss"], line["grad_norm"], line["digest"]) for line in lines_of(runs, *settings)]
               for settings in ((), ("link.clock=virtual",), ("link.clock=virtual", *SLOW), SLOW,
                                ("link.clock=virtual", *SLOW, "link.ranks_per_node=2", "link.node_latency=0.1"))]
    for result in results[1:]:
        assert result == results[0]


def test_the_exposed_wait_is_that_of_the_links(runs):
    # Two layers, forward and backward, two nano-batches: at least 8 waits of the latency are not hidden by a
    # model this small.
    for clock in ("virtual", "wall"):
        for line in lines_of(runs, f"link.clock={clock}", "link.latency=0.05", "attention.overlap=single"):
            assert line["wait_s"] >= 8 * 0.05
    for line in lines_of(runs, "link.clock=virtual"):
        assert line["wait_s"] < 0.05


def refused(runs, *settings, says, **options):
    done = runs.run(*settings, **options)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert says in done.stderr and not runs.metrics.exists()


def test_links_are_not_for_mpi_ranks(runs):
    refused(runs, "link.latency=0.01", launcher=MPIRUN,
            says="--set link.latency=0.01: link.latency is for ranks that are threads")


def test_the_virtual_clock_counts_one_thread_a_rank(runs):
    refused(runs, "link.clock=virtual", "parallel.threads=2", says="--set parallel.threads=2: parallel.threads = 2")


def test_links_that_cannot_be(runs):
    refused(runs, "link.bandwidth=-1", says="link.bandwidth = -1 is less than 0")
    refused(runs, "link.clock=sundial", says="virtual")
