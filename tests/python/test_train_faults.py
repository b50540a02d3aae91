"""`distca train` with a rank that is stopped, killed or fails: the others say whom they wait for and in what, and end;
without a spare dedicated server they go on. `make soak` strikes at random, in every mode."""

import pathlib

import pytest

import faults

TIMEOUT = 6.0  # of ranks that wait in vain: other tests run beside this one


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    return faults.fault_runs(request.config.getoption("--build"), tmp_path_factory.mktemp("faults"))


@pytest.fixture
def program(request):
    return pathlib.Path(request.config.getoption("--build")) / "tests" / "train_faults"


def mode_named(name):
    return next(mode for mode in faults.THREAD_MODES if mode.name == name)


@pytest.mark.parametrize("name, victim, stopped", [
    ("pp 2, keep, single", 0, True),
    ("one server", 2, True),
    ("one server", 2, False),
])
def test_ranks_of_an_mpi_job_name_the_one_that_was_struck_and_end(runs, name, victim, stopped):
    problem, _, _ = faults.struck_over_mpi(runs, mode_named(name), victim, stopped, delay=0.3, timeout=TIMEOUT)
    assert not problem


@pytest.mark.parametrize("name, victim, hangs", [
    ("tp 2, single", 1, True),
    ("1f1b", 3, False),
    ("two servers, tp 2", 5, False),
])
def test_thread_ranks_name_the_one_that_failed_and_go_on_without_a_spare_server(runs, program, name, victim, hangs):
    mode = mode_named(name)
    steps = 3
    operation = faults.count_operations(program, runs, mode, steps)[victim] // 2
    problem, _, _, _ = faults.struck_on_threads(program, runs, mode, victim, hangs, operation, steps, TIMEOUT)
    assert not problem
