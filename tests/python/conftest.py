"""Where the tests find the programs of the build."""

import pathlib
import subprocess

import pytest


def pytest_addoption(parser):
    source = pathlib.Path(__file__).resolve().parents[2]
    parser.addoption("--build", default=str(source / "build"), help="the build's folder")


@pytest.fixture
def run_program(request):
    """Runs a program of the build, by its path in there; its output is shown when it fails."""

    def run(path, *arguments, check=True):
        command = [str(pathlib.Path(request.config.getoption("--build")) / path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    return run
