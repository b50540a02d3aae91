"""`distca` itself: its commands, and failures that no command expects."""

import json
import subprocess

import pytest


@pytest.mark.parametrize("arguments, message", [
    (["nosuch"], "'nosuch' is not a command"),
    (["bench", "nosuch"], "'nosuch' is not a command"),
    ([], "a command is needed"),
    (["version", "--nosuch"], "--nosuch"),
])
def test_a_wrong_command_is_named(run_program, arguments, message):
    done = run_program("distca", *arguments, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr


def test_version_is_an_option_too(run_program):
    assert run_program("distca", "--version").stdout == run_program("distca", "version").stdout


def test_a_tensor_that_no_machine_holds_is_one_line(run_program):
    # 35 TB in the threads of two ranks.
    done = run_program("distca", "bench", "layer", "--distribution", "prolong", "--chunks", 2, "--tokens-per-chunk",
                       131072, "--repeats", 1, "--heads", 65536, "--head-dim", 256, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("distca: ") and "allocate" in done.stderr


def test_every_test_of_the_unit_test_programs_is_in_a_ctest_entry(request, run_program):
    done = subprocess.run(["ctest", "--test-dir", request.config.getoption("--build"), "--show-only=json-v1"],
                          capture_output=True, text=True, check=True)
    filters = {}
    for entry in json.loads(done.stdout)["tests"]:
        program, *options = entry.get("command", [""])
        filters.setdefault(program, []).extend(o.split("=", 1)[1] for o in options if o.startswith("--gtest_filter="))
    filters = {program: found for program, found in filters.items() if found}
    assert len(filters) >= 8
    for program, found in filters.items():
        left = run_program(program, "--gtest_list_tests", "--gtest_filter=-" + ":".join(found)).stdout
        assert [line for line in left.splitlines() if not line.startswith("Running main")] == []
